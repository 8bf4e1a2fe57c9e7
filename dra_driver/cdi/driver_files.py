"""What every GPU container gets of the NVIDIA driver: libraries, programs, firmware, sockets and common
nodes.

This is the mode without hooks: nothing runs inside the container, so each file is mounted under every name it
is looked up by. Only looks; device nodes come from ``device_nodes``, libraries from ``libraries``.
"""

import logging
import os
import re
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.libraries import REQUIRED_LIBRARIES, LibraryScan, scan_libraries
from dra_driver.cdi.spec import VOID, DeviceNode, Edits, Env, Mount
from dra_driver.hostfs import (
    BINARY_DIRECTORIES,
    LIBRARY_DIRECTORIES,
    DriverRoots,
    find_binary,
    resolve_inside,
)
from dra_driver.model.devices import Device
from dra_driver.model.errors import CdiError

log = logging.getLogger(__name__)

FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
IPC_OPTIONS: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

BINARIES: Final = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
)
FIRMWARE_DIRECTORIES: Final = ("lib/firmware", "usr/lib/firmware", "firmware")
IPC_PATHS: Final = ("run/nvidia-fabricmanager/socket", "run/nvidia-persistenced/socket", "tmp/nvidia-mps")

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+")

Print = tuple[int, ...]
"""What tells one state of a path from another."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A complete result, how the paths that it rests on looked when it was made, and which were not there."""

    driver_version: str
    edits: Edits
    prints: Mapping[str, Print]
    absent: tuple[str, ...]

    def holds(self, driver_version: str) -> bool:
        """Whether this is about that driver and nothing changed since."""
        return (
            self.driver_version == driver_version
            and not any(os.access(path, os.F_OK) for path in self.absent)
            and all(_print_of(path) == before for path, before in self.prints.items())
        )


class DriverFiles:
    """Files under a driver root and nodes under a dev root, as CDI edits.

    Container paths. A library goes to the search directory it was found in, relative to the driver root,
    which is its place on the host when the driver root is ``/`` or a driver container: ``/usr/lib64``,
    ``/usr/lib/x86_64-linux-gnu`` and so on. For a root with a layout of its own, such as
    ``/usr/local/nvidia`` with ``lib64``, that is ``/lib64``, as NVIDIA's tools have it; libraries right in
    the root go to ``/usr/lib64``. Programs go to ``/usr/bin``, GSP firmware to ``/lib/firmware``, sockets to
    their own paths.

    Host paths lie under ``driver_root`` with links resolved, and each was seen to exist under
    ``container_driver_root``. Thread-safe.
    """

    def __init__(self, roots: DriverRoots, placeholders: bool = False, proc: Path | None = None) -> None:
        """``placeholders`` and ``proc`` as in ``DeviceNodes``: for a node simulated without root rights."""
        self._roots = roots
        self._nodes = DeviceNodes(roots, placeholders, proc)
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def common(self, driver_version: str) -> Edits:
        """Edits that all claims share, of this driver version's files alone.

        The same object is returned as long as nothing it rests on changed or vanished; only whole results are
        kept. Raises CdiError naming what is missing: libcuda or libnvidia-ml of this version (with the
        directories searched), /dev/nvidiactl or /dev/nvidia-uvm.
        """
        known = self._known
        if known is not None and known.holds(driver_version):
            return known.edits
        with self._lock:
            known = self._known
            if known is None or not known.holds(driver_version):
                self._known = None
                self._known = known = self._look(driver_version)
            return known.edits

    def device_nodes(self, device: Device) -> tuple[DeviceNode, ...]:
        """Nodes of one GPU or MIG device, never cached. Raises CdiError naming the path that is missing."""
        return self._nodes.of(device)

    def _look(self, driver_version: str) -> _Known:
        if not _VERSION.fullmatch(driver_version):
            raise CdiError(f"driver version: found {driver_version!r}, must be numbers with dots, e.g. 580.159.04")
        prints = {str(path): _print_of(str(path)) for path in self._places(driver_version)}
        nodes = self._nodes.common()
        scan = scan_libraries(self._roots.container_driver_root, driver_version)
        self._require_libraries(scan, driver_version)
        files = {**scan.mounts, **self._binaries(), **self._firmware(driver_version)}
        prints.update({str(path): _print_of(str(path)) for path in files.values()})
        gone = sorted(path for path in map(str, files.values()) if prints[path] is None)
        if gone:
            raise CdiError(f"{gone[0]} vanished while the driver's files were read: is the driver being replaced?")
        edits = Edits(
            device_nodes=nodes,
            mounts=(*self._mounts(files, FILE_OPTIONS), *self._mounts(self._sockets(), IPC_OPTIONS)),
            env=(_libcuda_directory(scan, driver_version), VOID),
        )
        log.info(
            "NVIDIA driver %s: %d files and %d device nodes for containers, found under %s",
            driver_version,
            len(edits.mounts),
            len(nodes),
            self._roots.driver_root,
        )
        return _Known(
            driver_version=driver_version,
            edits=edits,
            prints={path: state for path, state in prints.items() if state is not None},
            absent=tuple(path for path, state in prints.items() if state is None),
        )

    def _places(self, driver_version: str) -> Iterable[Path]:
        """Paths that change when a file is added. Taken down before looking, so no change slips between."""
        root = self._roots.container_driver_root
        firmware = [f"{directory}/nvidia/{driver_version}" for directory in FIRMWARE_DIRECTORIES]
        vdpau = [f"{directory}/vdpau" for directory in LIBRARY_DIRECTORIES if directory]
        for place in (*LIBRARY_DIRECTORIES, *BINARY_DIRECTORIES, *firmware, *vdpau, *IPC_PATHS):
            yield resolve_inside(root, place) or root / place
        yield from self._nodes.common_paths()

    def _require_libraries(self, scan: LibraryScan, driver_version: str) -> None:
        required = [f"{name}.{driver_version}" for name in REQUIRED_LIBRARIES]
        missing = [name for name in required if name not in scan.found]
        if not missing:
            return
        searched = ", ".join(str(self._roots.driver_root / directory) for directory in LIBRARY_DIRECTORIES)
        others = f" (found there: {', '.join(scan.other_versions[:4])})" if scan.other_versions else ""
        raise CdiError(
            f"{' and '.join(missing)} of the running driver not found in {searched}{others}, seen here under "
            f"{self._roots.container_driver_root}: correct the driver root, or finish the driver's setup"
        )

    def _binaries(self) -> dict[str, Path]:
        found = {name: find_binary(self._roots.container_driver_root, name) for name in BINARIES}
        return {f"/usr/bin/{name}": path for name, path in found.items() if path is not None}

    def _firmware(self, driver_version: str) -> dict[str, Path]:
        """GSP firmware of this version; the first directory that has a file wins."""
        root = self._roots.container_driver_root
        found: dict[str, Path] = {}
        for directory in FIRMWARE_DIRECTORIES:
            below = f"nvidia/{driver_version}"
            place = resolve_inside(root, f"{directory}/{below}")
            for path in sorted(place.glob("gsp*.bin")) if place is not None else ():
                file = resolve_inside(root, path.relative_to(root))
                if file is not None and file.is_file():
                    found.setdefault(f"/lib/firmware/{below}/{path.name}", file)
        return found

    def _sockets(self) -> dict[str, Path]:
        root = self._roots.container_driver_root
        found = {f"/{path}": resolve_inside(root, path) for path in IPC_PATHS}
        return {container_path: seen for container_path, seen in found.items() if seen is not None}

    def _mounts(self, files: Mapping[str, Path], options: tuple[str, ...]) -> Iterable[Mount]:
        for container_path in sorted(files):
            host_path = str(self._roots.on_host(files[container_path]))
            yield Mount(host_path=host_path, container_path=container_path, options=options)


def _libcuda_directory(scan: LibraryScan, driver_version: str) -> Env:
    """Where hooks of NVIDIA's toolkit, run by other tools, find libcuda inside the container."""
    libcuda = scan.found[f"libcuda.so.{driver_version}"]
    return Env("NVIDIA_CTK_LIBCUDA_DIR", str(PurePosixPath(libcuda).parent))


def _print_of(path: str) -> Print | None:
    """Device nodes, sockets and the MPS directory are told apart without times, which their use changes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    kind = stat.S_IFMT(found.st_mode)
    if kind in (stat.S_IFREG, stat.S_IFDIR) and not path.endswith("/nvidia-mps"):
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
    return (found.st_dev, found.st_ino, found.st_mode, found.st_rdev, found.st_gid)
