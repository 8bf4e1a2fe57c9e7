"""Files of the host: searching under a root, resolving links as the host would, writing atomically, file locks.

A *root* is where a host's tree is seen by this process; links inside it are followed as if it were ``/``.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LIBRARY_DIRECTORIES = (
    "",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib",
    "usr/lib/nvidia/tesla",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib",
)
"""Where NVIDIA's libraries live on the hosts we know, relative to the driver root, in search order."""

BINARY_DIRECTORIES = ("", "opt/bin", "usr/bin", "usr/sbin", "bin", "sbin", "usr/libexec/nvidia/tesla/bin")
"""Where nvidia-smi and its like live, relative to the driver root, in search order."""

_MAX_LINKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRoots:
    """Where driver files and device nodes are, on the host and as this process sees them.

    ``driver_root`` and ``dev_root`` are host paths and go into CDI specs; ``container_driver_root`` and
    ``container_dev_root`` are the same trees as mounted here (equal to the host paths outside a container).
    """

    driver_root: Path
    dev_root: Path
    container_driver_root: Path
    container_dev_root: Path

    def on_host(self, seen: Path) -> Path:
        """Host path of a file seen under ``container_driver_root``."""
        return self.driver_root / seen.relative_to(self.container_driver_root)


def resolve_inside(root: Path, relative: Path | str) -> Path | None:
    """Follow all links of ``root/relative`` with ``root`` as ``/``; None when it does not exist or loops."""
    # Text, not paths: a look for the driver's files comes here some hundred times.
    base = os.fspath(root)
    pending = _steps(os.fspath(relative))
    at: list[str] = []
    links = 0
    while pending:
        part = pending.pop(0)
        if part == "..":
            del at[-1:]
            continue
        here = "/".join((base, *at, part))
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return None
        if not stat.S_ISLNK(mode):
            at.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            return None
        target = os.readlink(here)
        if target.startswith("/"):
            at.clear()
        pending[:0] = _steps(target)
    return root.joinpath(*at)


def _steps(path: str) -> list[str]:
    """Its parts without slashes and dots."""
    return [part for part in path.split("/") if part not in ("", ".")]


def find_file(root: Path, directories: Iterable[str], name: str) -> Path | None:
    """First regular file ``name`` in ``directories`` under ``root``, links resolved inside the root."""
    for directory in directories:
        found = resolve_inside(root, Path(directory) / name)
        if found is not None and found.is_file():
            return found
    return None


def find_library(root: Path, name: str) -> Path | None:
    """A driver library such as ``libnvidia-ml.so.1`` under a driver root."""
    return find_file(root, LIBRARY_DIRECTORIES, name)


def find_binary(root: Path, name: str) -> Path | None:
    """A driver program such as ``nvidia-smi`` under a driver root."""
    return find_file(root, BINARY_DIRECTORIES, name)


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write so that readers see the old file or the whole new one. Raises OSError, leaving no temporary file.

    No fsync: what is written this way lives no longer than the boot, and a process that is killed loses nothing
    that reached the page cache.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of what is at a path, None for nothing.

    The number is not given to another file for as long as somebody has this one open.
    """
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Take a file lock if it is free; it goes with the descriptor, so also with a killed process."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
