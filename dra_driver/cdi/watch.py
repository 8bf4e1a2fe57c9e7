"""Notices, by a few calls of stat, that what was found of the driver's files may be there no longer."""

import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dra_driver.hostfs import resolve_inside

Print = tuple[int, ...]
"""What tells one state of a path from another."""

_TICK_NS: Final = 10_000_000
"""A file system's clock may stand still for so long: two changes within a tick look like one."""

_REST_NS: Final = 2 * _TICK_NS


@dataclass(frozen=True, slots=True)
class Watch:
    """How paths looked, and which were not there. A directory's print changes with every entry that comes or goes.

    since_ns: when looking began. stale: something changed while looking, so that it may have been seen half made.
    """

    prints: Mapping[str, Print]
    absent: tuple[str, ...]
    since_ns: int
    stale: bool = False

    def holds(self) -> bool:
        """Whether all is as it was."""
        return (
            not self.stale
            and not any(os.access(path, os.F_OK) for path in self.absent)
            and all(print_of(path) == before for path, before in self.prints.items())
        )

    def and_of(self, files: Iterable[Path]) -> "Watch":
        """This, files that were read, as they may be written in place, and their directories, which links led to.

        Not the directories of sockets and of MPS: nobody searched there, and one of them is the busy ``/tmp``.
        """
        paths = {str(file) for file in files}
        own = _prints(paths)
        searched = {os.path.dirname(path) for path in paths if path not in own or own[path][_CHANGED]}
        more = _prints((paths | searched) - set(self.prints))
        now = time.time_ns()
        late = any(self.since_ns - _TICK_NS <= seen[_CHANGED] <= now for seen in more.values())
        return replace(self, prints={**self.prints, **more}, stale=self.stale or late)

    def and_copies(self, files: Iterable[Path]) -> "Watch":
        """This and files that were made while looking."""
        return replace(self, prints={**self.prints, **_prints(map(str, files))})


def watch(root: Path, places: Iterable[str], programs: Iterable[Path] = ()) -> Watch:
    """Directories and files under ``root``, there or not; programs anywhere. To be taken before looking into them.

    Waits out the clock's tick when something changed just now, so that no later change goes unnoticed.
    """
    there, absent = _sorted_out(root, places)
    for program in programs:
        (there if os.access(program, os.F_OK) else absent).add(str(program))
    prints = _prints(there)
    newest = max((found[_CHANGED] for found in prints.values()), default=0)
    if 0 <= time.time_ns() - newest < _REST_NS:
        time.sleep(_REST_NS / 1e9)
        prints = _prints(there)
    return Watch(prints, tuple(sorted(absent)), time.time_ns())


def print_of(path: str) -> Print | None:
    """Sockets and the MPS directory are told apart without times, which their use changes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    kind = stat.S_IFMT(found.st_mode)
    if kind in (stat.S_IFREG, stat.S_IFDIR) and not path.endswith("/nvidia-mps"):
        # Not the time of the last write: it can be set, and a change of the mode leaves it as it is.
        return (found.st_dev, found.st_ino, found.st_mode, found.st_ctime_ns, found.st_size)
    return (found.st_dev, found.st_ino, found.st_mode, 0, found.st_rdev, found.st_gid)


_CHANGED: Final = 3
"""Where in a print the time of the last change is, 0 if it does not matter."""


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
