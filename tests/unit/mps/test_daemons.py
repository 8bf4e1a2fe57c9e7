"""All daemons of a node behind ports.MpsDaemons: with real processes, and with launchers that say what a test wants."""

import errno
import fcntl
import os
import signal
import threading

import pytest

from dra_driver import hostfs
from dra_driver.model.errors import MpsError, MpsStarting
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.mps import daemons as daemons_module
from dra_driver.mps import running
from dra_driver.mps.daemons import Daemons
from dra_driver.mps.folders import Failure
from dra_driver.mps.mounts import NoMounts
from dra_driver.mps.process import ProcessLauncher
from dra_driver.mps.tool import MpsTool
from dra_driver.ports import MpsDaemons
from tests.unit.mps.node import ID, SECONDS, UUIDS, daemon, needs_root, until

WHOLE = daemon(thread_percentage=25, memory_limits=((UUIDS[0], "2048M"),))


class FakeLauncher:
    """Starts nothing. why: what it says when it is asked, or raises."""

    def __init__(self, name="process", why="", known=()):
        self.name = name
        self.why = why
        self.known = known
        self.calls = []
        self.asked = 0

    def launch(self, wanted, directory):
        self.calls.append(("launch", wanted.id, directory.name))

    def why_not_ready(self, daemon_id, directory):
        self.asked += 1
        if isinstance(self.why, Exception):
            raise self.why
        return self.why

    def end(self, daemon_id, directory, timeout_s):
        self.calls.append(("end", daemon_id, directory.name))
        self.stopping = (directory / "stopping").exists()

    def present(self):
        return self.known


class FakeMounts:
    """Notes what is mounted. fails: the error of the next call."""

    mounts = True

    def __init__(self):
        self.there = set()
        self.fails = None

    def mount(self, folder):
        self._fail()
        assert folder.is_dir()
        self.there.add(folder)

    def unmount(self, folder):
        self._fail()
        self.there.discard(folder)

    def _fail(self):
        if self.fails:
            raise self.fails


@pytest.fixture
def mounts():
    return FakeMounts()


@pytest.fixture
def launcher():
    return FakeLauncher()


@pytest.fixture
def faked(node, launcher, mounts):
    return Daemons(node.mps, MpsTool(node.root), launcher, (), mounts)


@pytest.fixture
def daemons(node):
    launcher = ProcessLauncher(node.root, first_pause_s=0.05, patience_s=5)
    made = Daemons(node.mps, MpsTool(node.root), launcher, mounts=NoMounts())
    yield made
    made.stop(ID, SECONDS)
    launcher.close()
    assert node.processes() == []


def test_daemon_is_started_serves_and_leaves_nothing_when_it_is_stopped(node, daemons):
    port: MpsDaemons = daemons
    port.check()
    port.start(WHOLE)
    port.wait(ID, SECONDS)
    assert port.serves(ID)
    assert port.present() == [WHOLE]
    assert node.control("get_default_active_thread_percentage") == (0, "25.0\n")

    port.stop(ID, SECONDS)

    assert not port.serves(ID)
    assert port.present() == []
    assert os.listdir(node.mps) == []
    assert node.processes() == []


@needs_root
def test_memory_is_mounted_for_the_daemon_and_goes_with_it(node_on_disk):
    node = node_on_disk
    launcher = ProcessLauncher(node.root)
    daemons = Daemons(node.mps, MpsTool(node.root), launcher)
    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)
    assert os.path.ismount(node.folder.shm)
    with node.client():
        pass

    daemons.stop(ID, SECONDS)
    launcher.close()

    assert not node.folder.path.exists()
    assert node.processes() == []


def test_check_names_what_is_missing_and_makes_nothing(node, faked):
    faked.check()
    (node.root / "usr/bin/nvidia-cuda-mps-server").unlink()

    with pytest.raises(MpsError, match="nvidia-cuda-mps-server is not there"):
        faked.check()
    assert not node.mps.exists()


def test_clients_meet_it_in_the_folders_that_the_host_knows(node, launcher, tmp_path):
    daemons = Daemons(node.mps, MpsTool(node.root), launcher, host_root=tmp_path / "host")

    assert daemons.folders(ID) == MpsFolders(pipe=f"{tmp_path}/host/{ID}/pipe", shm=f"{tmp_path}/host/{ID}/shm")


def test_start_again_while_it_serves_changes_nothing(node, daemons):
    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)
    before = node.processes()

    daemons.start(WHOLE)

    assert node.processes() == before


def test_launcher_is_asked_for_nothing_while_it_serves(node, faked, launcher):
    faked.start(WHOLE)
    launcher.calls.clear()
    lock = os.open(node.folder.lock, os.O_RDWR | os.O_CREAT)
    try:
        assert hostfs.try_lock(lock)
        node.folder.set_ready("1 2")
        faked.start(WHOLE)
        faked.wait(ID, SECONDS)
    finally:
        os.close(lock)
    assert (launcher.calls, launcher.asked) == ([], 0)


def test_launcher_is_asked_every_two_seconds_while_someone_waits(node, launcher, mounts, monkeypatch):
    now = [0.0]

    class Time:
        def monotonic(self):
            return now[0]

        def wait(self, seconds):
            now[0] += seconds

    monkeypatch.setattr(daemons_module, "time", Time())
    daemons = Daemons(node.mps, MpsTool(node.root), launcher, (), mounts, closing=Time())
    daemons.start(WHOLE)
    with pytest.raises(MpsStarting):
        daemons.wait(ID, 5.0)
    assert launcher.asked == 3


def test_failure_of_a_daemon_of_before_is_not_told_of_a_new_one(node, faked):
    node.folder.make()
    node.folder.note(Failure("of before", final=False))
    faked.start(WHOLE)
    assert node.folder.failure() is None


def test_start_of_another_daemon_of_this_id_is_an_error_with_both(node, faked, launcher):
    faked.start(WHOLE)

    with pytest.raises(MpsError, match=r"threads 25.*is wanted for.*threads 50.*must be stopped first"):
        faked.start(daemon(thread_percentage=50))
    assert node.folder.description().daemon == WHOLE
    assert len(launcher.calls) == 1


def test_start_is_made_whole_by_the_next_wherever_it_was_cut_short(node, faked, launcher, mounts):
    mounts.fails = OSError(1, "Operation not permitted")
    with pytest.raises(MpsError, match="folder cannot be made: Operation not permitted"):
        faked.start(WHOLE)
    assert node.folder.description() is None
    assert launcher.calls == []

    mounts.fails = None
    faked.start(WHOLE)
    mounts.there.clear()
    node.folder.pipe.rmdir()
    faked.start(WHOLE)

    assert mounts.there == {node.folder.shm}
    assert node.folder.pipe.is_dir()
    assert launcher.calls == [("launch", ID, ID)] * 2


def test_description_that_is_damaged_is_written_anew_when_nobody_runs_by_it(node, faked):
    faked.start(WHOLE)
    (node.folder.path / "daemon.json").write_text("{")

    faked.start(WHOLE)

    assert node.folder.description().daemon == WHOLE


def test_description_that_is_damaged_under_a_running_daemon_is_an_error_and_can_be_stopped(node, daemons):
    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)
    (node.folder.path / "daemon.json").write_text("{")

    with pytest.raises(MpsError, match="is damaged"):
        daemons.start(WHOLE)
    assert daemons.serves(ID)
    assert daemons.present() == [MpsDaemon(id=ID, devices=())]

    daemons.stop(ID, SECONDS)
    assert daemons.present() == []


def test_start_after_a_stop_that_was_cut_short_begins_anew(node, faked, launcher):
    faked.start(WHOLE)
    node.folder.set_stopping()

    faked.start(daemon())

    assert launcher.calls == [("launch", ID, ID), ("end", ID, ID), ("launch", ID, ID)]
    assert node.folder.description().daemon == daemon()
    assert not node.folder.is_stopping()


@pytest.mark.parametrize("daemon_id", ["../../etc-abcde", "", "x", "/tmp/x-abcde"])
def test_what_is_no_id_is_refused_everywhere(faked, node, daemon_id):
    for call in (faked.folders, lambda found: faked.stop(found, 1), lambda found: faked.wait(found, 1)):
        with pytest.raises(MpsError, match="not an id"):
            call(daemon_id)
    with pytest.raises(MpsError, match="not an id"):
        faked.start(daemon(id=daemon_id))
    assert not faked.serves(daemon_id)
    assert not node.mps.exists()


def test_wait_ends_when_the_daemon_serves(node, daemons):
    node.behave(delayMs=300)
    daemons.start(daemon())
    daemons.wait(ID, SECONDS)

    assert daemons.serves(ID)


def test_wait_in_vain_tells_what_is_waited_for_and_the_last_failure(node, faked, launcher):
    faked.start(daemon())
    launcher.why = "it is started again in 3 s"
    (node.folder.path / "failure").write_text('{"text": "it died", "final": false}')

    with pytest.raises(
        MpsStarting, match=f"MPS daemon {ID} does not serve after 0.1 s: it is started again in 3 s. it died"
    ):
        faked.wait(ID, 0.1)


def test_wait_is_over_at_once_for_what_waiting_does_not_mend(node, daemons):
    node.behave(refuses=["set_default_active_thread_percentage"])
    daemons.start(WHOLE)

    with pytest.raises(MpsError, match='"set_default_active_thread_percentage 25" was not taken') as raised:
        daemons.wait(ID, SECONDS)
    assert not isinstance(raised.value, MpsStarting)


def test_start_after_a_failure_for_good_is_a_try_of_its_own(node, daemons):
    node.behave(refuses=["set_default_active_thread_percentage"])
    daemons.start(WHOLE)
    until(node.folder.failure)
    node.behave()

    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)


def test_wait_is_over_when_the_driver_stops(node, launcher, mounts):
    closing = threading.Event()
    daemons = Daemons(node.mps, MpsTool(node.root), launcher, (), mounts, closing=closing)
    daemons.start(WHOLE)
    closing.set()
    with pytest.raises(MpsStarting, match="the driver is stopping"):
        daemons.wait(ID, SECONDS)


def test_wait_passes_on_what_the_launcher_raises(faked, launcher):
    faked.start(daemon())
    launcher.why = MpsError("no such image")

    with pytest.raises(MpsError, match="no such image") as raised:
        faked.wait(ID, 0)
    assert not isinstance(raised.value, MpsStarting)


def test_wait_for_a_folder_that_is_gone_says_so(node, faked):
    with pytest.raises(MpsError, match="is gone"):
        faked.wait(ID, 0)


def test_daemon_that_dies_again_and_again_is_told_with_its_last_words(node, daemons):
    node.behave(diesAtStart=True)
    daemons.start(daemon())
    until(node.folder.failure)

    with pytest.raises(MpsStarting, match="Failed to initialize MPS: the scenario says so"):
        daemons.wait(ID, 0.1)


def test_daemon_that_died_under_its_clients_serves_no_more_and_comes_back(node, daemons):
    daemons.start(daemon())
    daemons.wait(ID, SECONDS)
    first = running.control_daemon(node.folder.path)
    os.kill(first, signal.SIGKILL)

    until(lambda: running.control_daemon(node.folder.path) != first)
    daemons.wait(ID, SECONDS)


def test_stop_tells_the_folder_first_and_is_repeatable(node, faked, launcher, mounts):
    faked.start(WHOLE)

    faked.stop(ID, 1)
    assert launcher.stopping
    assert mounts.there == set()
    assert not node.folder.path.exists()

    faked.stop(ID, 1)
    assert launcher.calls[1:] == [("end", ID, ID)] * 2


def test_stop_that_could_not_unmount_is_gone_on_with(node, faked, mounts):
    faked.start(WHOLE)
    mounts.fails = OSError(5, "Input/output error")
    with pytest.raises(MpsError, match=f"MPS daemon {ID}: its memory cannot be unmounted: Input/output error"):
        faked.stop(ID, 1)
    assert faked.present() == [WHOLE]

    mounts.fails = None
    faked.stop(ID, 1)
    assert faked.present() == []


@pytest.mark.parametrize("left", ["", "pipe", "stopping", "daemon.json"])
def test_stop_of_what_is_half_made_or_half_gone_takes_the_rest(node, faked, left):
    node.folder.path.mkdir(parents=True)
    if left:
        (node.folder.path / left).touch()

    faked.stop(ID, 1)

    assert not node.folder.path.exists()


def test_stop_of_a_daemon_whose_folder_was_removed_ends_it(node, daemons):
    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)
    for path in (node.folder.path / "lock", node.folder.path / "daemon.json"):
        path.unlink()

    daemons.stop(ID, SECONDS)

    assert node.processes() == []


def test_folder_that_was_removed_under_a_daemon_is_made_anew_by_the_next_start(node, daemons):
    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)
    node.folder.remove()
    assert not daemons.serves(ID)

    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)

    assert node.control("get_default_active_thread_percentage") == (0, "25.0\n")


def test_stop_on_a_full_disk_ends_it_all_the_same(node, daemons, monkeypatch):
    daemons.start(WHOLE)
    daemons.wait(ID, SECONDS)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hostfs, "write_atomically", full)
    daemons.stop(ID, SECONDS)
    assert node.processes() == []
    assert not node.folder.path.exists()


def test_stop_while_someone_waits_ends_both(node, daemons):
    node.behave(neverAnswers=True)
    daemons.start(daemon())
    raised = []

    def wait():
        try:
            daemons.wait(ID, SECONDS)
        except MpsError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: running.control_daemon(node.folder.path))
    daemons.stop(ID, SECONDS)
    waiting.join(SECONDS)

    assert not waiting.is_alive()
    assert "is gone" in str(raised[0])


def test_daemon_is_ended_by_what_launched_it(node, launcher, mounts):
    other = FakeLauncher("deployment")
    Daemons(node.mps, MpsTool(node.root), other, (), mounts).start(WHOLE)
    daemons = Daemons(node.mps, MpsTool(node.root), launcher, (other,), mounts)

    daemons.start(WHOLE)
    daemons.stop(ID, 1)

    assert launcher.calls == []
    assert other.calls == [("launch", ID, ID)] * 2 + [("end", ID, ID)]


def test_every_launcher_is_asked_to_end_what_no_folder_tells_of(node, launcher, mounts):
    other = FakeLauncher("deployment")
    daemons = Daemons(node.mps, MpsTool(node.root), launcher, (other,), mounts)

    daemons.stop(ID, 1)

    assert launcher.calls == other.calls == [("end", ID, ID)]


def test_daemon_of_a_launcher_that_this_driver_lacks_is_not_started_again(node, launcher, mounts):
    Daemons(node.mps, MpsTool(node.root), FakeLauncher("deployment"), (), mounts).start(WHOLE)

    with pytest.raises(MpsError, match=r"launched by 'deployment', which this driver is not \(process\)"):
        Daemons(node.mps, MpsTool(node.root), launcher, (), mounts).start(WHOLE)


def test_daemons_that_left_a_folder_or_a_deployment_are_present(node, launcher, mounts):
    known = MpsDaemon(id="other-00000", devices=())
    launcher.known = (known, MpsDaemon(id=ID, devices=()))
    daemons = Daemons(node.mps, MpsTool(node.root), launcher, (), mounts)
    assert [found.id for found in daemons.present()] == [ID, "other-00000"]
    daemons.start(WHOLE)
    (node.mps / "half-00000").mkdir()
    (node.mps / "not an id").mkdir()

    assert daemons.present() == [WHOLE, MpsDaemon(id="half-00000", devices=()), known]


@pytest.mark.parametrize("text", ["", "{}", None])
def test_daemon_whose_folder_tells_nothing_is_what_its_launcher_knows(node, launcher, mounts, text):
    known = MpsDaemon(id=ID, devices=UUIDS, gpus=UUIDS[:1])
    launcher.known = (known,)
    node.folder.make()
    if text is not None:
        (node.folder.path / "daemon.json").write_text(text)
    assert Daemons(node.mps, MpsTool(node.root), launcher, (), mounts).present() == [known]


def test_start_of_what_serves_asks_no_launcher_and_mounts_nothing(node, faked, launcher, mounts):
    faked.start(WHOLE)
    node.folder.set_ready("1 1")
    mounts.there.clear()
    with node.folder.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        faked.start(WHOLE)
    assert launcher.calls == [("launch", ID, ID)]
    assert mounts.there == set()


def test_failure_of_a_folder_that_was_of_nobody_is_not_told_of_the_next_daemon(node, faked):
    node.folder.make()
    node.folder.note(Failure("has no daemon.json", final=False))
    faked.start(WHOLE)
    assert node.folder.failure() is None


def test_daemon_of_another_launcher_is_present_without_a_folder(node, launcher, mounts):
    known = MpsDaemon(id="other-00000", devices=())
    other = FakeLauncher("deployment", known=(known,))
    assert Daemons(node.mps, MpsTool(node.root), launcher, (other,), mounts).present() == [known]


def test_each_launcher_has_some_time_to_end_a_daemon(node, mounts):
    given = []

    class Timed(FakeLauncher):
        def end(self, daemon_id, directory, timeout_s):
            given.append(timeout_s)

    Daemons(node.mps, MpsTool(node.root), Timed(), (Timed("deployment"),), mounts).stop(ID, -5)
    assert given == [1.0, 1.0]
