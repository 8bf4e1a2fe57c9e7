from pathlib import Path

import pytest

from dra_driver.cdi.kernel_devices import Capability, DrmNode, KernelDevices, Permissions, major_of
from dra_driver.model.errors import CdiError
from tests.kernel_tree import KernelTree

BUS_ID = "0000:3b:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> KernelTree:
    return KernelTree(tmp_path)


def _kernel(tree: KernelTree) -> KernelDevices:
    return KernelDevices(tree.proc, tree.sys)


def test_majors_are_those_of_character_devices_alone(tree: KernelTree) -> None:
    tree.load("nvidia", nvidia_uvm=511)

    assert _kernel(tree).majors() == {"mem": 1, "tty": 4, "nvidia": 195, "nvidia-uvm": 511}


def test_another_file_stands_in_for_the_device_table(tree: KernelTree, tmp_path: Path) -> None:
    tree.load("nvidia")
    (tmp_path / "alt").write_text("Character devices:\n508 nvidia-uvm\n")

    assert KernelDevices(tree.proc, devices=tmp_path / "alt").majors() == {"nvidia-uvm": 508}


def test_kernel_without_a_device_table_has_no_majors(tree: KernelTree) -> None:
    assert _kernel(tree).majors() == {}


@pytest.mark.parametrize("name", ["nvidia", "nvidia-frontend"])
def test_driver_is_found_by_its_name_of_any_time(name: str) -> None:
    assert major_of("nvidia", {"mem": 1, name: 195}) == 195


def test_gpus_minor_number_is_the_drivers(tree: KernelTree) -> None:
    tree.gpu(BUS_ID, 3)

    assert _kernel(tree).minor(BUS_ID) == 3
    assert _kernel(tree).minor("0000:af:00.0") is None


def test_parameters_of_the_module_decide_on_permissions(tree: KernelTree) -> None:
    tree.parameters(DeviceFileUID=1, DeviceFileGID=44, DeviceFileMode=432, ModifyDeviceFiles=0)

    assert _kernel(tree).permissions() == Permissions(uid=1, gid=44, mode=0o660, modify=False)


def test_nodes_are_open_to_all_unless_the_module_says_otherwise(tree: KernelTree) -> None:
    assert _kernel(tree).permissions() == Permissions(uid=0, gid=0, mode=0o666, modify=True)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("sys/module/nvidia/version", "580.159.04\n", id="sysfs"),
        pytest.param(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jul  1 00:00:00\n",
            id="proc",
        ),
        pytest.param(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (me@host)\n",
            id="open module",
        ),
    ],
)
def test_version_of_the_loaded_module_is_read(tree: KernelTree, tmp_path: Path, path: str, text: str) -> None:
    tree.write(tmp_path / path, text)

    assert _kernel(tree).driver_version() == "580.159.04"


def test_module_that_is_not_loaded_has_no_version(tree: KernelTree) -> None:
    assert _kernel(tree).driver_version() is None


def test_capability_is_what_the_instances_file_says(tree: KernelTree) -> None:
    tree.load(nvidia_caps=235).mig(0, 7, 66).mig(0, 7, 69, compute=2, mode="256")

    assert _kernel(tree).capability(0, 7) == Capability(235, 66, 0o444)
    assert _kernel(tree).capability(0, 7, 2) == Capability(235, 69, 0o400)


def test_drivers_list_of_minors_stands_in_where_proc_has_no_capabilities(tree: KernelTree) -> None:
    tree.load("nvidia-caps").list_mig_minors(2)

    assert _kernel(tree).capability(1, 9) == Capability(237, 219, 0o444)
    assert _kernel(tree).capability(1, 9, 3) == Capability(237, 223, 0o444)


def test_instance_without_a_file_is_gone_whatever_the_list_of_minors_says(tree: KernelTree) -> None:
    tree.load("nvidia-caps").list_mig_minors().mig(0, 7, 66)

    with pytest.raises(CdiError, match=r"/capabilities/gpu0/mig/gi9/access is missing: the MIG device was removed"):
        _kernel(tree).capability(0, 9)


def test_instance_that_is_not_even_listed_is_named(tree: KernelTree) -> None:
    tree.load("nvidia-caps").list_mig_minors(1)

    with pytest.raises(CdiError, match=r"nvidia-caps/mig-minors: has no gpu4/gi0/access"):
        _kernel(tree).capability(4, 0)


def test_drm_nodes_are_those_of_the_card(tree: KernelTree) -> None:
    tree.drm(BUS_ID, card1="226:1", renderD129="226:129").drm("0000:af:00.0", card2="226:2")

    assert _kernel(tree).drm(BUS_ID) == (DrmNode("card1", 226, 1), DrmNode("renderD129", 226, 129))


def test_card_without_drm_has_no_such_nodes(tree: KernelTree) -> None:
    assert _kernel(tree).drm(BUS_ID) == ()


def test_file_that_cannot_be_read_is_named(tree: KernelTree, tmp_path: Path) -> None:
    (tree.proc / "devices").mkdir(parents=True)

    with pytest.raises(CdiError, match=rf"^{tmp_path}/proc/devices: Is a directory$"):
        _kernel(tree).majors()
