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


@pytest.mark.parametrize(
    "change", [_add, _remove, _rename, _move_directory, _make_first_of_missing_directories, _make_program]
)
def test_change_is_noticed(root: Path, change: Callable[[Path], None]) -> None:
    before = watch(root, ["usr/lib64", "etc/vulkan/icd.d"], [root / "nvidia-ctk"])
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
