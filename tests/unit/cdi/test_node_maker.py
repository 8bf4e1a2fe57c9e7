import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from dra_driver.cdi.kernel_devices import NVIDIA_UVM, KernelDevices
from dra_driver.cdi.node_maker import COMMON_NODES, Known, NodeMaker, gpu_node
from dra_driver.hostfs import DriverRoots
from dra_driver.processes import Finished
from tests.kernel_tree import KernelTree

BUS_ID = "0000:01:00.0"
GPU = gpu_node(0, BUS_ID)
UVM = next(known for known in COMMON_NODES if known.name == "nvidia-uvm")
CTL = next(known for known in COMMON_NODES if known.name == "nvidiactl")
MODESET = next(known for known in COMMON_NODES if known.name == "nvidia-modeset")


class Node:
    """A driver root with a /dev of its own, on a machine whose nvidia and nvidia-uvm modules are loaded."""

    def __init__(self, base: Path) -> None:
        self.root = base / "driver"
        self.roots = self.with_dev_root(self.root)
        self.kernel = KernelTree(base).load("nvidia", "nvidia-uvm")
        (self.root / "dev").mkdir(parents=True)

    def with_dev_root(self, dev_root: Path) -> DriverRoots:
        return DriverRoots(
            driver_root=Path("/run/nvidia/driver"),
            dev_root=Path("/run/nvidia/driver"),
            container_driver_root=self.root,
            container_dev_root=dev_root,
        )

    def path(self, known: Known) -> Path:
        return self.root / "dev" / known.name

    def add_tool(self) -> None:
        tool = self.root / "usr/bin/nvidia-modprobe"
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text("#!/bin/sh\n")

    def make(self, maker: NodeMaker, known: Known, roots: DriverRoots | None = None) -> str:
        return maker.make(known, roots or self.roots, self.path(known).exists)

    def facts(self) -> KernelDevices:
        return KernelDevices(self.kernel.proc, self.kernel.sys)


class Tool:
    """Stands in for runs of nvidia-modprobe, and remembers them."""

    def __init__(self, effect: Callable[[], object] = lambda: None, code: int = 0, output: str = "") -> None:
        self.calls: list[list[str]] = []
        self._effect = effect
        self._answer = Finished(code, output)

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Finished:
        self.calls.append(list(command))
        self._effect()
        return self._answer


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def real_nodes(tmp_path: Path) -> None:
    """The test is skipped where this process may not make device nodes."""
    probe = tmp_path / "probe"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"device nodes cannot be made here: {error.strerror}")
    probe.unlink()


def _numbers(path: Path) -> tuple[int, int]:
    found = path.stat()
    assert stat.S_ISCHR(found.st_mode)
    return os.major(found.st_rdev), os.minor(found.st_rdev)


@pytest.mark.usefixtures("real_nodes")
@pytest.mark.parametrize(
    ("known", "numbers"),
    [(GPU, (195, 0)), (gpu_node(3, BUS_ID), (195, 3)), (CTL, (195, 255)), (UVM, (238, 0))],
    ids=lambda value: value.name if isinstance(value, Known) else "",
)
def test_node_gets_the_kernels_numbers_and_is_open_to_all(node: Node, known: Known, numbers: tuple[int, int]) -> None:
    assert node.make(NodeMaker(node.facts()), known) == ""

    assert _numbers(node.path(known)) == numbers
    assert stat.S_IMODE(node.path(known).stat().st_mode) == 0o666
    assert os.listdir(node.root / "dev") == [known.name]


@pytest.mark.usefixtures("real_nodes")
def test_node_gets_owner_and_mode_that_the_module_asks_for(node: Node) -> None:
    node.kernel.parameters(DeviceFileUID=7, DeviceFileGID=44, DeviceFileMode=432)

    assert node.make(NodeMaker(node.facts()), GPU) == ""

    found = node.path(GPU).stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (7, 44, 0o660)


@pytest.mark.usefixtures("real_nodes")
def test_node_of_an_earlier_load_is_replaced(node: Node) -> None:
    os.mknod(node.path(UVM), stat.S_IFCHR | 0o666, os.makedev(511, 0))

    assert NodeMaker(node.facts()).make(UVM, node.roots, lambda: _numbers(node.path(UVM)) == (238, 0)) == ""

    assert _numbers(node.path(UVM)) == (238, 0)


def test_simulated_node_gets_a_placeholder_where_nodes_cannot_be_made(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forbid(monkeypatch, errno.EPERM)

    assert node.make(NodeMaker(node.facts(), placeholders=True), GPU) == ""

    assert node.path(GPU).is_file()


def test_nodes_half_made_by_earlier_runs_are_swept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    _forbid(monkeypatch, errno.EPERM)
    (node.root / "dev/.nvidia0.left").mkdir()
    (node.root / f"dev/.nvidia0.{os.getpid()}").touch()

    assert node.make(NodeMaker(node.facts(), placeholders=True), GPU) == ""

    assert os.listdir(node.root / "dev") == ["nvidia0"]


def _forbid(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(code, os.strerror(code)) if code != errno.EPERM else PermissionError(code, os.strerror(code))

    monkeypatch.setattr(os, "mknod", refuse)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EPERM], ids=["read-only", "not privileged"])
def test_dev_root_that_cannot_be_written_is_told_with_the_remedy(
    node: Node, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    _forbid(monkeypatch, code)

    why = node.make(NodeMaker(node.facts()), UVM)

    assert why.startswith(f"mknod: {os.strerror(code)}; the driver must run privileged on a writable dev root, ")
    assert why.endswith("make it on the host: mknod -m 666 /run/nvidia/driver/dev/nvidia-uvm c 238 0")
    assert os.listdir(node.root / "dev") == []


def test_module_that_is_not_loaded_is_named_with_the_remedy(node: Node) -> None:
    node.kernel.unload("nvidia-uvm")

    why = node.make(NodeMaker(node.facts()), UVM)

    assert why == (
        f"{node.kernel.proc}/devices shows no device of the kernel module nvidia-uvm: "
        "load it on the host, e.g. modprobe nvidia-uvm"
    )


def test_node_is_left_to_others_where_the_module_says_so(node: Node) -> None:
    node.kernel.parameters(ModifyDeviceFiles=0)

    why = node.make(NodeMaker(node.facts()), GPU)

    assert why.startswith("the nvidia module's parameter ModifyDeviceFiles is 0")
    assert why.endswith("mknod -m 666 /run/nvidia/driver/dev/nvidia0 c 195 0")
    assert not node.path(GPU).exists()


def test_gpu_that_was_numbered_anew_gets_no_node_of_its_old_number(node: Node) -> None:
    node.kernel.gpu(BUS_ID, 1)

    assert "GPU 0000:01:00.0 has minor number 1 now" in node.make(NodeMaker(node.facts()), GPU)
    assert not node.path(GPU).exists()


@pytest.mark.parametrize(
    ("known", "arguments"),
    [(GPU, ["-c", "0"]), (CTL, ["-c", "255"]), (UVM, ["-u", "-c", "0"]), (MODESET, ["-m"])],
    ids=["GPU", "control", "UVM", "modeset"],
)
def test_nvidia_modprobe_is_asked_first_inside_the_driver_root(node: Node, known: Known, arguments: list[str]) -> None:
    node.add_tool()
    tool = Tool(effect=node.path(known).touch)

    assert node.make(NodeMaker(node.facts(), run=tool), known) == ""

    assert tool.calls == [[shutil.which("chroot"), str(node.root), "/usr/bin/nvidia-modprobe", *arguments]]
    assert node.path(known).is_file()


def test_nvidia_modprobe_may_load_the_module_that_mknod_needs(node: Node) -> None:
    node.add_tool()
    node.kernel.unload("nvidia-uvm")
    tool = Tool(effect=lambda: node.kernel.load("nvidia-uvm"))

    assert node.make(NodeMaker(node.facts(), placeholders=True, run=tool), UVM) == ""

    assert node.path(UVM).exists()


def test_nvidia_modprobe_is_not_asked_where_it_would_make_nodes_elsewhere(node: Node, tmp_path: Path) -> None:
    node.add_tool()
    (tmp_path / "other/dev").mkdir(parents=True)
    tool = Tool()

    node.make(NodeMaker(node.facts(), placeholders=True, run=tool), GPU, node.with_dev_root(tmp_path / "other"))

    assert tool.calls == []


def test_nvidia_modprobe_of_a_driver_in_a_folder_of_its_own_works_on_the_hosts_dev(node: Node) -> None:
    node.add_tool()
    made: list[bool] = []
    tool = Tool(effect=lambda: made.append(True))

    why = NodeMaker(node.facts(), run=tool).make(GPU, node.with_dev_root(Path("/")), lambda: bool(made))

    assert (why, tool.calls) == ("", [[str(node.root / "usr/bin/nvidia-modprobe"), "-c", "0"]])


def test_node_is_made_though_nvidia_modprobe_fails(node: Node) -> None:
    node.add_tool()

    assert node.make(NodeMaker(node.facts(), placeholders=True, run=Tool(code=1)), GPU) == ""

    assert node.path(GPU).exists()


def test_failure_of_nvidia_modprobe_is_told_with_its_output(node: Node) -> None:
    node.add_tool()
    node.kernel.unload("nvidia-uvm")
    tool = Tool(code=1, output="modprobe: FATAL:\n\tModule nvidia-uvm not found\x1b in directory /lib/modules\n")

    why = node.make(NodeMaker(node.facts(), run=tool), UVM)

    assert why.startswith(
        "nvidia-modprobe failed with exit code 1: "
        "modprobe: FATAL: Module nvidia-uvm not found in directory /lib/modules; "
    )


def _hang() -> None:
    raise TimeoutError("no end within 10 s")


def test_hanging_nvidia_modprobe_is_left_alone_for_a_while(node: Node) -> None:
    node.add_tool()
    node.kernel.unload("nvidia-uvm")
    now = [100.0]
    tool = Tool(effect=_hang)
    maker = NodeMaker(node.facts(), run=tool, clock=lambda: now[0])

    first, second = node.make(maker, UVM), node.make(maker, UVM)
    now[0] += 61
    node.make(maker, UVM)

    assert first.startswith("nvidia-modprobe was ended: no end within 10 s; ")
    assert second.startswith(f"{node.kernel.proc}/devices shows no device")
    assert len(tool.calls) == 2


def test_node_that_somebody_else_has_made_meanwhile_is_left_as_it_is(node: Node) -> None:
    node.add_tool()
    node.path(GPU).write_text("theirs")
    tool = Tool()

    assert node.make(NodeMaker(node.facts(), run=tool), GPU) == ""

    assert (tool.calls, node.path(GPU).read_text()) == ([], "theirs")


def _copy_program(root: Path, program: str) -> None:
    """A program and the libraries it is linked to, so that it runs with ``root`` as its ``/``."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=30).stdout
    for path in [program, *(word for word in listed.split() if word.startswith("/"))]:
        copy = root / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), copy)


@pytest.mark.usefixtures("real_nodes")
def test_nvidia_modprobe_sees_the_driver_root_as_its_own(node: Node) -> None:
    for program in ("/bin/sh", "/usr/bin/mknod"):
        _copy_program(node.root, program)
    node.add_tool()
    tool = node.root / "usr/bin/nvidia-modprobe"
    tool.write_text('#!/bin/sh\n[ "$*" = "-u -c 0" ] || exit 1\n/usr/bin/mknod /dev/nvidia-uvm c 238 7\n')
    tool.chmod(0o755)

    assert node.make(NodeMaker(node.facts()), UVM) == ""

    assert _numbers(node.path(UVM)) == (238, 7)


def test_uvm_is_open_to_all_though_the_nvidia_module_wants_its_own_nodes_closed(node: Node) -> None:
    node.kernel.parameters(DeviceFileMode=384, ModifyDeviceFiles=0)

    assert UVM.module == NVIDIA_UVM
    assert node.make(NodeMaker(node.facts(), placeholders=True), UVM) == ""
