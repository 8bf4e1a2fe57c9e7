"""``dra-driver mps-daemon --is-ready``, which the startup probe of a daemon's pod runs."""

import fcntl
from pathlib import Path

import pytest

from dra_driver.commands.main import main
from dra_driver.mps.folders import Folder

DAEMON = "7e2a5d52-1d4a-4a04-9f35-6b5c8e2f6d11-0a1b2"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / DAEMON)
    made.make()
    return made


def is_ready(folder: Folder) -> int:
    return main(["mps-daemon", "--is-ready", str(folder.path)])


def test_daemon_is_ready_when_its_supervisor_says_so_and_runs(folder: Folder) -> None:
    with folder.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_ready(folder) == 1
        (folder.path / "ready").write_text("run 1")
        assert is_ready(folder) == 0


def test_word_of_a_supervisor_that_has_gone_does_not_count(folder: Folder) -> None:
    folder.lock.touch()
    (folder.path / "ready").write_text("run 1")
    assert is_ready(folder) == 1


def test_folder_that_is_none_of_a_daemon_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mps-daemon", "--is-ready", str(tmp_path)]) == 2
    assert "is not the folder of an MPS daemon" in capsys.readouterr().err
