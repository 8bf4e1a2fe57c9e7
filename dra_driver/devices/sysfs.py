"""What the kernel's sysfs says about a PCI device and about the nvidia module. Reads only."""

import re
from pathlib import Path

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def numa_node(sysfs: Path, bus_id: str) -> int | None:
    """NUMA node of a PCI device; None where the kernel knows none (it writes -1 or has no such file)."""
    try:
        node = int((_device(sysfs, bus_id) / "numa_node").read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def pcie_root(sysfs: Path, bus_id: str) -> str | None:
    """The root complex a PCI device hangs under, e.g. ``pci0000:00``; None when sysfs does not show one.

    It is the first PCI component of the device's path below ``/sys/devices``: Kubernetes' attribute
    ``resource.kubernetes.io/pcieRoot``. Buses that are not PCI (a hypervisor's) may come before it.
    """
    try:
        below = _device(sysfs, bus_id).resolve(strict=True).relative_to((sysfs / "devices").resolve())
    except (OSError, ValueError, RuntimeError):
        return None
    return next((part for part in below.parts if _PCI_ROOT.fullmatch(part)), None)


def module_identity(sysfs: Path) -> str:
    """A text that changes when the nvidia module is loaded anew; ``none`` while it is not loaded.

    sysfs makes a new inode for each load, also for the same driver version.
    """
    module = sysfs / "module" / "nvidia"
    try:
        inode = module.stat().st_ino
    except OSError:
        return "none"
    try:
        version = (module / "version").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        version = "unknown"
    return f"{version} inode {inode}"


def boot_id(proc: Path) -> str:
    """The kernel's random id of this boot, ``unknown`` when it cannot be read."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return "unknown"


def _device(sysfs: Path, bus_id: str) -> Path:
    return sysfs / "bus" / "pci" / "devices" / bus_id
