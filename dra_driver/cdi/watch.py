"""Notices, by a few calls of stat, that what was found of the driver's files may be there no longer."""

import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.hostfs import resolve_inside

Print = tuple[int, ...]
"""What tells one state of a path from another."""

_TICK_NS: Final = 20_000_000
"""A file system's clock may stand still for so long: two changes within a tick look like one."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How paths looked, and which were not there. A directory's print changes with every entry that comes or goes."""

    prints: Mapping[str, Print]
    absent: tuple[str, ...]

    def holds(self) -> bool:
        """Whether all is as it was."""
        return not any(os.access(path, os.F_OK) for path in self.absent) and all(
            print_of(path) == before for path, before in self.prints.items()
        )

    def and_of(self, files: Iterable[Path]) -> "Watch":
        """This and the directories of files that were found, which links may have led to."""
        parents = {str(file.parent) for file in files} - set(self.prints)
        more = {path: found for path in sorted(parents) if (found := print_of(path)) is not None}
        return Watch({**self.prints, **more}, self.absent)

    def and_copies(self, files: Iterable[Path]) -> "Watch":
        """This and files that were made while looking."""
        return Watch({**self.prints, **_prints(map(str, files))}, self.absent)


def watch(root: Path, places: Iterable[str], programs: Iterable[Path] = ()) -> Watch:
    """Directories and files under ``root``, there or not; programs anywhere. To be taken before looking into them.

    Waits out the clock's tick when something changed just now, so that no later change goes unnoticed.
    """
    there, absent = _sorted_out(root, places)
    for program in programs:
        (there if os.access(program, os.F_OK) else absent).add(str(program))
    prints = _prints(there)
    newest = max((found[2] for found in prints.values() if len(found) == _TIMED), default=0)
    if 0 <= time.time_ns() - newest < _TICK_NS:
        time.sleep(_TICK_NS / 1e9)
        prints = _prints(there)
    return Watch(prints, tuple(sorted(absent)))


def print_of(path: str) -> Print | None:
    """Sockets and the MPS directory are told apart without times, which their use changes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    kind = stat.S_IFMT(found.st_mode)
    if kind in (stat.S_IFREG, stat.S_IFDIR) and not path.endswith("/nvidia-mps"):
        return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
    return (found.st_dev, found.st_ino, found.st_mode, found.st_rdev, found.st_gid)


_TIMED: Final = 4
"""Length of a print with a time in it."""


def _prints(paths: Iterable[str]) -> dict[str, Print]:
    return {path: found for path in sorted(paths) if (found := print_of(path)) is not None}


def _sorted_out(root: Path, places: Iterable[str]) -> tuple[set[str], set[str]]:
    """Where each place really is; for one that is not there, the first of its directories that is missing."""
    there, absent = set(), set()
    for place in places:
        found = resolve_inside(root, place)
        if found is not None:
            there.add(str(found))
        else:
            absent.add(str(_first_missing(root, Path(place))))
    return there, absent


def _first_missing(root: Path, place: Path) -> Path:
    at = root
    for end in range(1, len(place.parts) + 1):
        found = resolve_inside(root, Path(*place.parts[:end]))
        if found is None:
            return at / place.parts[end - 1]
        at = found
    return at
