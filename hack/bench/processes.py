"""Child processes of the bench: started with their output in a file, looked at through /proc, ended by their id."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from hack.bench.errors import BenchError

ROOT: Final = Path(__file__).resolve().parents[2]
LOOK_S: Final = 0.002
"""How often a file is looked for."""

_END_S: Final = 15.0
_SHOWN_LINES: Final = 5
_CPU_CLOCK: Final = 2
_SMAPS_LINE: Final = re.compile(r"^(Rss|Pss):\s+(\d+) kB$", re.MULTILINE)


class Child:
    """A running program that is ended with its ``with`` block: SIGTERM, and SIGKILL when that does not help."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Raises BenchError when it cannot be started. Standard input is a pipe that ends with this process."""
        self._name = Path(command[0]).name
        self._log = log
        with log.open("wb") as output:
            self.started_at = time.monotonic()
            try:
                self._process = subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, process_group=0
                )
            except OSError as error:
                raise BenchError(f"{command[0]} cannot be started: {error}") from error

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raises BenchError with its last lines if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise BenchError(f"{self._name} ended with exit code {code}: {self.last_lines()}")

    def wait_for(self, path: Path, seconds: float) -> None:
        """Wait until it has made a file. Raises BenchError when it ends first or takes longer."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(f"{self._name} did not make {path} within {seconds:g} s: {self.last_lines()}")
            time.sleep(LOOK_S)

    def last_lines(self) -> str:
        """The end of its output, in one line."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(lines[-_SHOWN_LINES:]) or "no output"

    def end(self) -> None:
        """Stop it. Idempotent."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            if self._process.stdin:
                self._process.stdin.close()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                # Its own group, and not reaped yet: the id cannot name anybody else.
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        elif self._process.stdin:
            self._process.stdin.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def memory(pid: int) -> tuple[int, int]:
    """RSS and PSS of a process, in bytes. Raises BenchError when they cannot be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError as error:
        raise BenchError(f"memory of process {pid} cannot be read: {error.strerror}") from error
    found = {name: int(kib) * 1024 for name, kib in _SMAPS_LINE.findall(text)}
    return found["Rss"], found["Pss"]


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, without its children's. Raises BenchError when it is gone."""
    # The clock of a process as the kernel numbers it, what clock_getcpuclockid(3) gives: far finer than the ticks
    # of /proc/PID/stat.
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError as error:
        raise BenchError(f"CPU time of process {pid} cannot be read: {error.strerror}") from error
