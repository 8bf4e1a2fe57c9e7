"""Driver processes forked from one that has imported the whole driver: a new interpreter each costs a second of CPU.

All else is as for a driver that was started: a process of its own, its flags, environment and log, signals, its end.
Drivers of the demo itself (test_demo) start as users' do.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dra_driver.commands.main import main
from dra_driver.simulator.process import DriverProcess
from dra_driver.simulator.tied import die_with_parent

PRELOADED = ["dra_driver.app", "dra_driver.devices.scenario", "dra_driver.devices.simulated", "dra_driver_api.config"]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__, *PRELOADED])


class ForkedDriver(DriverProcess):
    """``dra-driver run`` in a fork."""

    def start(self) -> None:
        """Start it."""
        self._process = _Forked(self._flags, self._log, dict(self._environment))  # type: ignore[assignment]


class _Forked:
    """What of ``subprocess.Popen`` a DriverProcess uses."""

    def __init__(self, flags: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._process = _CONTEXT.Process(target=_be_driver, args=(tuple(flags), str(log), environment))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("dra-driver run", timeout)
        return self._process.exitcode


def _be_driver(flags: Sequence[str], log: str, environment: dict[str, str]) -> None:
    """In the fork. Does not return."""
    die_with_parent()
    os.setpgid(0, 0)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for the rest of this process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    sys.exit(main(["run", *flags]))
