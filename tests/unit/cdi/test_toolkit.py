from pathlib import Path
from typing import Any

import pytest

from dra_driver.cdi.hook_program import HookProgram
from dra_driver.cdi.host_programs import ProgramFailed, Toolbox
from dra_driver.cdi.layout import FileEdits
from dra_driver.cdi.spec import VOID, Env, Hook
from dra_driver.cdi.toolkit import Generator, NoToolkit
from dra_driver.cdi.tools import Tools
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

    with pytest.raises(NoToolkit, match=r"^there is no nvidia-ctk in /opt$"):
        node.generate(Path("/opt/nvidia-ctk"))


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
