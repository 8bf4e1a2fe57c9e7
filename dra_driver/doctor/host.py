"""The host as the examination sees it: its files by host path, wherever its root is seen. Reads only."""

import os
import stat
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from dra_driver.hostfs import resolve_inside

_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_PIECE_BYTES: Final = 64 << 10
_MAX_PIECES: Final = 128


@dataclass(frozen=True)
class Host:
    """root: where the host's ``/`` is seen. here: top directories that this process has from the host at their own
    paths, as a container has ``/dev``; root None: the rest of the host is not seen.

    unreadable: host paths that this process may not read, as far as it tried.
    """

    root: Path | None = Path("/")
    here: tuple[Path, ...] = ()
    unreadable: set[Path] = field(default_factory=set)

    def seen(self, path: Path) -> Path | None:
        """Where a host path is seen, links resolved as on the host; None when it is not there or not seen."""
        root = Path("/") if self._is_here(path) else self.root
        if root is None:
            return None
        try:
            found = resolve_inside(root, path)
        except ValueError:  # a NUL in a path that some file names
            return None
        if found is None:
            self.note_if_forbidden(root, path, path)
        return found

    def sees(self, path: Path) -> bool:
        """Whether this path of the host would be seen if it was there."""
        return self.root is not None or self._is_here(path)

    def is_directory(self, path: Path) -> bool:
        """Whether it is there and a directory."""
        seen = self.seen(path)
        return seen is not None and seen.is_dir()

    def is_file(self, path: Path) -> bool:
        """Whether it is there and a regular file."""
        seen = self.seen(path)
        return seen is not None and seen.is_file()

    def read(self, path: Path) -> str | None:
        """The text of a regular file, at most 8 MiB of it; None when it is not there or cannot be read."""
        seen = self.seen(path)
        try:
            if seen is None or not stat.S_ISREG(seen.stat().st_mode):
                return None
            with seen.open("rb") as file:
                # Files in /proc/sys refuse to be read in one big piece.
                pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
                return b"".join(islice(pieces, _MAX_PIECES)).decode("utf-8", "replace")
        except PermissionError:
            self.unreadable.add(path)
            return None
        except OSError:
            return None

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; none when it is not there or cannot be read."""
        seen = self.seen(directory)
        try:
            return [] if seen is None else sorted(os.listdir(seen))
        except PermissionError:
            self.unreadable.add(directory)
            return []
        except OSError:
            return []

    def sockets(self, directory: Path) -> list[str]:
        """Names of the sockets in a directory, sorted."""
        seen = self.seen(directory)
        return [name for name in self.names(directory) if seen is not None and self._is_socket(directory, seen / name)]

    def _is_here(self, path: Path) -> bool:
        return any(path.is_relative_to(directory) for directory in self.here)

    def note_if_forbidden(self, root: Path, path: Path | str, host_path: Path) -> None:
        """Note the host path as unreadable if this process may not even look whether root/path is there."""
        try:
            os.lstat(root / str(path).lstrip("/"))
        except PermissionError:
            self.unreadable.add(host_path)
        except OSError:
            return

    def _is_socket(self, directory: Path, seen: Path) -> bool:
        try:
            return stat.S_ISSOCK(seen.lstat().st_mode)
        except PermissionError:
            self.unreadable.add(directory)
            return False
        except OSError:
            return False

    @property
    def is_this_machine(self) -> bool:
        """Whether it is the running machine, so that its driver can be asked: by the kernel's id of the boot."""
        if self.root in (None, Path("/")) or self.here:
            return True
        own, theirs = _text(Path("/", _BOOT_ID)), self.read(Path("/", _BOOT_ID))
        return bool(own) and theirs is not None and theirs.strip() == own


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", errors="replace").strip()
    except OSError:
        return ""
