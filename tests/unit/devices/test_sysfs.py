from pathlib import Path

import pytest

from dra_driver.devices import sysfs

BUS_ID = "0000:10:1c.0"


def device(tmp_path: Path, path: str, numa: str | None = None) -> Path:
    folder = tmp_path / "devices" / path
    folder.mkdir(parents=True)
    if numa is not None:
        (folder / "numa_node").write_text(numa)
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    (links / BUS_ID).symlink_to(Path("../../../devices") / path)
    return tmp_path


@pytest.mark.parametrize(("text", "node"), [("0\n", 0), ("1\n", 1), ("-1\n", None), ("", None), ("x", None)])
def test_numa_node_is_the_kernels_unless_it_knows_none(tmp_path: Path, text: str, node: int | None) -> None:
    assert sysfs.numa_node(device(tmp_path, f"pci0000:10/{BUS_ID}", text), BUS_ID) == node


def test_numa_node_of_a_device_that_sysfs_does_not_have_is_unknown(tmp_path: Path) -> None:
    assert sysfs.numa_node(tmp_path, BUS_ID) is None


@pytest.mark.parametrize(
    ("path", "root"),
    [
        (f"pci0000:00/{BUS_ID}", "pci0000:00"),
        (f"pci0000:10/0000:10:01.0/0000:11:00.0/{BUS_ID}", "pci0000:10"),
        (f"LNXSYSTM:00/VMBUS:00/guid/pci0001:00/{BUS_ID}", "pci0001:00"),
        (f"platform/{BUS_ID}", None),
    ],
)
def test_pcie_root_is_the_first_pci_part_of_the_path(tmp_path: Path, path: str, root: str | None) -> None:
    assert sysfs.pcie_root(device(tmp_path, path), BUS_ID) == root


def test_pcie_root_of_a_device_that_sysfs_does_not_have_is_unknown(tmp_path: Path) -> None:
    assert sysfs.pcie_root(tmp_path, BUS_ID) is None


def test_module_that_is_not_loaded_is_none(tmp_path: Path) -> None:
    assert sysfs.module_identity(tmp_path) == "none"


def test_module_identity_has_the_driver_version(tmp_path: Path) -> None:
    module = tmp_path / "module/nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text("580.159.04\n")
    assert sysfs.module_identity(tmp_path).startswith("580.159.04 inode ")


def test_boot_id_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert sysfs.boot_id(tmp_path) == "unknown"


def pci(tmp_path: Path, address: str, vendor: str, kind: str, driver: str = "") -> None:
    folder = tmp_path / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


def test_gpus_on_the_bus_are_those_of_nvidia_whoever_holds_them(tmp_path: Path) -> None:
    pci(tmp_path, "0000:0a:00.0", "0x10de", "0x030200", "nvidia")
    pci(tmp_path, "0000:09:00.0", "0x10de", "0x030000")
    pci(tmp_path, "0000:0b:00.0", "0x10de", "0x030200", "nouveau")
    pci(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "i915")
    assert sysfs.nvidia_gpus(tmp_path) == ("0000:09:00.0", "0000:0a:00.0", "0000:0b:00.0")


def test_nvswitch_sound_and_network_functions_are_no_gpus(tmp_path: Path) -> None:
    for number, kind in enumerate(("0x068000", "0x040300", "0x0c0330", "0x020700")):
        pci(tmp_path, f"0000:0{number}:00.0", "0x10de", kind)
    assert sysfs.nvidia_gpus(tmp_path) == ()


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace-gpu-vfio-pci"])
def test_gpu_that_is_a_virtual_machines_is_not_counted(tmp_path: Path, driver: str) -> None:
    pci(tmp_path, "0000:0a:00.0", "0x10de", "0x030200", driver)
    assert sysfs.nvidia_gpus(tmp_path) == ()


def test_device_that_is_unplugged_meanwhile_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices/0000:0a:00.0").mkdir(parents=True)
    assert sysfs.nvidia_gpus(tmp_path) == ()


def test_sysfs_that_is_not_mounted_is_no_machine_without_gpus(tmp_path: Path) -> None:
    assert sysfs.nvidia_gpus(tmp_path) is None
    (tmp_path / "bus").mkdir()
    assert sysfs.nvidia_gpus(tmp_path) == ()


def test_cards_of_the_nvidia_driver_are_told_from_its_other_files(tmp_path: Path) -> None:
    for name in ("0000:0a:00.0", "10000:01:00.0", "bind", "module", "new_id"):
        (tmp_path / "bus/pci/drivers/nvidia" / name).mkdir(parents=True)
    assert sysfs.bound_to_nvidia(tmp_path) == {"0000:0a:00.0", "10000:01:00.0"}
    assert sysfs.bound_to_nvidia(tmp_path / "nowhere") == frozenset()
