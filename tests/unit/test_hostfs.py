from pathlib import Path

import pytest

from dra_driver.hostfs import resolve_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("inside\n")
    return tmp_path


@pytest.mark.parametrize("path", ["etc/os-release", "/etc/os-release", "//etc/os-release", "/etc/../../etc/os-release"])
def test_path_of_the_host_stays_inside_its_root_however_it_is_written(root: Path, path: str) -> None:
    assert resolve_inside(root, path) == root / "etc/os-release"


@pytest.mark.parametrize("target", ["/etc/os-release", "//etc/os-release", "../../../etc/os-release", "os-release"])
def test_link_is_followed_as_on_the_host(root: Path, target: str) -> None:
    (root / "etc/link").symlink_to(target)

    assert resolve_inside(root, "etc/link") == root / "etc/os-release"


@pytest.mark.parametrize("target", ["/nowhere", "link", "/etc/os-release/below"])
def test_link_to_nothing_or_to_itself_is_nothing(root: Path, target: str) -> None:
    (root / "etc/link").symlink_to(target)

    assert resolve_inside(root, "etc/link") is None
