import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dra_driver.cdi.directory import CdiDirectory
from dra_driver.model.errors import CdiError, SettingError

UID = "0e8a1f2c-3b4d-4a5e-9f60-718293a4b5c6"
FILE = f"k8s.gpu.nvidia.com-claim_{UID}.yaml"
BAD_UIDS = ["", ".", "..", "../x", "a/b", "/etc/passwd", "a..b", "a b", "a\n", "a\0b", "-a", "a-", "ü", "*", "a" * 129]


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


def test_full_disk_at_start_is_a_setting_error(tmp_path: Path) -> None:
    with _no_room_for_files(), pytest.raises(SettingError, match=rf"found {tmp_path}, cannot write there: "):
        CdiDirectory(tmp_path)


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


def test_directory_that_vanished_is_a_cdi_error_with_the_path(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path / "cdi")
    (tmp_path / "cdi").rmdir()

    with pytest.raises(CdiError, match=rf"^CDI spec {tmp_path}/cdi/{FILE} cannot be written: No such file"):
        directory.write(UID, "text\n")


def test_file_that_cannot_be_removed_is_a_cdi_error_with_the_path(tmp_path: Path) -> None:
    directory = CdiDirectory(tmp_path)
    (tmp_path / FILE).mkdir()

    with pytest.raises(CdiError, match=rf"^CDI spec {tmp_path}/{FILE} cannot be removed: "):
        directory.remove(UID)


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
