"""Processes of a daemon, as /proc shows them: supervisors, NVIDIA's control daemon and its servers.

They outlive the process that started them, so they are found by what they are, never by a number kept from before.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.mps.tool import MARK

COMMAND: Final = "mps-daemon"
_PROC: Final = "/proc"
"""Looked through many times a second while a daemon ends: without Path, which is slower and interns every name."""

_SESSION: Final = 3
_STARTED: Final = 19
"""Fields of ``stat``, counted from the one after the program's name."""
_KILLED_S: Final = 2.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A process, held by a descriptor that never comes to mean another one. To be closed."""

    pid: int
    descriptor: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Raises ProcessLookupError."""
        return cls(pid, os.pidfd_open(pid))

    @property
    def name(self) -> str:
        """A text that no other process of this boot has: its id, and when it started in the kernel's ticks."""
        fields = _stat(str(self.pid))
        return f"{self.pid} {fields[_STARTED] if len(fields) > _STARTED else 'ended'}"

    def signal(self, number: signal.Signals) -> None:
        """One that has ended is told nothing."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether it ends within this time."""
        waiting = select.poll()
        waiting.register(self.descriptor, select.POLLIN)
        return bool(waiting.poll(max(0.0, within_s) * 1000))

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


def supervisors(directory: Path) -> list[int]:
    """Process ids of ``mps-daemon DIR`` for this folder."""
    ours = os.fsencode(directory)

    def is_one(pid: str) -> bool:
        words = _content(pid, "cmdline")
        # A probe has the same end.
        return {COMMAND.encode(), b"--is-ready"} & {*words} == {COMMAND.encode()} and words[-1] == ours

    return _those(is_one)


def members(directory: Path) -> list[int]:
    """Process ids of the control daemon of this folder, its servers, and commands on their way to it."""
    mark = f"{MARK}={directory}".encode()
    return _those(lambda pid: mark in _content(pid, "environ"))


def control_daemon(directory: Path) -> int | None:
    """Process id of the control daemon of this folder."""
    return next((pid for pid in members(directory) if b"-f" in _content(str(pid), "cmdline")), None)


def of_session(session: int) -> list[int]:
    """Process ids of the session that a control daemon leads, with its servers; not those that are only to be reaped.

    One that is ending has no environment any more, and has the card until it is done.
    """

    def is_one(pid: str) -> bool:
        fields = _stat(pid)
        return len(fields) > _SESSION and fields[_SESSION] == str(session) and fields[0] not in ("Z", "X")

    return _those(is_one)


def kill_all(find: Callable[[], Sequence[int]], within_s: float = _KILLED_S) -> list[int]:
    """Kill what ``find`` finds until it finds nothing more and all have ended; what has not by then, [] for nothing."""
    deadline = time.monotonic() + within_s
    held: list[Process] = []
    try:
        while True:
            new = _hold((pid for pid in find() if pid not in [process.pid for process in held]), find)
            held.extend(new)
            for process in new:
                process.signal(signal.SIGKILL)
            left = [process for process in held if not process.has_ended()]
            if not left and not find():
                return []
            if time.monotonic() > deadline:
                return [process.pid for process in left] or list(find())
            time.sleep(_POLL_S)
    finally:
        for process in held:
            process.close()


def tell(pids: Iterable[int], find: Callable[[], Sequence[int]], number: signal.Signals) -> None:
    """Send a signal to processes that ``find`` still finds when they are held by a descriptor."""
    for process in _hold(pids, find):
        process.signal(number)
        process.close()


def _hold(pids: Iterable[int], find: Callable[[], Sequence[int]]) -> list[Process]:
    """Those that ``find`` still finds when they are held, so that a number means nobody else."""
    held: list[Process] = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            held.append(Process.of(pid))
    found = set(find()) if held else set()
    for process in held:
        if process.pid not in found:
            process.close()
    return [process for process in held if process.pid in found]


def _those(is_one: Callable[[str], bool]) -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit() and is_one(name)]


def _content(pid: str, name: str) -> list[bytes]:
    """The words of ``cmdline`` or ``environ``; [] for a process that has ended or may not be looked at."""
    try:
        with open(f"{_PROC}/{pid}/{name}", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []


def _stat(pid: str) -> list[str]:
    """Fields of ``stat`` after the program's name, the state first; [] for a process that is not there."""
    try:
        with open(f"{_PROC}/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
