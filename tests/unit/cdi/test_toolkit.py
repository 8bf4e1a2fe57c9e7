import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi.hook_program import HookProgram
from dra_driver.cdi.host_programs import ProgramFailed, Toolbox
from dra_driver.cdi.layout import FileEdits
from dra_driver.cdi.spec import VOID, Env, Hook
from dra_driver.cdi.toolkit import Generator, NoToolkit
from dra_driver.cdi.tools import Tools
from dra_driver.model.errors import CdiError
from tests.driver_tree import GPU_OPERATOR, VERSION, DriverTree, driver_tree
from tests.unit.cdi import fake_tools

HOOKS = HookProgram("/plugins/nvidia-cdi-hook", frozenset({"create-symlinks", "update-ldcache"}))


class Node:
    """A driver's process with an image of its own, on a host."""

    def __init__(self, base: Path, tree: DriverTree) -> None:
        self.tree = tree
        self.image = base / "image/usr/bin/nvidia-ctk"
        self.shared = base / "plugins/gpu.nvidia.com"

    def generate(self, given: Path | None = None) -> FileEdits:
        toolbox = Toolbox(self.tree.roots, self.shared)
        generator = Generator(
            self.tree.roots, toolbox, Tools(shared=self.shared, ctk_path=given, own=(self.image.parent,))
        )
        return generator.generate(VERSION, HOOKS)[0]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, driver_tree(tmp_path, GPU_OPERATOR))


def test_generator_is_told_where_everything_is_seen(node: Node) -> None:
    fake_tools.ctk(node.image, fake_tools.generated(node.tree))

    node.generate()

    (call,) = fake_tools.calls(node.image)
    words = call.split()
    assert words[:2] == ["cdi", "generate"]
    assert {word for word in words if not word.startswith("--output=")} >= {
        "--mode=nvml",
        "--format=json",
        "--device-id=none",
        f"--driver-root={node.tree.root}",
        f"--dev-root={node.tree.root}",
        "--nvidia-cdi-hook-path=/plugins/nvidia-cdi-hook",
    }


def test_host_paths_are_the_hosts_and_container_paths_the_generators(node: Node) -> None:
    fake_tools.ctk(node.image, fake_tools.generated(node.tree))

    mounts = {mount.container_path: mount.host_path for mount in node.generate().mounts}

    directory = "/usr/lib/x86_64-linux-gnu"
    assert mounts == {
        f"{directory}/libcuda.so.{VERSION}": f"/run/nvidia/driver{directory}/libcuda.so.{VERSION}",
        f"{directory}/libnvidia-ml.so.{VERSION}": f"/run/nvidia/driver{directory}/libnvidia-ml.so.{VERSION}",
        "/usr/bin/nvidia-smi": "/run/nvidia/driver/usr/bin/nvidia-smi",
        "/var/run/nvidia-container-devices/void": "/dev/null",
    }


@pytest.mark.parametrize("hook_path", ["/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"])
def test_hooks_are_calls_of_the_hosts_program_and_only_of_hooks_that_it_has(node: Node, hook_path: str) -> None:
    document = fake_tools.generated(node.tree, hook_path=hook_path)
    if hook_path.endswith("nvidia-ctk"):
        for entry in document["containerEdits"]["hooks"]:
            entry["args"].insert(1, "hook")
    fake_tools.ctk(node.image, document)

    assert node.generate().hooks == (
        Hook(
            stage="createContainer",
            path="/plugins/nvidia-cdi-hook",
            args=("nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"),
            env=("NVIDIA_CTK_DEBUG=false",),
        ),
    )


def test_environment_keeps_other_runtimes_out_even_if_the_generator_does_not_say_so(node: Node) -> None:
    document = fake_tools.generated(node.tree)
    document["containerEdits"]["env"] = ["NVIDIA_CTK_LIBCUDA_DIR=/a=b"]
    fake_tools.ctk(node.image, document)

    assert node.generate().env == (Env("NVIDIA_CTK_LIBCUDA_DIR", "/a=b"), VOID)


def test_old_generator_is_asked_without_the_flag_that_it_does_not_know(node: Node) -> None:
    fake_tools.ctk(node.image, fake_tools.generated(node.tree), old=True)

    assert len(node.generate().mounts) == 4
    assert ["--device-id=none" in call for call in fake_tools.calls(node.image)] == [True, False]


def test_nothing_is_left_behind(node: Node) -> None:
    fake_tools.ctk(node.image, fake_tools.generated(node.tree))

    node.generate()

    assert list(node.shared.iterdir()) == []


def test_host_with_the_toolkit_lends_it(tmp_path: Path, tree: DriverTree) -> None:
    node = Node(tmp_path, tree)
    fake_tools.ctk(tree.path("usr/bin/nvidia-ctk"), fake_tools.generated(tree))

    assert len(node.generate().mounts) == 4


def test_given_generator_is_the_only_one_asked(tmp_path: Path, tree: DriverTree) -> None:
    node = Node(tmp_path, tree)
    fake_tools.ctk(tree.path("usr/bin/nvidia-ctk"), fake_tools.generated(tree))

    with pytest.raises(CdiError, match=r"^--nvidia-ctk-path \(NVIDIA_CTK_PATH\): found /opt/nvidia-ctk, there is no"):
        node.generate(Path("/opt/nvidia-ctk"))


def test_missing_generator_is_told_with_the_places(node: Node) -> None:
    with pytest.raises(NoToolkit, match=f"^there is no nvidia-ctk in {node.image.parent}$"):
        node.generate()


def _with_mount(document: dict[str, Any], host_path: str) -> dict[str, Any]:
    document["containerEdits"]["mounts"].append({"hostPath": host_path, "containerPath": "/x", "options": ["ro"]})
    return document


def test_generator_that_finds_another_drivers_libraries_is_refused(node: Node) -> None:
    node.tree.install("590.10.01")
    fake_tools.ctk(node.image, fake_tools.generated(node.tree, "590.10.01"))

    with pytest.raises(ProgramFailed, match=rf"found no libcuda\.so\.{VERSION} and libnvidia-ml\.so\.{VERSION} of the"):
        node.generate()


@pytest.mark.parametrize("host_path", ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/etc/passwd"])
def test_path_outside_the_driver_root_is_refused(node: Node, host_path: str) -> None:
    fake_tools.ctk(node.image, _with_mount(fake_tools.generated(node.tree), host_path))

    with pytest.raises(ProgramFailed, match=f"gave {host_path}, which is not under {node.tree.root}"):
        node.generate()


def test_file_that_is_not_there_is_refused(node: Node) -> None:
    fake_tools.ctk(node.image, _with_mount(fake_tools.generated(node.tree), f"{node.tree.root}/usr/bin/gone"))

    with pytest.raises(ProgramFailed, match=r"gave .*/usr/bin/gone, which is not there"):
        node.generate()


@pytest.mark.parametrize(
    "document",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="cut off"),
        pytest.param([], id="a list"),
        pytest.param({}, id="no edits"),
        pytest.param({"containerEdits": {"mounts": None}}, id="no mounts"),
        pytest.param({"containerEdits": {"mounts": [{"hostPath": "/a"}]}}, id="half a mount"),
        pytest.param({"containerEdits": {"mounts": [], "env": ["A"]}}, id="half a variable"),
        pytest.param({"containerEdits": {"mounts": [], "hooks": [{"args": []}]}}, id="empty hook"),
    ],
)
def test_document_that_is_none_is_refused(node: Node, document: Any) -> None:
    fake_tools.ctk(node.image, document)

    with pytest.raises(ProgramFailed, match="gave no CDI spec that can be read"):
        node.generate()


Edits = dict[str, Any]


def _mount(**other: Any) -> Callable[[Edits], None]:
    """A mount of nvidia-smi with something else about it."""

    def change(edits: Edits) -> None:
        edits["mounts"].append({**edits["mounts"][2], "containerPath": "/usr/bin/other", **other})

    return change


def _set(key: str, value: Any) -> Callable[[Edits], None]:
    return lambda edits: edits.__setitem__(key, value)


def _hook(**other: Any) -> Callable[[Edits], None]:
    return lambda edits: edits["hooks"][0].update(other)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(_mount(hostPath=None), "found None, must be printable text", id="no host path"),
        pytest.param(_mount(hostPath=5), "found 5, must be printable text", id="host path a number"),
        pytest.param(_mount(hostPath="/a\0b"), "must be printable text", id="host path with a NUL"),
        pytest.param(_mount(hostPath="/" + 5000 * "a"), "which is not under", id="long host path outside"),
        pytest.param(_mount(hostPath=""), "which is not under", id="empty host path"),
        pytest.param(_mount(containerPath=5), "found 5, must be printable text", id="container path a number"),
        pytest.param(_mount(containerPath="/" + 5000 * "a"), "gave the container's path /aaa", id="long"),
        pytest.param(_mount(containerPath="usr/bin/x"), "container's path usr/bin/x, must be abs", id="relative"),
        pytest.param(_mount(containerPath="/"), "gave the container's path /, must be", id="the container's root"),
        pytest.param(_mount(containerPath="/usr/.."), r"container's path /usr/\.\., must be", id="root by two dots"),
        pytest.param(_mount(containerPath="/usr/bin/nvidia-smi", options=[]), "two mounts for /usr/bin/nv", id="twice"),
        pytest.param(_mount(options=None), "found None, must be a list", id="options null"),
        pytest.param(_mount(options="ro"), "found 'ro', must be a list", id="options a text"),
        pytest.param(_mount(options=[1, 2]), "found 1, must be printable text", id="options numbers"),
        pytest.param(_set("env", ["A=\ud800"]), r"ud800', must be printable text", id="surrogate"),
        pytest.param(_set("env", ["=x"]), r"breaks rules: containerEdits\.env\[0\]: found '=x'", id="no name"),
        pytest.param(_set("env", None), "found None, must be a list", id="env null"),
        pytest.param(_hook(hookName="whenever"), "breaks rules: .*hookName: found 'whenever'", id="no such stage"),
        pytest.param(_hook(args="update-ldcache"), "must be a list", id="arguments a text"),
        pytest.param(_hook(env=[5]), "found 5, must be printable text", id="hook's env a number"),
        pytest.param(_set("hooks", []), "gave no call of the hook update-ldcache", id="no hooks"),
        pytest.param(_set("hooks", None), "gave no CDI spec that can be read", id="hooks null"),
    ],
)
def test_edits_that_would_fail_in_claims_are_refused_by_the_programs_name(
    node: Node, change: Callable[[Edits], None], text: str
) -> None:
    document = fake_tools.generated(node.tree)
    change(document["containerEdits"])
    fake_tools.ctk(node.image, document)

    with pytest.raises(ProgramFailed, match=f"^{node.image} .*{text}"):
        node.generate()


@pytest.mark.parametrize(
    ("below", "reason"),
    [("../../etc/passwd", "is not under"), ("usr/../bin", "is not under"), ("a" * 5000, "is not there")],
)
def test_path_that_leads_out_or_nowhere_is_refused(node: Node, below: str, reason: str) -> None:
    fake_tools.ctk(node.image, _with_mount(fake_tools.generated(node.tree), f"{node.tree.root}/{below}"))

    with pytest.raises(ProgramFailed, match=reason):
        node.generate()


def test_links_are_followed_inside_the_driver_root_only(node: Node) -> None:
    node.tree.link("usr/bin/link", "/usr/bin/nvidia-smi")
    fake_tools.ctk(node.image, _with_mount(fake_tools.generated(node.tree), f"{node.tree.root}/usr/bin/link"))

    mounts = {mount.container_path: mount.host_path for mount in node.generate().mounts}

    assert mounts["/x"] == "/run/nvidia/driver/usr/bin/nvidia-smi"


@pytest.mark.parametrize("name", ["libcuda", "libnvidia-ml"])
def test_library_that_is_none_is_refused(node: Node, name: str) -> None:
    fake_tools.ctk(node.image, fake_tools.generated(node.tree))
    node.tree.library(name).write_bytes(b"")
    with pytest.raises(ProgramFailed, match=rf"gave .*/{name}\.so\.{VERSION}, which cannot be used: no ELF file"):
        node.generate()

    node.tree.library(name).unlink()
    node.tree.library(name).mkdir()
    with pytest.raises(ProgramFailed, match=rf"gave .*/{name}\.so\.{VERSION}, which is no file"):
        node.generate()


_OUTPUT = 'for a in "$@"; do case $a in --output=*) out=${a#*=};; esac; done\n'


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param("", "No such file or directory", id="nothing"),
        pytest.param('mkfifo "$out"\n', "not a regular file", id="pipe"),
        pytest.param('mkdir "$out"; touch "$out/x"\n', "not a regular file", id="directory"),
        pytest.param('ln -s /dev/zero "$out"\n', "symbolic links", id="link"),
    ],
)
def test_output_that_is_no_file_is_refused_and_removed(node: Node, script: str, reason: str) -> None:
    fake_tools.program(node.image, f"#!/bin/sh\n{_OUTPUT}{script}")

    with pytest.raises(ProgramFailed, match=f"^{node.image}: .*{reason}"):
        node.generate()
    assert list(node.shared.iterdir()) == []


def test_output_of_an_earlier_run_is_swept_and_not_read(node: Node) -> None:
    (node.shared / ".nvidia-ctk.abc").mkdir(parents=True)
    (node.shared / ".nvidia-ctk.abc/edits.json").write_text("{}")
    (node.shared / f".nvidia-ctk.{os.getpid()}.json").write_text("{}")
    fake_tools.program(node.image, "#!/bin/sh\n")

    with pytest.raises(ProgramFailed, match="No such file"):
        node.generate()
    assert list(node.shared.iterdir()) == []


def test_what_a_failing_generator_says_is_fit_for_an_event(node: Node) -> None:
    fake_tools.program(node.image, "#!/bin/sh\nprintf 'a\\033[31mb\\000c\\n\\001\\n'; exit 1\n")

    with pytest.raises(ProgramFailed, match=r"exit code 1: a \[31mb c$"):
        node.generate()


def test_failure_is_told_with_the_last_line(node: Node) -> None:
    fake_tools.ctk(node.image, {}, code=1, saying="failed to initialize NVML: ERROR_UNKNOWN")

    with pytest.raises(
        ProgramFailed, match="nvidia-ctk failed with exit code 1: failed to initialize NVML: ERROR_UNKNOWN"
    ):
        node.generate()


def test_generator_that_hangs_is_ended(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.cdi.toolkit.RUN_SECONDS", 0.2)
    fake_tools.program(node.image, "#!/bin/sh\nsleep 600\n")

    with pytest.raises(ProgramFailed, match=r"nvidia-ctk was ended: no end within 0\.2 s"):
        node.generate()
