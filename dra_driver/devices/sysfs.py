"""What the kernel's sysfs says about PCI devices and about the nvidia module. Reads only."""

import re
from pathlib import Path

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""Beginning of the PCI class of GPUs with and without a screen; NVSwitches and sound functions have others."""


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


def nvidia_gpus(sysfs: Path) -> tuple[str, ...] | None:
    """PCI addresses of the machine's NVIDIA GPUs, sorted, whether or not the NVIDIA driver has them.

    Those that a vfio driver holds are a virtual machine's and not counted. None when sysfs does not show the bus.
    """
    try:
        devices = sorted((sysfs / "bus" / "pci" / "devices").iterdir())
    except FileNotFoundError:
        # Small virtual machines have no PCI bus.
        return () if (sysfs / "bus").is_dir() else None
    except OSError:
        return None
    return tuple(device.name for device in devices if _is_nvidia_gpu(device) and "vfio" not in _bound_to(device))


def bound_to_nvidia(sysfs: Path) -> frozenset[str]:
    """PCI addresses of the GPUs that the NVIDIA driver holds; empty where sysfs does not show them."""
    try:
        entries = list((sysfs / "bus" / "pci" / "drivers" / "nvidia").iterdir())
    except OSError:
        return frozenset()
    return frozenset(entry.name for entry in entries if _PCI_ADDRESS.fullmatch(entry.name))


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


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text(encoding="ascii", errors="replace").strip()
        return vendor == _NVIDIA and (device / "class").read_text("ascii", errors="replace").startswith(_DISPLAY)
    except OSError:
        # It was unplugged while we looked.
        return False


def _bound_to(device: Path) -> str:
    """Name of the kernel driver that holds a device, '' when none does."""
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _device(sysfs: Path, bus_id: str) -> Path:
    return sysfs / "bus" / "pci" / "devices" / bus_id
