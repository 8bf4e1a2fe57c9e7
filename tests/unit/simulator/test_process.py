"""The driver as a process: its own environment, its log, and that it never outlives whoever started it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.model.errors import DriverError
from dra_driver.simulator import process, tied
from dra_driver.simulator.process import DriverProcess


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_end_of_the_process_is_reported_with_its_log(tmp_path: Path) -> None:
    driver = DriverProcess(["--no-such-flag"], tmp_path / "log")
    driver.start()
    wait_until(lambda: driver.pid is None)
    with pytest.raises(DriverError, match="exit code 2; its log ends with: dra-driver: unknown flag --no-such-flag"):
        driver.check()


def test_settings_of_this_shell_do_not_leak_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "from-the-shell")
    driver = DriverProcess([], tmp_path / "log")
    driver.start()
    wait_until(lambda: driver.pid is None)
    assert "--node-name" in driver.log_tail()


def test_process_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    driver = DriverProcess([], tmp_path / "log")
    driver.kill()
    assert driver.stop() is None


def test_process_that_never_started_is_not_running(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="not started"):
        DriverProcess([], tmp_path / "log").check()


def test_log_in_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="the driver cannot be started"):
        DriverProcess([], tmp_path / "missing" / "log").start()


def test_tied_command_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent that is killed cannot tidy up: the kernel does."""
    pid_file = tmp_path / "pid"
    text = (
        "import os, subprocess, sys, time\n"
        f"command = [sys.executable, {tied.__file__!r}, str(os.getpid()), '/bin/sleep', '600']\n"
        "child = subprocess.Popen(command)\n"
        f"open({str(pid_file)!r} + '.new', 'w').write(str(child.pid))\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", text])
    try:
        wait_until(pid_file.exists)
        child = int(pid_file.read_text())
        wait_until(lambda: "sleep" in command_of(child))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: command_of(child) == "")


def command_of(pid: int) -> str:
    """Command line of a process, '' when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_tied_command_does_not_start_for_a_parent_that_is_gone() -> None:
    done = subprocess.run(
        [sys.executable, tied.__file__, "1", "/bin/echo", "started"], capture_output=True, check=True, timeout=20
    )
    assert done.stdout == b""


def test_stubborn_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ignores SIGTERM does not hold up the end of the demo."""
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(process, "_TIED", stubborn)
    driver = DriverProcess([], tmp_path / "log")
    driver.start()
    wait_until(lambda: driver.log_tail() == "up")
    assert driver.stop(timeout=0.2) == -signal.SIGKILL
