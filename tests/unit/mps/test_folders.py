"""What a daemon's folder tells."""

import os
import stat

import pytest

from dra_driver import hostfs
from dra_driver.model.errors import MpsError
from dra_driver.mps.description import Description
from dra_driver.mps.folders import Failure, Folder
from tests.unit.mps.node import ID, daemon


@pytest.fixture
def folder(tmp_path):
    made = Folder.of(tmp_path / "mps", ID)
    made.make()
    made.describe(Description(daemon(), "process", False))
    return made


@pytest.fixture
def locked(folder):
    descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT)
    assert hostfs.try_lock(descriptor)
    yield descriptor
    os.close(descriptor)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_of_clients_are_open_and_those_around_them_are_not(tmp_path):
    before = os.umask(0o077)
    try:
        folder = Folder.of(tmp_path / "mps", ID)
        folder.make()
        folder.make()
    finally:
        os.umask(before)
    assert [mode(path) for path in (folder.path.parent, folder.path, folder.log)] == [0o700] * 3
    assert [mode(path) for path in (folder.pipe, folder.shm)] == [0o755, 0o1777]


def test_folder_that_a_kill_left_closed_is_opened_to_clients(folder):
    folder.pipe.chmod(0o700)
    folder.make()
    assert mode(folder.pipe) == 0o755


def test_pipe_is_cleared_of_everything_and_what_links_lead_to_stays(folder, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("")
    (folder.pipe / "link").symlink_to(tmp_path / "precious")
    (folder.pipe / "control/deep").mkdir(parents=True)
    os.mkfifo(folder.pipe / "log")
    folder.clear_pipe()
    assert list(folder.pipe.iterdir()) == []
    assert (tmp_path / "precious/file").exists()


def test_description_is_for_the_driver_only(folder):
    assert mode(folder.path / "daemon.json") == 0o600
    assert folder.description() == Description(daemon(), "process", False)


def test_folder_without_description_has_none(tmp_path):
    assert Folder(tmp_path / ID).description() is None


def test_description_that_cannot_be_read_is_an_error_with_the_path(tmp_path):
    (tmp_path / ID / "daemon.json").mkdir(parents=True)

    with pytest.raises(MpsError, match=f"{tmp_path / ID}/daemon.json: Is a directory"):
        Folder(tmp_path / ID).description()


def test_folder_of_a_path_is_refused(tmp_path):
    with pytest.raises(MpsError, match="not an id"):
        Folder.of(tmp_path, "../" + ID)


def test_daemon_serves_while_its_supervisor_has_the_lock(folder, locked):
    assert not folder.serves()
    folder.set_ready("1 1")
    assert folder.serves()

    folder.set_stopping()
    assert not folder.serves()


def test_ready_that_a_killed_supervisor_left_says_nothing(folder):
    folder.lock.touch()
    folder.set_ready("1 1")

    assert not folder.serves()


def test_look_at_the_lock_takes_it_from_nobody(folder):
    folder.lock.touch()
    assert not folder.is_supervised()

    descriptor = os.open(folder.lock, os.O_RDWR)
    assert hostfs.try_lock(descriptor)
    os.close(descriptor)


def test_failure_is_told_until_the_daemon_serves(folder):
    folder.note(Failure("it died", True))
    assert folder.failure() == Failure("it died", True)

    folder.set_ready("1 1")
    assert folder.failure() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text": 1}'])
def test_failure_that_is_damaged_is_none(folder, text):
    (folder.path / "failure").write_text(text)

    assert folder.failure() is None


def test_folder_that_is_gone_is_told_nothing(tmp_path):
    folder = Folder(tmp_path / ID)
    folder.note(Failure("it died", False))
    folder.set_stopping()
    folder.remove()

    assert not folder.path.exists()


def test_description_and_wish_go_last(folder, monkeypatch):
    folder.set_stopping()
    gone = []
    unlink = type(folder.path).unlink
    monkeypatch.setattr(type(folder.path), "unlink", lambda path, **how: (gone.append(path.name), unlink(path, **how)))
    folder.note(Failure("x", False))
    (folder.path / "link").symlink_to("pipe")

    folder.remove()

    assert gone[-2:] == ["daemon.json", "stopping"]
    assert not folder.path.exists()


def test_run_is_told_while_it_serves_and_not_by_what_it_left(folder, locked):
    assert folder.session() == ""
    folder.set_ready("1 1")
    assert folder.session() == "1 1"

    folder.set_stopping()
    assert folder.session() == ""


def test_run_whose_supervisor_was_killed_is_none(folder):
    folder.lock.touch()
    folder.set_ready("1 1")
    assert folder.session() == ""
