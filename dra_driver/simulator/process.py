"""The driver as a process of its own, started, killed and stopped by the simulated node. Ends nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dra_driver.model.errors import DriverError

STOP_SECONDS = 15.0
TAIL_LINES = 12

_KEPT = frozenset(("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV"))
_TIED = Path(__file__).with_name("tied.py")


class DriverProcess:
    """``dra-driver run`` with its output in a file. To be started from a thread that outlives it."""

    def __init__(self, flags: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """flags: those of ``run``. environment: added to the few variables that are passed on."""
        self._flags = tuple(flags)
        self._log = log
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start it. Raises DriverError when that is not possible."""
        own = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")}
        run = [sys.executable, "-m", "dra_driver", "run", *self._flags]
        command = [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), *run]
        try:
            with self._log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**own, "PYTHONUNBUFFERED": "1", **self._environment},
                    process_group=0,
                )
        except OSError as error:
            raise DriverError(f"the driver cannot be started: {error}") from error

    def check(self) -> None:
        """Raises DriverError with the end of the log when the process has ended by itself."""
        if self._process is None:
            raise DriverError("the driver is not started")
        code = self._process.poll()
        if code is not None:
            raise DriverError(f"the driver ended with exit code {code}; its log ends with: {self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken everything back. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout: float = STOP_SECONDS) -> int | None:
        """SIGTERM, and SIGKILL if that is not obeyed in time. Returns the exit code, None if never started."""
        if self._process is None:
            return None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log as one line."""
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "no log"
        return " | ".join(text.splitlines()[-lines:]) or "nothing"
