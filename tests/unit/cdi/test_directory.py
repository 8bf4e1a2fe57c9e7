import errno
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.cdi.directory import CdiDirectory
from dra_driver.model.errors import CdiError, SettingError

UID = "0e8a1f2c-3b4d-4a5e-9f60-718293a4b5c6"
FILE = f"k8s.gpu.nvidia.com-claim_{UID}.yaml"
BAD_UIDS = ["", ".", "..", "../x", "a/b", "/etc/passwd", "a..b", "a b", "a\n", "a\0b", "-a", "a-", "ü", "*", "a" * 129]


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


NO_FILES: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: (path / "inside").mkdir(parents=True),
    "fifo": os.mkfifo,
    "socket": _bind,
    "link": lambda path: path.symlink_to("a"),
    "dangling": lambda path: path.symlink_to("nowhere"),
}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Like tmp_path, but short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        yield Path(name)


def _raising(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@contextmanager
def _no_room_for_files() -> Iterator[None]:
    """Writing any byte fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _age(path: Path, seconds: float) -> None:
    path.touch()
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_missing_root_is_made_with_its_parents(tmp_path: Path) -> None:
    CdiDirectory(tmp_path / "var/cdi/dynamic")

    assert (tmp_path / "var/cdi/dynamic").is_dir()


def test_proof_of_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    CdiDirectory(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_root_below_a_file_is_a_setting_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()

    with pytest.raises(SettingError, match=rf"--cdi-root \(CDI_ROOT\): found {tmp_path}/cdi/dynamic, cannot write"):
        CdiDirectory(tmp_path / "cdi/dynamic")


def test_root_that_is_a_file_is_a_setting_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()

    with pytest.raises(SettingError, match=rf"found {tmp_path}/cdi, cannot write there: File exists"):
        CdiDirectory(tmp_path / "cdi")


def test_root_that_is_there_but_cannot_be_written_is_a_setting_error_with_the_path() -> None:
    with pytest.raises(SettingError, match=r"found /proc/self/fdinfo, cannot write there: "):
        CdiDirectory(Path("/proc/self/fdinfo"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def test_full_disk_at_start_is_told_and_ends_nothing(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as full:
        full.setattr("dra_driver.cdi.directory.write_atomically", _raising(number))
        directory = CdiDirectory(tmp_path)
        with pytest.raises(CdiError, match=f"{FILE} cannot be written"):
            directory.write(UID, "text\n")

    assert f"CDI directory {tmp_path} is full" in caplog.text
    directory.write(UID, "text\n")
    assert directory.list() == (UID,)


def test_read_only_disk_at_start_is_a_setting_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.cdi.directory.write_atomically", _raising(errno.EROFS))

    with pytest.raises(SettingError, match=rf"found {tmp_path}, cannot write there: Read-only"):
        CdiDirectory(tmp_path)


def test_disk_too_full_for_the_directory_itself_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", _raising(errno.ENOSPC))
        directory = CdiDirectory(tmp_path / "cdi")
    assert directory.list() == ()

    directory.write(UID, "text\n")

    assert directory.list() == (UID,)


def test_file_has_the_agreed_name_and_all_may_read_it(tmp_path: Path) -> None:
    CdiDirectory(tmp_path).write(UID, "text\n")

    assert (tmp_path / FILE).read_text() == "text\n"
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o644


def test_write_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(UID, "old\n")
    directory.write(UID, "new\n")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {FILE: "new\n"}


def test_full_disk_is_a_cdi_error_with_the_path_and_keeps_the_old_file(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(UID, "old\n")

    with _no_room_for_files(), pytest.raises(CdiError, match=rf"^CDI spec {tmp_path}/{FILE} cannot be written: "):
        directory.write(UID, "new\n")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {FILE: "old\n"}


def test_directory_that_vanished_is_made_again_with_its_parents(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "run/cdi")
    shutil.rmtree(tmp_path / "run")

    directory.write(UID, "text\n")

    assert (tmp_path / "run/cdi" / FILE).read_text() == "text\n"


def test_directory_that_vanished_holds_nothing_and_removal_from_it_is_success(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "cdi")
    (tmp_path / "cdi").rmdir()

    directory.remove(UID)

    assert directory.list() == ()
    assert not directory.holds(UID, "text\n")


def test_directory_that_cannot_be_made_again_is_a_cdi_error_with_the_path(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "cdi")
    (tmp_path / "cdi").rmdir()
    (tmp_path / "cdi").symlink_to("nowhere/at/all")

    with pytest.raises(CdiError, match=rf"^CDI spec {tmp_path}/cdi/{FILE} cannot be written: "):
        directory.write(UID, "text\n")


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_file_is_no_claims_spec_and_told_once(
    short_path: Path, make: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    directory = CdiDirectory(short_path)
    directory.write("a", "text\n")
    make(short_path / FILE)

    assert [directory.list(), directory.list()] == [("a",), ("a",)]
    assert not directory.exists(UID)
    assert not directory.holds(UID, "text\n")
    assert directory.remove_strays({"a"}) == ()
    assert [str(short_path / FILE) in text for text in caplog.messages] == [True]


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_removal_of_what_is_no_file_is_a_cdi_error_with_the_path(
    short_path: Path, make: Callable[[Path], object]
) -> None:
    directory = CdiDirectory(short_path)
    make(short_path / FILE)

    with pytest.raises(CdiError, match=rf"^CDI spec {short_path}/{FILE} cannot be removed: it is no regular file"):
        directory.remove(UID)

    assert os.path.lexists(short_path / FILE)


@pytest.mark.parametrize("content", [b"", b"tex", b"text\n\n", b"texT\n", b"\xff\xfe\xfd\xfc\xfb"])
def test_file_with_other_content_does_not_hold_the_text(tmp_path: Path, content: bytes) -> None:
    directory = CdiDirectory(tmp_path)
    (tmp_path / FILE).write_bytes(content)

    assert not directory.holds(UID, "text\n")


def test_file_holds_the_text_that_was_written(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(UID, "Gerät\n")

    assert directory.holds(UID, "Gerät\n")


@pytest.mark.parametrize("uid", BAD_UIDS)
def test_uid_that_is_no_plain_name_holds_nothing(tmp_path: Path, uid: str) -> None:
    assert not CdiDirectory(tmp_path).holds(uid, "text\n")


def test_removal_is_success_whether_the_file_is_there_or_not(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    directory.write(UID, "text\n")

    directory.remove(UID)
    directory.remove(UID)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uid", BAD_UIDS)
def test_uid_that_is_no_plain_name_is_refused_for_writing(tmp_path: Path, uid: str) -> None:
    directory = CdiDirectory(tmp_path / "cdi")

    with pytest.raises(CdiError, match="cannot name a CDI spec"):
        directory.write(uid, "text\n")

    assert [path.name for path in tmp_path.rglob("*")] == ["cdi"]


@pytest.mark.parametrize("uid", BAD_UIDS)
def test_uid_that_is_no_plain_name_is_refused_for_removal(tmp_path: Path, uid: str) -> None:
    directory = CdiDirectory(tmp_path)

    with pytest.raises(CdiError, match="cannot name a CDI spec"):
        directory.remove(uid)


def test_file_exists_only_when_it_has_content(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    assert not directory.exists(UID)

    (tmp_path / FILE).touch()
    assert not directory.exists(UID)

    directory.write(UID, "text\n")
    assert directory.exists(UID)


def test_list_has_claims_and_no_other_programs_files(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    for claim_uid in ("b", "a"):
        directory.write(claim_uid, "text\n")
    for name in ("nvidia.yaml", "k8s.gpu.nvidia.com-claim_c.json", "k8s.gpu.nvidia.com-claim_.yaml", ".x.yaml"):
        (tmp_path / name).touch()

    assert directory.list() == ("a", "b")


def test_strays_are_removed_and_living_claims_and_other_files_stay(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    for claim_uid in ("living", "stray"):
        directory.write(claim_uid, "text\n")
    (tmp_path / "nvidia.yaml").touch()

    assert directory.remove_strays({"living"}) == ("stray",)
    assert {path.name for path in tmp_path.iterdir()} == {"k8s.gpu.nvidia.com-claim_living.yaml", "nvidia.yaml"}


def test_leftover_temporary_files_are_swept_at_start(tmp_path: Path) -> None:
    _age(tmp_path / ".ab12cd_x.tmp", 3600)

    CdiDirectory(tmp_path)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "age"), [(".ab12cd_x.tmp", 1), ("spec.123.tmp", 3600), (".other.tmp", 3600)], ids=["young", "go", "short"]
)
def test_temporary_file_of_a_living_writer_stays(tmp_path: Path, name: str, age: float) -> None:
    _age(tmp_path / name, age)

    CdiDirectory(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == [name]
