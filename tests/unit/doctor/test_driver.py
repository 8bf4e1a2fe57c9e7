from pathlib import Path

import pytest

from dra_driver.doctor.findings import Status
from tests.driver_tree import GPU_OPERATOR, VERSION
from tests.node_tree import NodeTree, healthy
from tests.unit.doctor.conftest import Examine, Machine


def test_upgrade_that_the_kernel_has_not_seen_is_a_problem(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.kernel.version("570.86.15")

    found = run(tree, Machine())

    assert found.problems["driver"] == f"{VERSION} under /, but the kernel runs 570.86.15"
    assert "reboot the node" in found.of("driver").remedy


def test_several_installed_versions_are_fine_if_the_running_one_is_among_them(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).install("570.86.15")

    found = run(tree, Machine()).of("driver")

    assert found.status is Status.OK
    assert found.facts["libraries"]["libnvidia-ml"] == ["570.86.15", VERSION]


def test_driver_without_its_kernel_module_is_told_to_load_it(tmp_path: Path, run: Examine) -> None:
    found = run(NodeTree(tmp_path).install().gpus(), Machine())

    assert "the kernel module nvidia is not loaded" in found.problems["driver"]
    assert "modprobe nvidia" in found.of("driver").remedy
    assert found.of("nvml").message == "not asked, since the driver is not loaded"


def test_installed_driver_is_no_problem_on_a_node_without_gpus(tmp_path: Path, run: Examine) -> None:
    found = run(NodeTree(tmp_path).install(), Machine())

    assert found.of("driver").status is Status.OK
    assert "not loaded, as there is no GPU" in found.of("driver").message


@pytest.mark.parametrize("library", ["libcuda", "libnvidia-ml"])
def test_half_a_driver_is_a_problem(tmp_path: Path, run: Examine, library: str) -> None:
    tree = healthy(tmp_path)
    tree.driver.library(library).unlink()

    assert f"lacks {library}.so" in run(tree, Machine()).problems["driver"]


def test_driver_container_that_is_away_is_no_driver(tmp_path: Path, run: Examine) -> None:
    root = GPU_OPERATOR.driver_root
    tree = NodeTree(tmp_path, layout=GPU_OPERATOR).gpus()

    found = run(tree, Machine(), driver_root=root)

    assert f"no NVIDIA driver under {root}" in found.problems["driver"]
    assert "wait for its driver container" in found.of("driver").remedy


def test_missing_node_of_a_gpu_is_named(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).load_driver(gpus=2).gpus(2)

    found = run(tree, None).of("device-nodes")

    assert found.status is Status.WARNING
    assert list(found.facts["wrong"].values()) == ["is missing"]
    assert "/dev/nvidia1" in found.message


def test_missing_nodes_are_a_problem_where_the_driver_makes_none(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.path("/dev/nvidia-uvm").unlink()

    found = run(tree, Machine(), makes_nodes=False)

    assert set(found.problems) == {"device-nodes"}
    assert "set --device-nodes=create" in found.of("device-nodes").remedy


@pytest.mark.parametrize("with_tool", [True, False], ids=["nvidia-modprobe is there", "nothing can load it"])
def test_module_that_is_not_loaded_is_a_problem_unless_the_driver_can_have_it_loaded(
    tmp_path: Path, run: Examine, with_tool: bool
) -> None:
    tree = healthy(tmp_path)
    tree.kernel.unload("nvidia-uvm")
    tree.path("/dev/nvidia-uvm").unlink()
    if with_tool:
        tree.add("/usr/bin/nvidia-modprobe")

    found = run(tree, Machine())

    assert found.of("device-nodes").status is (Status.WARNING if with_tool else Status.PROBLEM)


def test_what_is_no_device_in_the_place_of_a_node_is_a_problem(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.path("/dev/nvidia0").unlink()
    tree.path("/dev/nvidia0").mkdir()

    found = run(tree, Machine())

    assert "is a directory, must be a character device" in found.problems["device-nodes"]
    assert "move away" in found.of("device-nodes").remedy


def test_examination_makes_no_node(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path).install().gpus().load_driver()

    run(tree, Machine())

    assert list(tree.path("/dev").iterdir()) == []


def test_kernels_files_that_cannot_be_read_are_told_and_the_rest_is_examined(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    version = tree.path("/sys/module/nvidia/version")
    version.unlink()
    version.mkdir()

    found = run(tree, Machine())

    assert found.warnings["driver"] == f"cannot be examined: {version}: Is a directory"
    assert found.of("containerd").status is Status.OK
