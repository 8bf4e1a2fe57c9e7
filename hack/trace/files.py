"""Tells which files a driver writes and removes, at once, through inotify(7)."""

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hack.trace import events
from hack.trace.events import Event

_IN_MODIFY: Final = 0x002
_IN_MOVED_TO: Final = 0x080
_IN_CREATE: Final = 0x100
_IN_DELETE: Final = 0x200
_NONBLOCK: Final = os.O_NONBLOCK
_HEAD: Final = struct.Struct("iIII")
_UNTOLD: Final = ("-shm", ".lock")
"""What the driver keeps there for locks, and SQLite for itself."""
_LOOK_S: Final = 0.001
_WORDS: Final = (
    (_IN_DELETE, "removes"),
    (_IN_MOVED_TO, "puts in place"),
    (_IN_CREATE, "makes"),
    (_IN_MODIFY, "writes"),
)

_libc = ctypes.CDLL(None, use_errno=True)


class Files:
    """Changes in directories. Runs in a thread of its own from ``start`` on."""

    def __init__(self, directories: list[Path], record: Callable[[Event], None]) -> None:
        """Directories that are missing are made. Raises OSError."""
        self._record = record
        self._last = ""
        self._queue = _checked(_libc.inotify_init1(_NONBLOCK))
        self._watched: dict[int, Path] = {}
        for directory in directories:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            kinds = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE
            number = _checked(_libc.inotify_add_watch(self._queue, os.fsencode(directory), kinds))
            self._watched[number] = directory

    def start(self, stopping: threading.Event) -> None:
        """Record until told to stop."""
        threading.Thread(target=self._loop, args=(stopping,), name="files", daemon=True).start()

    def _loop(self, stopping: threading.Event) -> None:
        while not stopping.wait(_LOOK_S):
            self.read()
        os.close(self._queue)

    def read(self) -> None:
        """Record what has happened so far."""
        try:
            content = os.read(self._queue, 1 << 16)
        except BlockingIOError:
            # Whatever comes after a pause is told anew.
            self._last = ""
            return
        while content:
            number, kinds, _, length = _HEAD.unpack_from(content)
            name = os.fsdecode(content[_HEAD.size : _HEAD.size + length].rstrip(b"\0"))
            content = content[_HEAD.size + length :]
            self._tell(self._watched[number] / name, kinds)

    def _tell(self, path: Path, kinds: int) -> None:
        word = next((word for kind, word in _WORDS if kinds & kind), "")
        what = f"{word} {path}"
        # Hidden files are on their way to their real names, and one commit writes a file many times.
        told = path.name[:1] != "." and not path.name.endswith(_UNTOLD)
        if word and told and what != self._last:
            self._last = what
            self._record(Event(at=time.time(), who=events.DISK, what=what))


def _checked(code: int) -> int:
    if code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return code
