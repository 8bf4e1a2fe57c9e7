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
