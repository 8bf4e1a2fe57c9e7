from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.spec import DeviceNode
from dra_driver.model.errors import CdiError
from tests.builders import make_gpu, make_mig
from tests.driver_tree import DriverTree

MIG = make_mig(make_gpu(0, mig_enabled=True), gpu_instance_id=7, compute_instance_id=0)


def _proc(base: Path, devices: str = "Character devices:\n195 nvidia\n235 nvidia-caps\n", modes: str = "292") -> Path:
    """A /proc with the capabilities of one MIG device."""
    proc = base / "proc"
    instance = proc / "driver/nvidia/capabilities/gpu0/mig/gi7"
    (instance / "ci0").mkdir(parents=True)
    (instance / "access").write_text(f"DeviceFileMinor: 66\nDeviceFileMode: {modes}\nDeviceFileModify: 1\n")
    (instance / "ci0/access").write_text(f"DeviceFileMinor: 67\nDeviceFileMode: {modes}\nDeviceFileModify: 1\n")
    (proc / "devices").write_text(devices)
    return proc


def test_placeholder_gets_the_numbers_of_the_real_node(tree: DriverTree) -> None:
    assert DriverFiles(tree.roots, placeholders=True).device_nodes(make_gpu(0)) == (
        DeviceNode(path="/dev/nvidia0", host_path="/dev/nvidia0", major=195, minor=0),
    )


def test_placeholder_is_refused_on_a_real_node(tree: DriverTree) -> None:
    with pytest.raises(CdiError, match=r"^device node /dev/nvidia0 .* is a regular file, must be a character device$"):
        DriverFiles(tree.roots).device_nodes(make_gpu(0))


def test_directory_is_no_device_node(tree: DriverTree) -> None:
    tree.node("nvidia4").mkdir()

    with pytest.raises(CdiError, match="is a directory, must be a character device"):
        DriverFiles(tree.roots, placeholders=True).device_nodes(make_gpu(4))


def test_missing_node_is_named_by_its_host_path_and_where_it_is_seen(tree: DriverTree) -> None:
    with pytest.raises(CdiError) as caught:
        DriverFiles(tree.roots, placeholders=True).device_nodes(make_gpu(1))

    assert str(caught.value).startswith(f"device node /dev/nvidia1 (seen here as {tree.node('nvidia1')}) is missing")


def test_node_that_is_made_later_is_found(tree: DriverTree) -> None:
    files = DriverFiles(tree.roots, placeholders=True)
    with pytest.raises(CdiError):
        files.device_nodes(make_gpu(1))

    tree.make_nodes("nvidia1")

    assert [node.path for node in files.device_nodes(make_gpu(1))] == ["/dev/nvidia1"]


def test_link_that_leads_nowhere_is_a_missing_node(tree: DriverTree) -> None:
    tree.node("nvidia1").symlink_to("nowhere")

    with pytest.raises(CdiError, match="is missing"):
        DriverFiles(tree.roots, placeholders=True).device_nodes(make_gpu(1))


def test_link_to_a_node_is_followed_inside_the_dev_root(tree: DriverTree) -> None:
    tree.node("nvidia1").symlink_to("/dev/nvidia0")

    nodes = DriverFiles(tree.roots, placeholders=True).device_nodes(make_gpu(1))
    assert [node.host_path for node in nodes] == ["/dev/nvidia1"]


def test_real_node_is_described_as_it_is(tree: DriverTree, make_character_device: Callable[..., None]) -> None:
    make_character_device(tree.node("nvidia3"), 195, 3, mode=0o660)

    (node,) = DriverFiles(tree.roots).device_nodes(make_gpu(3))

    assert (node.major, node.minor, node.file_mode) == (195, 3, 0o660)


@pytest.mark.parametrize(("major", "minor"), [(1, 3), (195, 4)], ids=["null device", "another GPU"])
def test_other_device_in_the_place_of_a_node_is_refused(
    tree: DriverTree, make_character_device: Callable[..., None], major: int, minor: int
) -> None:
    make_character_device(tree.node("nvidia3"), major, minor)

    with pytest.raises(CdiError, match=f"is character device {major}:{minor}, must be 195:3"):
        DriverFiles(tree.roots).device_nodes(make_gpu(3))


def test_uvm_may_have_any_major(tree: DriverTree, make_character_device: Callable[..., None]) -> None:
    make_character_device(tree.node("nvidia-uvm"), 238, 0)

    edits = DriverFiles(tree.roots, placeholders=True).common("580.159.04")

    assert {node.path: node.major for node in edits.device_nodes}["/dev/nvidia-uvm"] == 238


def test_mig_device_has_its_parents_node_and_two_capabilities(tree: DriverTree, tmp_path: Path) -> None:
    files = DriverFiles(tree.roots, placeholders=True, proc=_proc(tmp_path))

    assert [(node.path, node.major, node.minor, node.file_mode) for node in files.device_nodes(MIG)] == [
        ("/dev/nvidia0", 195, 0, 0o666),
        ("/dev/nvidia-caps/nvidia-cap66", 235, 66, 0o444),
        ("/dev/nvidia-caps/nvidia-cap67", 235, 67, 0o444),
    ]


def test_capability_nodes_need_not_exist_on_the_host(
    tree: DriverTree, tmp_path: Path, make_character_device: Callable[..., None]
) -> None:
    make_character_device(tree.node("nvidia0"), 195, 0)

    nodes = DriverFiles(tree.roots, proc=_proc(tmp_path)).device_nodes(MIG)

    assert [node.host_path for node in nodes[1:]] == [
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    ]


def test_simulated_mig_device_gets_the_minors_that_the_driver_would_give(tree: DriverTree) -> None:
    nodes = DriverFiles(tree.roots, placeholders=True).device_nodes(MIG)

    assert [node.path for node in nodes[1:]] == ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]


def test_mig_device_that_was_removed_is_refused_with_the_path(
    tree: DriverTree, tmp_path: Path, make_character_device: Callable[..., None]
) -> None:
    make_character_device(tree.node("nvidia0"), 195, 0)
    proc = _proc(tmp_path)
    (proc / "driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access").unlink()

    with pytest.raises(CdiError, match=r"/driver/nvidia/capabilities/gpu0/mig/gi7/ci0/access is missing"):
        DriverFiles(tree.roots, proc=proc).device_nodes(MIG)


def test_mig_device_is_refused_when_the_kernel_has_no_capability_devices(
    tree: DriverTree, tmp_path: Path, make_character_device: Callable[..., None]
) -> None:
    make_character_device(tree.node("nvidia0"), 195, 0)
    proc = _proc(tmp_path, devices="Character devices:\n195 nvidia\n")

    with pytest.raises(CdiError, match=r"/proc/devices: has no character device nvidia-caps"):
        DriverFiles(tree.roots, proc=proc).device_nodes(MIG)


def test_capability_without_a_mode_is_refused_with_the_path(tree: DriverTree, tmp_path: Path) -> None:
    files = DriverFiles(tree.roots, placeholders=True, proc=_proc(tmp_path, modes=""))

    with pytest.raises(CdiError, match="gi7/access: has no DeviceFileMode"):
        files.device_nodes(MIG)
