"""The driver is upgraded, moved or away for a while under a running plugin."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dra_driver.cdi.claim_specs import ClaimSpecs
from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.kernel_devices import KernelDevices
from dra_driver.cdi.node_maker import NodeMaker
from dra_driver.model.errors import CdiError
from tests.builders import make_gpu
from tests.driver_tree import GPU_OPERATOR, VERSION, DriverTree, driver_tree
from tests.kernel_tree import KernelTree

NEXT = "590.10.01"


class Host:
    """A host with a driver container, and a plugin that runs through whatever happens to it."""

    def __init__(self, base: Path) -> None:
        self.tree = driver_tree(base, GPU_OPERATOR)
        self.kernel = KernelTree(base / "kernel").load("nvidia", "nvidia-uvm").version(VERSION)
        self.seen_version = VERSION
        kernel = KernelDevices(self.kernel.proc, self.kernel.sys)
        nodes = DeviceNodes(self.tree.roots, kernel, NodeMaker(kernel, placeholders=True), placeholders=True)
        files = DriverFiles(self.tree.roots, nodes)
        self.specs = ClaimSpecs(CdiDirectory(base / "cdi"), files, lambda: self.seen_version)
        self._claims = 0

    def hosts(self) -> set[str]:
        """Host paths in the spec of another claim."""
        self._claims += 1
        document = yaml.safe_load(self.specs.plan(f"claim-{self._claims}", [make_gpu(0)]).text)
        return {mount["hostPath"] for mount in document["containerEdits"]["mounts"]}

    def major_of_uvm(self) -> int:
        """As containers get it."""
        common = self.specs.plan("claim-uvm", [make_gpu(0)]).common
        return {node.path: node.major for node in common.device_nodes}["/dev/nvidia-uvm"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def _library(version: str, directory: str = "usr/lib/x86_64-linux-gnu") -> str:
    return f"/run/nvidia/driver/{directory}/libcuda.so.{version}"


def test_claims_are_refused_while_the_driver_container_is_away_and_whole_when_it_is_back(
    host: Host, tmp_path: Path
) -> None:
    before = host.hosts()
    host.tree.root.rename(tmp_path / "kept")
    host.tree.root.mkdir()

    with pytest.raises(CdiError, match=r"/run/nvidia/driver"):
        host.hosts()
    with pytest.raises(CdiError, match=r"/run/nvidia/driver"):
        host.hosts()

    host.tree.root.rmdir()
    (tmp_path / "kept").rename(host.tree.root)
    assert host.hosts() == before


def test_half_installed_driver_is_no_driver(host: Host) -> None:
    host.hosts()
    host.tree.library("libnvidia-ml").unlink()

    with pytest.raises(CdiError, match=rf"^libnvidia-ml\.so\.{VERSION} of the running driver not found"):
        host.hosts()

    host.tree.install()
    assert _library(VERSION) in host.hosts()


@pytest.mark.parametrize("half", [b"", b"\x7fELF" + bytes(4)])
def test_library_that_was_half_written_is_taken_when_it_is_whole(host: Host, half: bytes) -> None:
    library = host.tree.library("libnvidia-ptxjitcompiler")
    whole = library.read_bytes()
    library.write_bytes(half)
    path = _library(VERSION).replace("libcuda", "libnvidia-ptxjitcompiler")
    assert path not in host.hosts()

    library.write_bytes(whole)

    assert path in host.hosts()


def test_upgrade_is_refused_in_between_and_then_gives_the_new_drivers_files_alone(host: Host) -> None:
    assert _library(VERSION) in host.hosts()
    host.tree.install(NEXT)
    host.kernel.version(NEXT)

    with pytest.raises(CdiError, match=rf"^the kernel runs NVIDIA driver {NEXT}, the GPUs were last seen under"):
        host.hosts()

    host.seen_version = NEXT
    found = host.hosts()
    assert _library(NEXT) in found
    assert [path for path in found if VERSION in path] == []


def test_files_that_were_upgraded_before_the_kernel_module_are_refused(host: Host) -> None:
    host.hosts()
    shutil.rmtree(host.tree.path("usr"))
    host.tree.install(NEXT)

    with pytest.raises(CdiError, match=rf"libcuda\.so\.{VERSION} .*not found .*found there: libcuda\.so\.{NEXT}"):
        host.hosts()


def test_files_that_moved_are_found_where_they_are(host: Host) -> None:
    host.hosts()
    host.tree.path("usr/lib64").parent.mkdir(exist_ok=True)
    host.tree.path("usr/lib/x86_64-linux-gnu").rename(host.tree.root / "usr/lib64")

    found = host.hosts()
    assert _library(VERSION, "usr/lib64") in found
    assert [path for path in found if "x86_64-linux-gnu" in path] == []


def test_uvm_that_was_loaded_anew_has_its_new_number_in_the_next_claim(host: Host) -> None:
    before = host.major_of_uvm()
    host.kernel.load(nvidia_uvm=511)

    assert (before, host.major_of_uvm()) == (238, 511)


@pytest.mark.parametrize("name", ["nvidia0", "nvidiactl", "nvidia-uvm"])
def test_node_that_vanishes_is_made_again_for_the_next_claim(host: Host, name: str) -> None:
    host.hosts()
    host.tree.node(name).unlink()

    host.hosts()

    assert host.tree.node(name).exists()


def _forget_libraries(tree: DriverTree) -> None:
    tree.library("libcuda").unlink()


def _forget_nodes(tree: DriverTree) -> None:
    shutil.rmtree(tree.dev_root / "dev")


@pytest.mark.parametrize("damage", [_forget_libraries, _forget_nodes])
def test_refusal_fits_an_event(host: Host, damage: Callable[[DriverTree], None]) -> None:
    damage(host.tree)

    with pytest.raises(CdiError) as caught:
        host.hosts()

    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
