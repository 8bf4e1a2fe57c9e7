"""Mounts of a daemon: its shared memory in the driver, and the supervisor's own view of its folders."""

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Final, Protocol

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REMOUNT, _MS_NOSYMFOLLOW = 32, 256
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 0x80000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_CLONE_NEWNS = 0x20000
_UNKNOWN_KIB: Final = 64 * 1024
_MOST_STACKED: Final = 16

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where CUDA looks, on every host
_COVERED: Final = ("mnt", "media", "srv")
"""Folders that hosts and images have and that no program of the driver needs; one is covered in the view."""


class Mounts(Protocol):
    """How memory comes to a folder. Calls may be made again. They raise OSError."""

    @property
    def mounts(self) -> bool:
        """Whether anything is mounted at all."""

    def mount(self, folder: Path) -> None:
        """Have memory there that clients share. One that has it already is left as it is."""

    def unmount(self, folder: Path) -> None:
        """Take it away, also while it is busy. Nothing mounted there, or no folder, is success."""


class KernelMounts:
    """A tmpfs for each daemon, half as large as the machine's memory at most. Needs CAP_SYS_ADMIN."""

    mounts = True

    def mount(self, folder: Path) -> None:
        """See Mounts."""
        if not os.path.ismount(folder):
            options = f"mode=1777,size={shm_kib()}k"
            _mount("shm", folder, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options)

    def unmount(self, folder: Path) -> None:
        """See Mounts."""
        # A mount that was made twice lies there twice.
        for _ in range(_MOST_STACKED):
            try:
                _unmount(folder, _UMOUNT_NOFOLLOW)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
                    return
                if error.errno != errno.EBUSY:
                    raise
                _unmount(folder, _UMOUNT_NOFOLLOW | _MNT_DETACH)


class NoMounts:
    """For a simulated node: the folder itself is the memory, and nobody need be root."""

    mounts = False

    def mount(self, folder: Path) -> None:
        """Nothing to do."""

    def unmount(self, folder: Path) -> None:
        """Nothing to do."""


def shm_kib(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Half of the machine's memory in KiB, 64 MiB where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 2
    return _UNKNOWN_KIB


def own_view(directory: Path, root: Path) -> Path:
    """Give this process a mount namespace in which NVIDIA's programs can work; where pipe, log and lib are in it.

    Two things are in the way where the folders lie: a socket's path has room for 107 bytes, and servers run as the
    client's user, who may not pass the driver's own folders. ``shm`` becomes the shared memory. What containers can
    write to is free of links and devices here: their root is not to choose what the daemon opens as root of the node.
    For a process without threads. Raises OSError.
    """
    covered = next((Path("/", name) for name in _COVERED if _may_be_covered(Path("/", name), directory, root)), None)
    if covered is None:
        raise OSError(errno.ENOENT, f"none of the folders {', '.join(_COVERED)} of / can be covered")
    _check(_libc().unshare(_CLONE_NEWNS), "a mount namespace cannot be made")
    _mount(None, Path("/"), None, _MS_REC | _MS_SLAVE)
    if _may_be_covered(SHARED_MEMORY, directory, root):
        _bind(directory / "shm", SHARED_MEMORY)
    _mount("mps", covered, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "mode=0755,size=64k")
    for name, links in (("pipe", False), ("log", False), ("lib", True)):
        (covered / name).mkdir()
        _bind(directory / name, covered / name, links=links)
    return covered


def _may_be_covered(folder: Path, *needed: Path) -> bool:
    return folder.is_dir() and not any(path.resolve().is_relative_to(folder) for path in needed)


def _bind(source: Path, target: Path, *, links: bool = False) -> None:
    """links: whether symbolic links are followed there; kernels before 5.10 follow them all the same."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | (0 if links else _MS_NOSYMFOLLOW)
    _mount(str(source), target, None, _MS_BIND)
    _mount(None, target, None, _MS_BIND | _MS_REMOUNT | flags)


def _mount(source: str | None, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, str(target), kind)]
    _check(_libc().mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"{target} cannot be mounted")


def _unmount(target: Path, flags: int) -> None:
    _check(_libc().umount2(str(target).encode(), flags), f"{target} cannot be unmounted")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(code: int, problem: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{problem}: {os.strerror(number)}")
