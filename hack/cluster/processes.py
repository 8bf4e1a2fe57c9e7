"""Processes by id and start time, so that a signal never meets another process that got the id since."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster.errors import NotReady

LOOK_S: Final = 0.02
"""How often something is looked at while waiting for it."""

_STATE: Final = 0
_START_TIME: Final = 19


@dataclass(frozen=True, slots=True)
class Process:
    """A process. started: clock ticks since boot, as /proc/PID/stat has it."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether it runs; a zombie does not."""
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal; nothing when it is gone."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def wait_gone(self, seconds: float) -> None:
        """Raises NotReady when it is still there after so long."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                raise NotReady(f"process {self.pid} did not end within {seconds:g} s")
            time.sleep(LOOK_S)


def start_time(pid: int) -> int | None:
    """Start time of a process that runs, None when there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too.
    fields = text.rpartition(")")[2].split()
    return None if fields[_STATE] in "ZX" else int(fields[_START_TIME])


def kill_all(processes: Iterable[Process], seconds: float) -> None:
    """SIGKILL, and wait until all are gone. Raises NotReady."""
    found = list(processes)
    for process in found:
        process.signal(signal.SIGKILL)
    for process in found:
        process.wait_gone(seconds)
