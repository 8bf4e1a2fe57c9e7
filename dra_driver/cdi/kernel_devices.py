"""What the kernel says of NVIDIA's devices: numbers, permissions, MIG capabilities, DRM nodes, driver version.

Only reads /proc and /sys.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.model.errors import CdiError

NVIDIA: Final = "nvidia"
NVIDIA_UVM: Final = "nvidia-uvm"
NVIDIA_MODESET: Final = "nvidia-modeset"
_CAPS: Final = "nvidia-caps"

_IN_DEVICE_TABLE: Final[Mapping[str, tuple[str, ...]]] = {
    NVIDIA: ("nvidia", "nvidia-frontend"),
    NVIDIA_UVM: ("nvidia-uvm",),
    NVIDIA_MODESET: ("nvidia-modeset",),
}
"""Kernel module -> what /proc/devices calls its character device; older drivers have the second name."""

_TABLE_LINE = re.compile(r"^\s*(\d+) (\S+)$", re.MULTILINE)
_FACT = re.compile(r"^([A-Za-z ]+):[ \t]*(\d+)[ \t]*$", re.MULTILINE)
_MIG_MINOR = re.compile(r"^(\S+) (\d+)$", re.MULTILINE)
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)")
_DRM_NODE = re.compile(r"card\d+|renderD\d+")
_NUMBERS = re.compile(r"(\d+):(\d+)\s*")
_CAPABILITY_MODE: Final = 0o444


@dataclass(frozen=True, slots=True)
class Permissions:
    """How the nvidia module wants its device files. modify: whether NVIDIA's tools may make and change them."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    modify: bool = True


@dataclass(frozen=True, slots=True)
class Capability:
    """The device of a MIG GPU instance or compute instance."""

    major: int
    minor: int
    mode: int


@dataclass(frozen=True, slots=True, order=True)
class DrmNode:
    """A GPU's node below ``/dev/dri``: ``card0`` or ``renderD128``."""

    name: str
    major: int
    minor: int

    @property
    def link_end(self) -> str:
        """How the name of its link in ``/dev/dri/by-path`` ends."""
        return "-render" if self.name.startswith("render") else "-card"


class KernelDevices:
    """The kernel's side of NVIDIA's device nodes, read at the moment of asking.

    proc, sysfs: where those file systems are seen. devices: a file to read in place of ``/proc/devices``.
    """

    def __init__(self, proc: Path = Path("/proc"), sysfs: Path = Path("/sys"), devices: Path | None = None) -> None:
        self._proc = proc
        self._sysfs = sysfs
        self.devices_file = devices or proc / "devices"

    def majors(self) -> Mapping[str, int]:
        """Name of a character device -> its major; empty where the table cannot be read."""
        characters, _, _blocks = (_read(self.devices_file) or "").partition("Block devices:")
        table: dict[str, int] = {}
        for line in _TABLE_LINE.finditer(characters):
            table.setdefault(line[2], int(line[1]))
        return table

    def gpus(self) -> Mapping[str, int]:
        """PCI address -> minor number of the GPUs that the nvidia module has; empty where /proc does not show them."""
        try:
            addresses = sorted(os.listdir(self._proc / "driver/nvidia/gpus"))
        except OSError:
            return {}
        minors = {address: self.minor(address) for address in addresses}
        return {address: minor for address, minor in minors.items() if minor is not None}

    def minor(self, pci_bus_id: str) -> int | None:
        """A GPU's minor number; None where /proc does not show it."""
        return self._facts(f"driver/nvidia/gpus/{pci_bus_id}/information").get("Device Minor")

    def permissions(self) -> Permissions:
        """Parameters of the nvidia module; its defaults where /proc does not show them."""
        facts = self._facts("driver/nvidia/params")
        default = Permissions()
        return Permissions(
            uid=facts.get("DeviceFileUID", default.uid),
            gid=facts.get("DeviceFileGID", default.gid),
            mode=facts.get("DeviceFileMode", default.mode) & 0o777,
            modify=facts.get("ModifyDeviceFiles", 1) == 1,
        )

    def driver_version(self) -> str | None:
        """Version of the nvidia module that is loaded; None where none is, or nothing shows it."""
        version = (_read(self._sysfs / "module/nvidia/version") or "").strip()
        if version:
            return version
        found = _VERSION.search(_read(self._proc / "driver/nvidia/version") or "")
        return found[1] if found else None

    def capability(self, gpu_minor: int, gpu_instance: int, compute_instance: int | None = None) -> Capability:
        """The device of a GPU instance, or of a compute instance in it. Raises CdiError naming the file.

        The instance's own file tells that it exists. Where /proc has no such files at all, the driver's list of
        minors for all instances that there may be stands in.
        """
        inside = "" if compute_instance is None else f"/ci{compute_instance}"
        path = self._proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gpu_instance}{inside}/access"
        listed = self._proc / "driver/nvidia-caps/mig-minors"
        text = _read(path)
        if text is None and not (self._proc / "driver/nvidia/capabilities").is_dir() and listed.exists():
            minor, mode = _listed_minor(listed, f"gpu{gpu_minor}/gi{gpu_instance}{inside}/access"), _CAPABILITY_MODE
        elif text is None:
            raise CdiError(f"{path} is missing: the MIG device was removed, or its driver is not loaded")
        else:
            facts = _facts(text)
            try:
                minor, mode = facts["DeviceFileMinor"], facts["DeviceFileMode"]
            except KeyError as error:
                raise CdiError(f"{path}: has no {error.args[0]}") from error
        major = self.majors().get(_CAPS)
        if major is None:
            raise CdiError(f"{self.devices_file}: has no character device {_CAPS}, MIG devices need it")
        return Capability(major, minor, mode)

    def drm(self, pci_bus_id: str) -> tuple[DrmNode, ...]:
        """A GPU's DRM nodes, sorted; none without the nvidia-drm module."""
        folder = self._sysfs / "bus/pci/devices" / pci_bus_id / "drm"
        try:
            names = [name for name in os.listdir(folder) if _DRM_NODE.fullmatch(name)]
        except OSError:
            return ()
        numbers = ((name, _NUMBERS.fullmatch(_read(folder / name / "dev") or "")) for name in names)
        return tuple(sorted(DrmNode(name, int(found[1]), int(found[2])) for name, found in numbers if found))

    def _facts(self, path: str) -> Mapping[str, int]:
        return _facts(_read(self._proc / path) or "")


def major_of(module: str, majors: Mapping[str, int]) -> int | None:
    """Major of a kernel module's device in the kernel's table."""
    return next((majors[name] for name in _IN_DEVICE_TABLE[module] if name in majors), None)


def _facts(text: str) -> dict[str, int]:
    """The numbers in lines such as ``DeviceFileMinor: 66``."""
    return {found[1]: int(found[2]) for found in _FACT.finditer(text)}


def _listed_minor(path: Path, capability: str) -> int:
    minors = {found[1]: int(found[2]) for found in _MIG_MINOR.finditer(_read(path) or "")}
    if capability not in minors:
        raise CdiError(f"{path}: has no {capability}, so the driver cannot have such a MIG device")
    return minors[capability]


def _read(path: Path) -> str | None:
    """The file's text; None when it is not there. Raises CdiError when it cannot be read."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CdiError(f"{path}: {error.strerror}") from error
