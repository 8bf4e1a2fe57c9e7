import os
import shutil
from pathlib import Path

import pytest

from dra_driver.doctor.findings import Status
from dra_driver.model.errors import CdiError
from tests.driver_tree import GPU_OPERATOR, VERSION, driver_files
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

    assert version.name in found.warnings["driver"]
    assert "root" not in found.of("driver").remedy
    assert found.of("containerd").status is Status.OK


@pytest.mark.parametrize("made", ["empty", "pipe", "directory", "dangling", "outside", "32-bit"])
@pytest.mark.parametrize("library", ["libcuda", "libnvidia-ml"])
def test_library_that_claims_cannot_use_is_a_problem_with_the_drivers_reason(
    tmp_path: Path, run: Examine, made: str, library: str
) -> None:
    tree = healthy(tmp_path / "host")
    file = tree.driver.library(library)
    whole = file.read_bytes()
    (tmp_path / file.name).write_bytes(whole)
    file.unlink()
    match made:
        case "empty":
            file.touch()
        case "pipe":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case "dangling":
            file.symlink_to("nowhere")
        case "outside":
            file.symlink_to(tmp_path / file.name)
        case "32-bit":
            file.write_bytes(whole[:4] + b"\1" + whole[5:])
    with pytest.raises(CdiError):
        driver_files(tree.driver.roots).common(VERSION)

    found = run(tree, Machine())

    reason = {"empty": "no ELF file", "32-bit": "an ELF file for another kind of machine"}.get(
        made, "no file, or a link"
    )
    assert f"lacks {library}.so" in found.problems["driver"]
    assert f"{file.name}: {reason}" in found.problems["driver"]


def test_driver_without_any_library_that_can_be_used_is_told_with_the_reasons(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    for library in ("libcuda", "libnvidia-ml"):
        tree.driver.library(library).write_text("")

    message = run(tree, Machine()).problems["driver"]

    assert message.startswith("the driver under / (libcuda.so.")
    assert message.endswith("lacks libnvidia-ml.so and libcuda.so")


@pytest.mark.parametrize("name", ["nvidia-modeset", "nvidia-uvm-tools"])
def test_node_that_claims_can_do_without_must_be_right_if_it_is_there(tmp_path: Path, run: Examine, name: str) -> None:
    tree = healthy(tmp_path)
    node = tree.path(f"/dev/{name}")
    node.unlink(missing_ok=True)
    assert run(tree, Machine()).problems == {}
    node.mkdir()
    with pytest.raises(CdiError):
        driver_files(tree.driver.roots).common(VERSION)

    assert f"/dev/{name} (seen here as {node}) is a directory" in run(tree, Machine()).problems["device-nodes"]


@pytest.mark.parametrize("made", ["file", "link to a file"])
def test_dev_that_is_no_directory_is_a_problem(tmp_path: Path, run: Examine, made: str) -> None:
    tree = healthy(tmp_path)
    shutil.rmtree(tree.path("/dev"))
    tree.add("/dev.txt").path("/dev").symlink_to("dev.txt")
    if made == "file":
        (tree.root / "dev").unlink()
        tree.add("/dev")

    assert run(tree, Machine()).problems["device-nodes"] == "/dev is no directory"
