from pathlib import Path

import pytest

from dra_driver.cdi.workspace import workspace


def test_directory_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    with workspace(tmp_path, "tool") as fresh:
        (fresh / "a/b").mkdir(parents=True)
        assert fresh.parent == tmp_path

    assert list(tmp_path.iterdir()) == []


def test_directory_is_removed_when_the_work_fails(tmp_path: Path) -> None:
    def work() -> None:
        with workspace(tmp_path, "tool") as fresh:
            (fresh / "half").touch()
            raise OSError

    with pytest.raises(OSError, match=r"^$"):
        work()

    assert list(tmp_path.iterdir()) == []


def test_others_who_are_at_work_have_their_own_and_keep_it(tmp_path: Path) -> None:
    with workspace(tmp_path, "tool") as one:
        (one / "half").touch()
        with workspace(tmp_path, "tool") as other:
            assert one != other
            assert (one / "half").exists()
        assert (one / "half").exists()


def test_what_was_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".tool.left").mkdir()
    (tmp_path / ".tool.left/half").touch()
    (tmp_path / ".tool.1").symlink_to("/nonexistent")
    (tmp_path / ".other.left").mkdir()
    (tmp_path / "tool").touch()

    with workspace(tmp_path, "tool"):
        pass

    assert {path.name for path in tmp_path.iterdir()} == {".other.left", "tool"}
