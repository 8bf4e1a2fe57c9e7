import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.kernel_devices import KernelDevices
from dra_driver.cdi.node_maker import NodeMaker
from dra_driver.cdi.spec import DeviceNode, Edits
from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import CdiError
from tests.builders import make_gpu, make_mig
from tests.driver_tree import GPU_OPERATOR, VERSION, DriverTree
from tests.kernel_tree import KernelTree

MakeDevice = Callable[..., None]
GPU = make_gpu(0)
MIG = make_mig(make_gpu(0, mig_enabled=True), gpu_instance_id=7, compute_instance_id=0)
COMMON = ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")


@pytest.fixture
def kernel(tree: DriverTree) -> KernelTree:
    """The kernel of the host: nvidia, nvidia-uvm and nvidia-caps are loaded."""
    return KernelTree(tree.root).load("nvidia", "nvidia-uvm", "nvidia-caps")


def _facts(kernel: KernelTree) -> KernelDevices:
    return KernelDevices(kernel.proc, kernel.sys)


def _nodes(tree: DriverTree, kernel: KernelTree, placeholders: bool = True) -> DeviceNodes:
    """Nodes none of which is made."""
    return DeviceNodes(tree.roots, _facts(kernel), placeholders=placeholders)


def _making(tree: DriverTree, kernel: KernelTree) -> DeviceNodes:
    """Nodes that are made, as placeholders if need be."""
    facts = _facts(kernel)
    return DeviceNodes(tree.roots, facts, NodeMaker(facts, placeholders=True), placeholders=True)


def _paths(nodes: tuple[DeviceNode, ...]) -> list[str]:
    return [node.path for node in nodes]


def test_placeholder_gets_the_numbers_of_the_real_node(tree: DriverTree, kernel: KernelTree) -> None:
    assert _nodes(tree, kernel).of(GPU) == (
        DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia0", major=195, minor=0),
    )


def test_common_nodes_are_those_of_the_running_kernel(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.load(nvidia_uvm=511)

    assert [(n.path, n.major, n.minor) for n in _nodes(tree, kernel).common(VERSION)] == [
        ("/dev/nvidia-uvm", 511, 0),
        ("/dev/nvidia-uvm-tools", 511, 1),
        ("/dev/nvidiactl", 195, 255),
    ]


def test_placeholder_is_refused_on_a_real_node(tree: DriverTree, kernel: KernelTree) -> None:
    with pytest.raises(CdiError, match=r"^device node /dev/nvidia0 .* is a regular file, must be a character device"):
        _nodes(tree, kernel, placeholders=False).of(GPU)


def test_what_is_no_device_is_never_replaced(tree: DriverTree, kernel: KernelTree) -> None:
    tree.node("nvidia4").mkdir()

    with pytest.raises(CdiError, match="is a directory, must be a character device: move it away"):
        _making(tree, kernel).of(make_gpu(4))

    assert tree.node("nvidia4").is_dir()


def test_missing_node_is_named_by_its_host_path_and_where_it_is_seen(tree: DriverTree, kernel: KernelTree) -> None:
    with pytest.raises(CdiError) as caught:
        _nodes(tree, kernel).of(make_gpu(1))

    assert str(caught.value).startswith(f"device node /dev/nvidia1 (seen here as {tree.node('nvidia1')}) is missing")
    assert "set --device-nodes=create" in str(caught.value)


def test_node_that_is_made_later_is_found(tree: DriverTree, kernel: KernelTree) -> None:
    nodes = _nodes(tree, kernel)
    with pytest.raises(CdiError):
        nodes.of(make_gpu(1))

    tree.make_nodes("nvidia1")

    assert _paths(nodes.of(make_gpu(1))) == ["/dev/nvidia1"]


def test_link_that_leads_nowhere_is_a_missing_node(tree: DriverTree, kernel: KernelTree) -> None:
    tree.node("nvidia1").symlink_to("nowhere")

    with pytest.raises(CdiError, match="is missing"):
        _nodes(tree, kernel).of(make_gpu(1))


def test_link_to_a_node_is_followed_inside_the_dev_root(tree: DriverTree, kernel: KernelTree) -> None:
    tree.node("nvidia1").symlink_to("/dev/nvidia0")

    assert [node.host_path for node in _nodes(tree, kernel).of(make_gpu(1))] == ["/dev/nvidia1"]


def test_real_node_is_described_as_it_is(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(tree.node("nvidia3"), 195, 3, mode=0o660)

    (node,) = _nodes(tree, kernel, placeholders=False).of(make_gpu(3))

    assert (node.major, node.minor, node.file_mode) == (195, 3, 0o660)


@pytest.mark.parametrize(("major", "minor"), [(1, 3), (195, 4)], ids=["null device", "another GPU"])
def test_other_device_in_the_place_of_a_node_is_refused_and_stays(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice, major: int, minor: int
) -> None:
    make_character_device(tree.node("nvidia3"), major, minor)

    with pytest.raises(CdiError, match=f"is character device {major}:{minor}, must be 195:3"):
        _making(tree, kernel).of(make_gpu(3))

    assert tree.node("nvidia3").stat().st_rdev == os.makedev(major, minor)


# Nodes that are made.


def test_fresh_node_gets_all_nodes_of_its_first_claim(tree: DriverTree, kernel: KernelTree) -> None:
    for name in ("nvidia0", *COMMON):
        tree.node(name).unlink()
    nodes = _making(tree, kernel)

    assert _paths((*nodes.of(GPU), *nodes.common(VERSION))) == ["/dev/nvidia0", *(f"/dev/{name}" for name in COMMON)]
    assert all(tree.node(name).exists() for name in ("nvidia0", *COMMON))


def test_node_that_was_made_is_a_device_on_a_real_node(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(tree.node("probe"), 1, 3)
    tree.node("nvidia0").unlink()
    facts = _facts(kernel)

    (node,) = DeviceNodes(tree.roots, facts, NodeMaker(facts)).of(GPU)

    assert (node.major, node.minor, node.file_mode) == (195, 0, 0o666)
    assert stat.S_ISCHR(tree.node("nvidia0").stat().st_mode)


def test_modeset_node_is_made_only_where_its_module_is_loaded(tree: DriverTree, kernel: KernelTree) -> None:
    nodes = _making(tree, kernel)
    before = _paths(nodes.common(VERSION))

    kernel.load("nvidia-modeset")

    assert "/dev/nvidia-modeset" not in before
    assert "/dev/nvidia-modeset" in _paths(nodes.common(VERSION))


def test_modeset_node_is_no_must(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.load("nvidia-modeset")

    assert _paths(_nodes(tree, kernel).common(VERSION)) == [f"/dev/{name}" for name in COMMON]


@pytest.mark.parametrize("module", ["nvidia", "nvidia-uvm"])
def test_claim_on_a_node_without_the_module_is_refused_with_the_remedy(
    tree: DriverTree, kernel: KernelTree, module: str
) -> None:
    kernel.unload(module)
    for name in ("nvidiactl", "nvidia-uvm"):
        tree.node(name).unlink()

    with pytest.raises(CdiError) as caught:
        _making(tree, kernel).common(VERSION)

    assert f"load it on the host, e.g. modprobe {module}" in str(caught.value)
    assert "is missing, and the driver cannot make it: " in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_uvm_node_of_an_earlier_load_is_made_anew(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(tree.node("nvidia-uvm"), 511, 0)
    make_character_device(tree.node("nvidia-uvm-tools"), 511, 1)

    made = _making(tree, kernel).common(VERSION)

    assert [node.major for node in made] == [238, 238, 195]
    assert tree.node("nvidia-uvm").stat().st_rdev == os.makedev(238, 0)


def test_uvm_node_of_an_earlier_load_is_refused_where_none_may_be_made(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(tree.node("nvidia-uvm"), 511, 0)

    with pytest.raises(CdiError, match=r"is character device 511:0, must be 238:0 since nvidia-uvm was loaded anew, "):
        _nodes(tree, kernel).common(VERSION)


def test_node_whose_module_is_not_loaded_is_refused(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(tree.node("nvidia-uvm"), 238, 0)
    kernel.unload("nvidia-uvm")

    with pytest.raises(CdiError, match=r"nvidia-uvm .*is there, but the kernel module nvidia-uvm is not loaded, "):
        _making(tree, kernel).common(VERSION)


def test_nodes_are_trusted_where_the_kernels_table_does_not_show_the_driver(
    tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(tree.node("nvidia-uvm"), 248, 0)
    make_character_device(tree.node("nvidia-uvm-tools"), 248, 1)
    kernel.unload("nvidia", "nvidia-uvm")

    assert [node.major for node in _nodes(tree, kernel).common(VERSION)] == [248, 248, 195]


# A driver that is replaced.


def test_claim_is_refused_while_the_kernel_runs_another_driver(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.version("590.10.01")
    nodes = _nodes(tree, kernel)

    with pytest.raises(CdiError, match=rf"^the kernel runs NVIDIA driver 590\.10\.01, .*last seen under {VERSION}: "):
        nodes.common(VERSION)

    assert _paths(nodes.common("590.10.01")) == [f"/dev/{name}" for name in COMMON]


def test_dev_of_a_driver_container_counts_from_the_moment_it_is_there(tmp_path: Path) -> None:
    operator = DriverTree(tmp_path, GPU_OPERATOR).with_nodes()
    (tmp_path / "host/dev").mkdir(parents=True)
    for name in ("nvidia0", *COMMON):
        (tmp_path / "host/dev" / name).touch()
    host = replace(operator.roots, dev_root=Path("/"), container_dev_root=tmp_path / "host")
    found: list[DriverRoots] = [host]
    nodes = DeviceNodes(lambda: found[-1], _facts(KernelTree(operator.root)), placeholders=True)
    before = nodes.of(GPU)

    found.append(operator.roots)

    assert [n.host_path for n in (*before, *nodes.of(GPU))] == ["/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0"]


# MIG.


def test_mig_device_has_its_parents_node_and_two_capabilities(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.load(nvidia_caps=235).mig(0, 7, 66).mig(0, 7, 67, compute=0)

    assert [(n.path, n.major, n.minor, n.file_mode) for n in _nodes(tree, kernel).of(MIG)] == [
        ("/dev/nvidia0", 195, 0, 0o666),
        ("/dev/nvidia-caps/nvidia-cap66", 235, 66, 0o444),
        ("/dev/nvidia-caps/nvidia-cap67", 235, 67, 0o444),
    ]


def test_capability_nodes_need_not_exist_on_the_host(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.mig(0, 7, 66).mig(0, 7, 67, compute=0)

    assert [node.host_path for node in _nodes(tree, kernel).of(MIG)[1:]] == [
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    ]


def test_mig_device_that_was_removed_is_refused_with_the_path(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.mig(0, 7, 66)

    with pytest.raises(CdiError, match=r"/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access is missing"):
        _nodes(tree, kernel).of(MIG)


def test_mig_device_is_refused_when_the_kernel_has_no_capability_devices(tree: DriverTree, kernel: KernelTree) -> None:
    kernel.unload("nvidia-caps").mig(0, 7, 66).mig(0, 7, 67, compute=0)

    with pytest.raises(CdiError, match=r"/proc/devices: has no character device nvidia-caps"):
        _nodes(tree, kernel).of(MIG)


@pytest.mark.parametrize("mode", ["", "r--r--r--"])
def test_capability_without_a_mode_is_refused_with_the_path(tree: DriverTree, kernel: KernelTree, mode: str) -> None:
    kernel.mig(0, 7, 66, mode=mode)

    with pytest.raises(CdiError, match="gi7/access: has no DeviceFileMode"):
        _nodes(tree, kernel).of(MIG)


# DRM.


@pytest.fixture
def with_drm(tree: DriverTree, kernel: KernelTree, make_character_device: MakeDevice) -> DriverTree:
    """A host with nvidia-drm: the GPU is card1, another card is card0."""
    kernel.drm(GPU.pci_bus_id, card1="226:1", renderD129="226:129").drm("0000:00:02.0", card0="226:0")
    tree.node("dri/by-path").mkdir(parents=True)
    for name, minor in {"card0": 0, "card1": 1, "renderD129": 129}.items():
        make_character_device(tree.node(f"dri/{name}"), 226, minor, mode=0o660)
    for end, name in {"card": "card1", "render": "renderD129"}.items():
        tree.node(f"dri/by-path/pci-{GPU.pci_bus_id}-{end}").symlink_to(f"../{name}")
    return tree


def test_gpu_with_drm_nodes_brings_its_own_and_no_other(with_drm: DriverTree, kernel: KernelTree) -> None:
    assert [(n.path, n.major, n.minor, n.file_mode) for n in _nodes(with_drm, kernel).of(GPU)] == [
        ("/dev/nvidia0", 195, 0, 0o666),
        ("/dev/dri/card1", 226, 1, 0o660),
        ("/dev/dri/by-path/pci-0000:01:00.0-card", 226, 1, 0o660),
        ("/dev/dri/renderD129", 226, 129, 0o660),
        ("/dev/dri/by-path/pci-0000:01:00.0-render", 226, 129, 0o660),
    ]


def test_link_by_path_that_the_host_has_not_or_that_leads_elsewhere_is_left_out(
    with_drm: DriverTree, kernel: KernelTree
) -> None:
    with_drm.node(f"dri/by-path/pci-{GPU.pci_bus_id}-card").unlink()
    render = with_drm.node(f"dri/by-path/pci-{GPU.pci_bus_id}-render")
    render.unlink()
    render.symlink_to("../card0")

    assert _paths(_nodes(with_drm, kernel).of(GPU)) == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD129"]


def test_runtime_takes_a_node_by_path(with_drm: DriverTree, kernel: KernelTree) -> None:
    edits = Edits(device_nodes=_nodes(with_drm, kernel).of(GPU))

    assert edits.problems == ()
    by_path = [node for node in edits.document()["deviceNodes"] if "by-path" in node["path"]]
    assert [node["hostPath"] for node in by_path] == ["/dev/dri/card1", "/dev/dri/renderD129"]


def test_drm_nodes_that_the_host_has_not_are_left_out(with_drm: DriverTree, kernel: KernelTree) -> None:
    with_drm.node("dri/card1").unlink()

    assert _paths(_nodes(with_drm, kernel).of(GPU))[:2] == ["/dev/nvidia0", "/dev/dri/renderD129"]


def test_drm_node_that_is_another_card_is_refused(
    with_drm: DriverTree, kernel: KernelTree, make_character_device: MakeDevice
) -> None:
    make_character_device(with_drm.node("dri/card1"), 226, 0)

    with pytest.raises(CdiError, match=r"^device node /dev/dri/card1 .* is not character device 226:1, which GPU "):
        _nodes(with_drm, kernel).of(GPU)


def test_mig_device_gets_no_drm_nodes_of_the_whole_card(with_drm: DriverTree, kernel: KernelTree) -> None:
    kernel.mig(0, 7, 66).mig(0, 7, 67, compute=0)

    assert [path for path in _paths(_nodes(with_drm, kernel).of(MIG)) if "dri" in path] == []
