"""Doctor and driver look for NVIDIA's programs alike, and doctor says what comes of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.cdi.tools import EditsSource, HookMode, Tools
from dra_driver.doctor.findings import Finding, Status
from dra_driver.doctor.host import Host
from dra_driver.doctor.toolkit import check_toolkit
from tests.driver_tree import AL2023, GPU_OPERATOR, VERSION, DriverTree, Layout, driver_files, driver_tree
from tests.unit.cdi import fake_tools
from tests.unit.doctor.conftest import Machine

TOOLKIT = "usr/local/nvidia/toolkit"


class Node:
    """A host, and a driver on it whose image has two directories of programs."""

    def __init__(self, base: Path, layout: Layout = AL2023) -> None:
        self.base = base
        self.tree: DriverTree = driver_tree(base, layout)
        self.own = (base / "image/opt/bin", base / "image/usr/bin")
        self.tools = Tools(shared=base / "plugins", own=self.own)
        self.programs: list[Path] = []
        root = self.tree.root if layout.driver_root == "/" else base / "host"
        self.host = Host(root, (self.tools.shared,))

    def add(self, *directories: str) -> "Node":
        """Both programs, in directories of the host (as ``usr/bin``) or of our own (as ``own:0``)."""
        for name in directories:
            own, _, number = name.partition(":")
            directory = self.own[int(number)] if own == "own" else (self.host.root or self.base) / name
            fake_tools.hook(directory / "nvidia-cdi-hook")
            self.programs.append(fake_tools.ctk(directory / "nvidia-ctk", fake_tools.generated(self.tree)))
        return self

    def with_tools(self, **changes: object) -> "Node":
        self.tools = replace(self.tools, **changes)  # type: ignore[arg-type]
        return self

    def diagnosed(self) -> Finding:
        return check_toolkit(self.host, self.tree.roots, self.tools, Machine())[0]

    def used_by_the_driver(self) -> tuple[str | None, Path | None]:
        """The hook program in specs, and the generator that was run."""
        hooks = driver_files(self.tree.roots, self.tools).common(VERSION).hooks
        run = [program for program in self.programs if fake_tools.calls(program)]
        return (hooks[0].path if hooks else None), next(iter(run), None)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    "directories",
    [
        pytest.param([], id="nowhere"),
        pytest.param(["own:0"], id="in a directory that only PATH names"),
        pytest.param(["own:1", "own:0"], id="in two of our own"),
        pytest.param(["usr/bin"], id="on the host"),
        pytest.param([TOOLKIT], id="as the GPU Operator puts it"),
        pytest.param(["usr/local/bin", "usr/sbin"], id="twice on the host"),
        pytest.param(["usr/bin", "own:1"], id="on the host and in our own"),
    ],
)
@pytest.mark.parametrize("layout", [AL2023, GPU_OPERATOR], ids=["al2023", "gpu-operator"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="auto"),
        pytest.param({"edits": EditsSource.BUILTIN}, id="builtin"),
        pytest.param({"edits": EditsSource.BUILTIN, "hooks": HookMode.NONE}, id="none"),
    ],
)
def test_doctor_names_the_programs_that_the_driver_uses(
    tmp_path: Path, layout: Layout, directories: list[str], changes: dict[str, object]
) -> None:
    node = Node(tmp_path, layout).add(*directories).with_tools(**changes)

    facts = node.diagnosed().facts
    hook, generator = node.used_by_the_driver()

    assert facts["hook"] == hook
    assert _same(node, facts["generator"], generator)


def _same(node: Node, named: str | None, run: Path | None) -> bool:
    """Whether a path of the host, or of our own, is the file that was run."""
    if named is None or run is None:
        return named is run
    return Path(named) == run or node.tree.path(named.lstrip("/")) == run


@pytest.mark.parametrize("own", [[], ["own:0"]], ids=["image without", "image with it"])
def test_given_paths_are_the_only_ones(node: Node, own: list[str]) -> None:
    node.add("usr/bin", TOOLKIT, *own)
    node.with_tools(hook_path=Path("/", TOOLKIT, "nvidia-cdi-hook"), ctk_path=node.programs[1])

    facts = node.diagnosed().facts

    assert (facts["hook"], facts["generator"]) == (f"/{TOOLKIT}/nvidia-cdi-hook", str(node.programs[1]))
    assert node.used_by_the_driver() == (f"/{TOOLKIT}/nvidia-cdi-hook", node.programs[1])


def test_host_without_ldconfig_gets_no_hooks_from_either(node: Node) -> None:
    node.add("usr/bin").tree.path("usr/sbin/ldconfig").unlink()

    assert node.diagnosed().facts["hook"] is None
    assert "the host has no /sbin/ldconfig" in node.diagnosed().message
    assert node.used_by_the_driver() == (None, None)


def test_program_of_the_image_is_told_with_where_the_host_calls_it(node: Node) -> None:
    text = node.add("own:0").diagnosed().message

    copied = f"{node.tools.hook_copy}, copied from {node.own[0]}/nvidia-cdi-hook"
    assert text == f"nvidia-cdi-hook 1.19.1 ({copied}); nvidia-ctk 1.19.1 ({node.own[0]}/nvidia-ctk)"
    assert not node.tools.hook_copy.exists()


def test_missing_hook_program_is_told_with_the_directories_and_what_is_done_without(node: Node) -> None:
    found = node.diagnosed()

    assert found.status is Status.WARNING
    assert found.message.startswith(f"there is no nvidia-cdi-hook in {node.own[0]}, {node.own[1]}, /opt/bin, ")
    assert found.message.endswith("containers are set up without hooks: libraries are mounted where loaders look")
    assert "install NVIDIA's container toolkit" in found.remedy


def test_toolkit_that_the_driver_does_not_see_is_told_with_the_setting(tmp_path: Path) -> None:
    found = Node(tmp_path, GPU_OPERATOR).add(TOOLKIT).diagnosed()

    assert found.remedy == f"set --nvidia-cdi-hook-path=/{TOOLKIT}/nvidia-cdi-hook, in the chart nvidiaCDIHookPath"


@pytest.mark.parametrize(
    ("directories", "changes", "message"),
    [
        ([], {"hooks": HookMode.NVIDIA_CDI_HOOK}, "--cdi-hooks=nvidia-cdi-hook: there is no nvidia-cdi-hook in "),
        ([], {"edits": EditsSource.NVIDIA_CTK}, "--cdi-edits=nvidia-ctk: its edits need nvidia-cdi-hook in "),
        (
            ["usr/bin"],
            {"edits": EditsSource.NVIDIA_CTK, "ctk_path": Path("/gone/nvidia-ctk")},
            "--cdi-edits=nvidia-ctk: there is no /gone/nvidia-ctk",
        ),
        (
            ["usr/bin"],
            {"hook_path": Path("/opt/nvidia-cdi-hook")},
            "--nvidia-cdi-hook-path: there is no /opt/nvidia-cdi-hook on this host",
        ),
    ],
    ids=["hook program asked for", "generator without hooks", "generator asked for", "given hook program"],
)
def test_program_that_the_settings_ask_for_and_that_is_missing_is_a_problem(
    node: Node, directories: list[str], changes: dict[str, object], message: str
) -> None:
    found = node.add(*directories).with_tools(**changes).diagnosed()

    assert found.status is Status.PROBLEM
    assert found.message.startswith(message)


def test_given_hook_program_that_cannot_be_seen_is_a_warning_and_taken_as_given(tmp_path: Path) -> None:
    node = Node(tmp_path, GPU_OPERATOR).with_tools(hook_path=Path("/", TOOLKIT, "nvidia-cdi-hook"))
    node.host = Host(None)

    assert node.diagnosed().status is Status.WARNING
    assert node.diagnosed().facts["hook"] == node.used_by_the_driver()[0] == f"/{TOOLKIT}/nvidia-cdi-hook"


def test_host_that_is_not_seen_leaves_the_hook_program_to_be_named(tmp_path: Path) -> None:
    node = Node(tmp_path, GPU_OPERATOR)
    node.host = Host(None)

    assert "cannot be seen from here, name it with --nvidia-cdi-hook-path" in node.diagnosed().remedy


def _spoiled(path: Path, how: str) -> str:
    """The reason that is to be told."""
    match how:
        case "not executable":
            path.chmod(0o644)
            return f"/usr/bin/{path.name} is not executable"
        case "text":
            path.write_text("hello\n")
            return f"/usr/bin/{path.name} is no program: neither an ELF file nor a script"
        case _:
            path.write_text("")
            return f"/usr/bin/{path.name} is no program: neither an ELF file nor a script"


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("how", ["not executable", "text", "empty"])
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.WARNING),
        ({"hooks": HookMode.NVIDIA_CDI_HOOK}, Status.PROBLEM),
        ({"hook_path": Path("/usr/bin/nvidia-cdi-hook")}, Status.PROBLEM),
    ],
    ids=["auto", "asked for", "given"],
)
def test_hook_program_that_cannot_be_run_is_told_with_the_reason(
    node: Node, how: str, live: bool, changes: dict[str, object], status: Status
) -> None:
    reason = _spoiled(node.add("usr/bin").programs[0].with_name("nvidia-cdi-hook"), how)
    node.with_tools(**changes)

    found, hook = check_toolkit(node.host, node.tree.roots, node.tools, Machine() if live else None)

    assert (found.status, found.facts["hook"]) == (status, None)
    assert reason in found.message
    assert isinstance(hook, str)


@pytest.mark.parametrize("how", ["not executable", "text", "empty"])
def test_next_hook_program_is_used_where_the_first_cannot_be_run(node: Node, how: str) -> None:
    node.add("usr/bin", "usr/local/bin")
    _spoiled(node.programs[0].with_name("nvidia-cdi-hook"), how)

    assert node.diagnosed().facts["hook"] == node.used_by_the_driver()[0] == "/usr/local/bin/nvidia-cdi-hook"


def test_hook_program_of_the_image_need_not_be_executable_as_it_is_copied(node: Node) -> None:
    node.add("own:0").programs[0].with_name("nvidia-cdi-hook").chmod(0o644)

    assert node.diagnosed().facts["hook"] == node.used_by_the_driver()[0] == str(node.tools.hook_copy)


@pytest.mark.parametrize(
    ("hooks", "reason"),
    [(("update-ldcache",), "has no hook create-symlinks"), ((), "has no hook create-symlinks and update-ldcache")],
)
def test_hook_program_without_hooks_that_containers_need_is_not_used(
    node: Node, hooks: tuple[str, ...], reason: str
) -> None:
    machine = Machine()
    machine.hooks = hooks

    found, _ = check_toolkit(node.add("usr/bin").host, node.tree.roots, node.tools, machine)

    assert found.status is Status.WARNING
    assert found.message.startswith(f"/usr/bin/nvidia-cdi-hook {reason}, so containers are set up without hooks")


@pytest.mark.parametrize("how", ["not executable", "text", "empty"])
@pytest.mark.parametrize(
    ("edits", "status"), [(EditsSource.AUTO, Status.WARNING), (EditsSource.NVIDIA_CTK, Status.PROBLEM)]
)
def test_generator_that_cannot_be_run_is_told_with_the_reason(
    node: Node, how: str, edits: EditsSource, status: Status
) -> None:
    reason = _spoiled(node.add("usr/bin").programs[0], how)

    found = node.with_tools(edits=edits).diagnosed()

    assert (found.status, found.facts["generator"]) == (status, None)
    assert reason in found.message


def test_given_generator_that_is_missing_is_named(node: Node) -> None:
    found = node.add("usr/bin").with_tools(ctk_path=Path("/nope")).diagnosed()

    assert found.status is Status.WARNING
    assert "--nvidia-ctk-path: there is no /nope, so the driver finds its files itself" in found.message
