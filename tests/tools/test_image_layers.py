"""Layers and the cache of images: same input, same bytes."""

import gzip
import hashlib
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.image import cache, layers
from hack.image.errors import ImageError


def make_tree(root: Path, names: list[str]) -> Path:
    """Files in this order of creation, a link, and a folder that everybody may write to."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
        path.chmod(0o644)
    for folder in [path for path in root.rglob("*") if path.is_dir()]:
        folder.chmod(0o755)
    (root / "link").symlink_to("/etc/b")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def members(layer: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(layer) as archive:
        return archive.getmembers()


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    layers.write(make_tree(tmp_path / "tree", ["etc/b", "etc/a", "bin/run"]), tmp_path / "layer.tar.gz")
    return tmp_path / "layer.tar.gz"


def test_layer_is_the_same_whatever_the_order_and_time_of_its_files(tmp_path: Path, layer: Path) -> None:
    again = make_tree(tmp_path / "again", ["bin/run", "etc/a", "etc/b"])
    os.utime(again / "etc/a", (1_700_000_000, 1_700_000_000))
    layers.write(again, tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == layer.read_bytes()


def test_layer_differs_when_a_mode_does(tmp_path: Path, layer: Path) -> None:
    again = make_tree(tmp_path / "again", ["etc/b", "etc/a", "bin/run"])
    (again / "bin/run").chmod(0o755)
    layers.write(again, tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() != layer.read_bytes()


def test_layer_lists_folders_before_what_is_in_them(layer: Path) -> None:
    assert [member.name for member in members(layer)] == ["bin", "bin/run", "etc", "etc/a", "etc/b", "link", "tmp"]


def test_layer_belongs_to_root_whoever_builds_it(layer: Path) -> None:
    assert {(member.uid, member.gid, member.mtime) for member in members(layer)} == {(0, 0, layers.EPOCH)}


def test_layer_keeps_links_and_sticky_folders(tmp_path: Path, layer: Path) -> None:
    by_name = {member.name: member for member in members(layer)}
    assert (by_name["link"].linkname, by_name["tmp"].mode) == ("/etc/b", 0o1777)


def test_layer_has_no_room_for_a_fifo(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "pipe")
    with pytest.raises(ImageError, match="pipe is neither a file, a folder nor a link"):
        layers.write(tree, tmp_path / "layer.tar.gz")


def test_digests_are_those_of_the_file_and_of_the_tar_in_it(layer: Path) -> None:
    found = layers.read(layer, "a layer")
    inner = gzip.decompress(layer.read_bytes())
    assert found.digest == f"sha256:{hashlib.sha256(layer.read_bytes()).hexdigest()}"
    assert found.diff_id == f"sha256:{hashlib.sha256(inner).hexdigest()}"
    assert (found.size, found.unpacked) == (layer.stat().st_size, len(inner))


def test_unpacked_layer_is_the_tree_it_was_made_from(tmp_path: Path, layer: Path) -> None:
    layers.unpack(layer, tmp_path / "out")
    assert (tmp_path / "out/etc/a").read_text() == "content of etc/a"
    assert os.readlink(tmp_path / "out/link") == "/etc/b"


# The cache.


def writer(text: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_text(text)

    return write


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_piece_is_made_once_and_then_kept() -> None:
    first, was_there = cache.kept("piece-1", writer("made"))
    again, is_there = cache.kept("piece-1", lambda file: pytest.fail("made again"))
    assert (first, was_there, is_there) == (again, False, True)
    assert again.read_text() == "made"


def test_piece_is_made_anew_when_asked_for() -> None:
    cache.kept("piece-1", writer("old"))
    path, cached = cache.kept("piece-1", writer("new"), fresh=True)
    assert (path.read_text(), cached) == ("new", False)


def test_piece_that_could_not_be_finished_leaves_nothing() -> None:
    def fail(file: Path) -> None:
        file.write_text("half")
        raise ImageError("no room")

    with pytest.raises(ImageError):
        cache.kept("piece-1", fail)
    assert list(cache.folder().iterdir()) == []


def test_key_of_files_follows_contents_names_and_right_to_run(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "package").mkdir(parents=True)
    module = source / "package/module.py"
    keys = set()
    for change in (
        lambda: module.write_text("one"),
        lambda: module.write_text("two"),
        lambda: module.chmod(0o755),
        lambda: module.rename(source / "package/other.py"),
    ):
        change()
        keys.add(cache.files_key(source, ["package"]))
    assert len(keys) == 4


def test_key_of_files_does_not_follow_bytecode(tmp_path: Path) -> None:
    package = tmp_path / "source/package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "module.py").write_text("one")
    before = cache.files_key(tmp_path / "source", ["package"])
    (package / "__pycache__/module.pyc").write_bytes(b"x")
    assert cache.files_key(tmp_path / "source", ["package"]) == before


def test_pieces_that_nobody_used_for_long_are_forgotten_within_their_kind() -> None:
    cache.kept("other-1", writer("kept"))
    for number in range(12):
        path, _ = cache.kept(f"piece-{number}", writer("made"))
        os.utime(path, (number, number))
    left = {path.name for path in cache.folder().iterdir()}
    assert {"other-1", "piece-11"} <= left
    assert "piece-0" not in left
