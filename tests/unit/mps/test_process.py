"""Supervisors as processes of the driver: kept going while wanted, found again, ended."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dra_driver.model.errors import MpsError
from dra_driver.mps import process, running
from dra_driver.mps.process import ProcessLauncher
from tests.unit.mps.node import ID, SECONDS, daemon, until


@pytest.fixture
def launcher(node):
    made = ProcessLauncher(node.root, first_pause_s=0.05, longest_pause_s=0.1, patience_s=5)
    yield made
    made.end(ID, node.folder.path, SECONDS)
    made.close()
    assert node.processes() == []


def launched(node, launcher):
    node.describe()
    launcher.launch(daemon(), node.folder.path)
    until(node.folder.serves, "it serves")


def supervisor(node):
    return running.supervisors(node.folder.path)[0]


def test_daemon_serves_soon_after_its_launch_in_a_session_of_its_own(node, launcher):
    launched(node, launcher)

    assert os.getsid(supervisor(node)) == supervisor(node)
    assert "serves" in (node.folder.log / "supervisor").read_text()


def test_second_launch_starts_nothing(node, launcher):
    launched(node, launcher)
    first = node.processes()

    launcher.launch(daemon(), node.folder.path)

    assert node.processes() == first


def test_supervisor_that_is_killed_is_started_again(node, launcher):
    launched(node, launcher)
    first, session = supervisor(node), node.folder.session()
    os.kill(first, signal.SIGKILL)

    until(lambda: node.folder.serves() and running.supervisors(node.folder.path) not in ([], [first]))
    assert session == node.folder.session() != ""


def test_daemon_that_is_killed_is_started_again(node, launcher):
    launched(node, launcher)
    first, session = running.control_daemon(node.folder.path), node.folder.session()
    os.kill(first, signal.SIGKILL)

    until(lambda: node.folder.serves() and running.control_daemon(node.folder.path) not in (None, first))
    assert session not in ("", node.folder.session())


def test_daemon_that_dies_again_and_again_is_waited_for_longer_each_time(node):
    node.behave(diesAtStart=True)
    node.describe()
    launcher = ProcessLauncher(node.root, first_pause_s=0.05, longest_pause_s=600)
    launcher.launch(daemon(), node.folder.path)
    until(lambda: launcher._wanted[ID].starts >= 4)
    wanted = launcher._wanted[ID]

    assert wanted.pause_s == pytest.approx(0.05 * 2 ** (wanted.starts - 1))
    until(lambda: "started again in" in launcher.why_not_ready(ID, node.folder.path))
    launcher.end(ID, node.folder.path, SECONDS)
    launcher.close()


def test_pause_has_a_longest_and_begins_anew_after_a_long_run(node, launcher):
    node.behave(diesAtStart=True)
    node.describe()
    launcher.launch(daemon(), node.folder.path)
    until(lambda: launcher._wanted[ID].starts >= 4)
    wanted = launcher._wanted[ID]
    assert wanted.pause_s == 0.1

    node.behave()
    until(node.folder.serves)
    wanted.started = time.monotonic() - 3600
    os.kill(supervisor(node), signal.SIGKILL)
    until(lambda: wanted.pause_s == 0.05)


def test_launcher_of_a_new_driver_leaves_what_serves_alone_and_keeps_it_going(node, launcher):
    launched(node, launcher)
    launcher.close()
    first = supervisor(node)

    second = ProcessLauncher(node.root, first_pause_s=0.05)
    assert second.why_not_ready(ID, node.folder.path) == ""
    second.launch(daemon(), node.folder.path)
    assert supervisor(node) == first
    os.kill(first, signal.SIGKILL)
    until(lambda: node.folder.serves() and running.supervisors(node.folder.path) not in ([], [first]))

    second.end(ID, node.folder.path, SECONDS)
    second.close()


_DRIVER = """
import sys, time
from pathlib import Path
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps.process import ProcessLauncher
ProcessLauncher(Path(sys.argv[1])).launch(MpsDaemon(id=sys.argv[3], devices=()), Path(sys.argv[2]))
print("launched", flush=True)
time.sleep(600)
"""


def test_daemon_outlives_a_driver_that_is_killed_and_a_later_one_ends_it(node, launcher):
    node.describe()
    command = [sys.executable, "-c", _DRIVER, str(node.root), str(node.folder.path), ID]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
        assert driver.stdout.readline() == "launched\n"
        os.killpg(driver.pid, signal.SIGKILL)
    until(node.folder.serves, "it serves without its driver")

    launcher.end(ID, node.folder.path, SECONDS)

    assert node.processes() == []


def test_end_waits_until_everything_is_gone(node, launcher):
    launched(node, launcher)

    launcher.end(ID, node.folder.path, SECONDS)

    assert node.processes() == []
    assert not node.folder.is_supervised()


def test_end_of_what_is_not_there_is_success_whenever_it_is_asked(node, launcher):
    launcher.end(ID, node.folder.path, 1)
    launched(node, launcher)
    launcher.end(ID, node.folder.path, SECONDS)
    launcher.end(ID, node.folder.path, 1)


def test_end_takes_a_daemon_whose_supervisor_was_killed_along(node, launcher):
    launched(node, launcher)
    launcher.close()
    os.kill(supervisor(node), signal.SIGKILL)
    until(lambda: not node.folder.is_supervised())

    launcher.end(ID, node.folder.path, SECONDS)

    assert node.processes() == []


def test_supervisor_that_does_not_react_is_killed_in_time(node, launcher):
    launched(node, launcher)
    os.kill(supervisor(node), signal.SIGSTOP)

    launcher.end(ID, node.folder.path, 0.3)

    assert node.processes() == []


def test_end_right_after_a_launch_leaves_nothing_behind(node, launcher):
    node.describe()
    launcher.launch(daemon(), node.folder.path)
    launcher.end(ID, node.folder.path, SECONDS)

    assert node.processes() == []


def test_lock_that_nobody_here_holds_is_another_containers(node, launcher):
    node.describe()
    descriptor = os.open(node.folder.lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(MpsError, match="runs in another container, does not end"):
            launcher.end(ID, node.folder.path, 0.2)
    finally:
        os.close(descriptor)


def test_folder_that_is_gone_is_said_and_starts_nothing(node, launcher):
    launcher.launch(daemon(), node.folder.path)

    with pytest.raises(MpsError, match=f"its folder {node.folder.path} is gone"):
        launcher.why_not_ready(ID, node.folder.path)
    assert node.processes() == []


def test_what_it_waits_for_is_said(node, launcher):
    node.behave(neverAnswers=True)
    node.describe()
    assert launcher.why_not_ready(ID, node.folder.path) == "no process has been started for it"

    launcher.launch(daemon(), node.folder.path)

    assert launcher.why_not_ready(ID, node.folder.path) == "its processes are starting"


def test_launcher_that_is_closed_starts_nothing_again(node, launcher):
    launched(node, launcher)
    launcher.close()
    os.kill(supervisor(node), signal.SIGKILL)
    os.kill(running.control_daemon(node.folder.path), signal.SIGKILL)
    until(lambda: node.processes() == [])

    launcher.launch(daemon(), node.folder.path)

    assert node.processes() == []


def test_supervisor_that_cannot_be_started_is_an_error_and_tried_again(node, launcher):
    node.describe()
    node.folder.log.rmdir()
    with pytest.raises(MpsError, match="its supervisor cannot be started"):
        launcher.launch(daemon(), node.folder.path)

    node.folder.make()
    until(node.folder.serves)


def test_it_knows_of_no_daemon_without_a_folder(launcher):
    assert launcher.present() == ()
    assert launcher.name == "process"


def test_end_lets_the_daemon_quit_in_peace(node, launcher):
    launched(node, launcher)
    launcher.end(ID, node.folder.path, SECONDS)
    assert "Exit" in (node.folder.log / "output").read_text()


def test_folder_that_is_to_end_gets_no_supervisor(node, launcher):
    node.describe()
    node.folder.set_stopping()
    launcher.launch(daemon(), node.folder.path)
    assert launcher._wanted[ID].starts == 0


def test_supervisor_of_an_earlier_driver_gets_no_second(node, launcher):
    launched(node, launcher)
    second = ProcessLauncher(node.root)
    second.launch(daemon(), node.folder.path)
    assert second._wanted[ID].starts == 0
    second.close()


def test_supervisor_that_goes_on_after_the_driver_is_nothing_that_python_waits_for(node, launcher):
    launched(node, launcher)
    child = launcher._wanted[ID].child
    launcher.close()
    assert child.poll() == 0
    assert running.supervisors(node.folder.path) == [child.pid]


def test_first_start_soon_after_the_boot_has_a_pause_after_it_too(node, launcher, monkeypatch):
    booted = time.monotonic() - 5
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: time.monotonic() - booted, sleep=time.sleep))
    node.describe()
    launcher.launch(daemon(), node.folder.path)
    assert launcher._wanted[ID].pause_s == 0.05
