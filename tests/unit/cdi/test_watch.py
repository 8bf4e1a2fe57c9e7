import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.cdi.watch import watch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("/usr/lib64")
    (tmp_path / "usr/lib64/libcuda.so.1").touch()
    (tmp_path / "nvidia-cdi-hook").write_text("old")
    (tmp_path / "nvidia-cdi-hook").chmod(0o644)
    return tmp_path


def _add(root: Path) -> None:
    (root / "usr/lib64/libnew.so.1").touch()


def _remove(root: Path) -> None:
    (root / "usr/lib64/libcuda.so.1").unlink()


def _rename(root: Path) -> None:
    (root / "usr/lib64/libcuda.so.1").rename(root / "usr/lib64/libcuda.so.2")


def _move_directory(root: Path) -> None:
    (root / "usr/lib64").rename(root / "usr/old")
    (root / "usr/lib64").mkdir()


def _make_first_of_missing_directories(root: Path) -> None:
    (root / "etc").mkdir()


def _make_program(root: Path) -> None:
    (root / "nvidia-ctk").touch()


def _make_executable(root: Path) -> None:
    (root / "nvidia-cdi-hook").chmod(0o755)


def _write_in_place_with_the_time_of_before(root: Path) -> None:
    before = (root / "nvidia-cdi-hook").stat()
    (root / "nvidia-cdi-hook").write_text("new")
    os.utime(root / "nvidia-cdi-hook", ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        _add,
        _remove,
        _rename,
        _move_directory,
        _make_first_of_missing_directories,
        _make_program,
        _make_executable,
        _write_in_place_with_the_time_of_before,
    ],
)
def test_change_is_noticed(root: Path, change: Callable[[Path], None]) -> None:
    before = watch(root, ["usr/lib64", "etc/vulkan/icd.d"], [root / "nvidia-ctk", root / "nvidia-cdi-hook"])
    assert before.holds()

    change(root)

    assert not before.holds()


def test_place_behind_a_link_is_watched_where_it_really_is(root: Path) -> None:
    before = watch(root, ["lib64"])

    _add(root)

    assert not before.holds()


def test_directory_that_a_link_led_to_is_watched_too(root: Path) -> None:
    (root / "opt").mkdir()
    library = root / "opt/libcuda.so.1"
    library.touch()
    before = watch(root, ["usr/lib64"]).and_of([library])
    assert before.holds()

    library.unlink()

    assert not before.holds()


def test_file_that_was_found_is_watched_for_what_is_written_into_it(root: Path) -> None:
    library = root / "usr/lib64/libcuda.so.1"
    before = watch(root, ["usr/lib64"]).and_of([library])
    assert before.holds()

    library.write_text("at last")

    assert not before.holds()


def test_file_that_was_written_while_it_was_read_may_have_been_read_in_part(root: Path) -> None:
    library = root / "usr/lib64/libcuda.so.1"
    before = watch(root, ["usr/lib64"])
    library.write_text("at last")

    assert not before.and_of([library]).holds()


def test_other_directories_do_not_matter(root: Path) -> None:
    before = watch(root, ["usr/lib64", "etc/vulkan"])

    (root / "usr/share").mkdir()
    (root / "tmp").mkdir()

    assert before.holds()


def test_use_of_a_socket_or_of_the_mps_directory_is_no_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "tmp/nvidia-mps").mkdir(parents=True)
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    before = watch(root, ["socket", "tmp/nvidia-mps"])

    (root / "tmp/nvidia-mps/control").touch()
    (root / "socket").touch()

    assert before.holds()


def test_directory_of_the_mps_directory_may_be_as_busy_as_it_likes(root: Path) -> None:
    mps = root / "tmp/nvidia-mps"
    mps.mkdir(parents=True)
    seen = watch(root, ["usr/lib64", "tmp/nvidia-mps"]).and_of([mps])
    (root / "tmp/somebody-elses").touch()
    assert seen.holds()
    mps.rmdir()
    assert not seen.holds()
