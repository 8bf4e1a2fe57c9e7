"""The device nodes of GPUs and of the driver, read from the dev root and from /proc at the moment of asking.

Nodes are only read; nothing is created here.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.spec import DeviceNode
from dra_driver.hostfs import DriverRoots, resolve_inside
from dra_driver.model.devices import Device, MigDevice
from dra_driver.model.errors import CdiError

NVIDIA_MAJOR: Final = 195
"""Character device major of GPUs, nvidiactl and nvidia-modeset: assigned by the kernel, the same
everywhere.
"""

_STAND_IN_UVM_MAJOR: Final = 238
_STAND_IN_CAPS_MAJOR: Final = 237
_CAPS_OF_GPU_INSTANCE: Final = 9
_CAPS_OF_GPU: Final = 15 * _CAPS_OF_GPU_INSTANCE
_FIRST_INSTANCE_CAP: Final = 3


@dataclass(frozen=True, slots=True)
class _Known:
    """A node of the driver: its numbers (major None: given out by the kernel when the module loads)."""

    name: str
    major: int | None
    minor: int
    required: bool


COMMON_NODES: Final = (
    _Known("nvidia-modeset", NVIDIA_MAJOR, 254, required=False),
    _Known("nvidia-uvm", None, 0, required=True),
    _Known("nvidia-uvm-tools", None, 1, required=False),
    _Known("nvidiactl", NVIDIA_MAJOR, 255, required=True),
)
"""What every GPU container needs beside its GPUs, sorted by name."""


class DeviceNodes:
    """Nodes under ``roots.container_dev_root``, described by their host paths.

    placeholders: a simulated node made without root rights has regular files in place of nodes; they are
    accepted and described with the numbers the real ones have. proc: where /proc is seen; a simulated node's
    is in its driver root, for this machine's own says nothing about it.
    """

    def __init__(self, roots: DriverRoots, placeholders: bool = False, proc: Path | None = None) -> None:
        self._roots = roots
        self._seen_directory = roots.container_dev_root / "dev"
        self._host_directory = roots.dev_root / "dev"
        self._placeholders = placeholders
        self._proc = proc or (roots.container_driver_root / "proc" if placeholders else Path("/proc"))

    def common(self) -> tuple[DeviceNode, ...]:
        """nvidiactl and nvidia-uvm, and those of nvidia-uvm-tools and nvidia-modeset that are there.

        Raises CdiError naming the host path of one that is missing or is no character device.
        """
        found = ((known, self._stat(known.name)) for known in COMMON_NODES)
        return tuple(self._node(known, state) for known, state in found if known.required or state is not None)

    def common_paths(self) -> tuple[Path, ...]:
        """Where the common nodes are seen, there or not."""
        return tuple(Path(self._seen(known.name)) for known in COMMON_NODES)

    def of(self, device: Device) -> tuple[DeviceNode, ...]:
        """The GPU's own node; for a MIG device its parent's and the two capability nodes of its instances.

        Raises CdiError naming the path that is missing.
        """
        gpu = device.physical
        name = f"nvidia{gpu.minor}"
        node = self._node(_Known(name, NVIDIA_MAJOR, gpu.minor, required=True), self._stat(name))
        if isinstance(device, MigDevice):
            return (node, *self._capabilities(device))
        return (node,)

    def _seen(self, name: str) -> str:
        return f"{self._seen_directory}/{name}"

    def _on_host(self, name: str) -> str:
        return f"{self._host_directory}/{name}"

    def _stat(self, name: str) -> os.stat_result | None:
        """State of a node, None when it is not there. Links, which nodes hardly ever are, stay inside the
        root.
        """
        try:
            found = os.lstat(self._seen(name))
            if stat.S_ISLNK(found.st_mode):
                target = resolve_inside(self._roots.container_dev_root, f"dev/{name}")
                return None if target is None else target.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CdiError(f"device node {self._describe(name)}: {error.strerror}") from error
        return found

    def _node(self, known: _Known, found: os.stat_result | None) -> DeviceNode:
        if found is None:
            raise CdiError(
                f"device node {self._describe(known.name)} is missing: load the NVIDIA kernel modules and "
                f"create it, e.g. with nvidia-modprobe or nvidia-smi on the host, or correct the dev root"
            )
        if stat.S_ISCHR(found.st_mode):
            return self._from_character_device(known, found)
        if self._placeholders and stat.S_ISREG(found.st_mode):
            major = _STAND_IN_UVM_MAJOR if known.major is None else known.major
            return self._described(known.name, major, known.minor)
        kind = _FILE_KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise CdiError(f"device node {self._describe(known.name)} is {kind}, must be a character device")

    def _from_character_device(self, known: _Known, found: os.stat_result) -> DeviceNode:
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        if minor != known.minor or known.major not in (None, major):
            wanted = f"{'*' if known.major is None else known.major}:{known.minor}"
            raise CdiError(
                f"device node {self._describe(known.name)} is character device {major}:{minor}, "
                f"must be {wanted}: another device was put in its place"
            )
        return self._described(known.name, major, minor, file_mode=stat.S_IMODE(found.st_mode), gid=found.st_gid)

    def _described(self, name: str, major: int, minor: int, file_mode: int = 0o666, gid: int = 0) -> DeviceNode:
        return DeviceNode(
            path=f"/dev/{name}",
            host_path=self._on_host(name),
            major=major,
            minor=minor,
            file_mode=file_mode,
            gid=gid,
        )

    def _describe(self, name: str) -> str:
        host, seen = self._on_host(name), self._seen(name)
        return host if host == seen else f"{host} (seen here as {seen})"

    def _capabilities(self, mig: MigDevice) -> tuple[DeviceNode, ...]:
        """Nodes of the GPU instance and the compute instance; they need not exist on the host."""
        instance = f"gi{mig.gpu_instance_id}"
        first = _FIRST_INSTANCE_CAP + mig.parent.minor * _CAPS_OF_GPU + mig.gpu_instance_id * _CAPS_OF_GPU_INSTANCE
        access = self._proc / f"driver/nvidia/capabilities/gpu{mig.parent.minor}/mig" / instance
        major = self._capabilities_major()
        numbers = (
            self._access(access / "access", first),
            self._access(access / f"ci{mig.compute_instance_id}" / "access", first + 1 + mig.compute_instance_id),
        )
        return tuple(
            self._described(f"nvidia-caps/nvidia-cap{minor}", major, minor, file_mode=mode) for minor, mode in numbers
        )

    def _access(self, path: Path, stand_in: int) -> tuple[int, int]:
        """Minor and mode of a capability. ``stand_in``: its minor by the driver's own numbering (mig-
        minors).
        """
        text = self._read(path)
        if text is None:
            return stand_in, 0o444
        facts = dict(re.findall(r"^(DeviceFileMinor|DeviceFileMode):\s*(\d+)\s*$", text, re.MULTILINE))
        try:
            return int(facts["DeviceFileMinor"]), int(facts["DeviceFileMode"])
        except KeyError as error:
            raise CdiError(f"{path}: has no {error.args[0]}") from error

    def _capabilities_major(self) -> int:
        path = self._proc / "devices"
        found = re.search(r"^\s*(\d+) nvidia-caps$", self._read(path) or "", re.MULTILINE)
        if found is not None:
            return int(found[1])
        if self._placeholders:
            return _STAND_IN_CAPS_MAJOR
        raise CdiError(f"{path}: has no character device nvidia-caps, MIG devices need it")

    def _read(self, path: Path) -> str | None:
        """The file's text; None when it is not there on a simulated node, which has no such files."""
        try:
            return path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError as error:
            if self._placeholders:
                return None
            raise CdiError(f"{path} is missing: the MIG device was removed, or its driver is not loaded") from error
        except OSError as error:
            raise CdiError(f"{path}: {error.strerror}") from error


_FILE_KINDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
