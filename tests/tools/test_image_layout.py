"""The OCI layout: every digest and size is true, and the bytes follow from the content alone."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hack.image import layers, oci
from hack.image.errors import ImageError
from hack.image.oci import Image

Json = dict[str, Any]


def make_image(folder: Path, **changes: Any) -> Image:
    """Two small layers, and all that an image can say."""
    made = []
    for number in (1, 2):
        tree = folder / f"tree-{number}"
        tree.mkdir(parents=True)
        (tree / f"file-{number}").write_text(f"content {number}")
        (tree / f"file-{number}").chmod(0o644)
        layers.write(tree, folder / f"layer-{number}.tar.gz")
        made.append(layers.read(folder / f"layer-{number}.tar.gz", f"layer {number}"))
    facts: dict[str, Any] = {
        "name": "localhost/thing:v1",
        "architecture": "amd64",
        "layers": made,
        "entrypoint": ("thing",),
        "command": ("run",),
        "environment": {"PATH": "/bin"},
        "labels": {"org.opencontainers.image.title": "thing"},
    }
    return Image(**{**facts, **changes})


def load(layout: Path, name: str) -> Any:
    return json.loads((layout / name).read_text())


def blob(layout: Path, descriptor: Json) -> bytes:
    """A blob, after its digest and size were held against its descriptor."""
    data: bytes = (layout / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == descriptor["digest"]
    assert len(data) == descriptor["size"]
    return data


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    oci.write(make_image(tmp_path / "source"), tmp_path / "layout")
    return tmp_path / "layout"


def manifest_of(layout: Path) -> Json:
    (entry,) = load(layout, "index.json")["manifests"]
    return dict(json.loads(blob(layout, entry)))


def test_layout_says_which_version_it_has(layout: Path) -> None:
    assert load(layout, "oci-layout") == {"imageLayoutVersion": "1.0.0"}


def test_index_names_the_image_as_containerd_imports_it(layout: Path) -> None:
    (entry,) = load(layout, "index.json")["manifests"]
    assert entry["annotations"] == {
        "io.containerd.image.name": "localhost/thing:v1",
        "org.opencontainers.image.ref.name": "v1",
    }
    assert entry["platform"] == {"os": "linux", "architecture": "amd64"}


def test_every_descriptor_has_the_digest_and_size_of_its_blob(layout: Path) -> None:
    manifest = manifest_of(layout)
    blobs = [blob(layout, descriptor) for descriptor in (manifest["config"], *manifest["layers"])]
    assert len(blobs) == 3


def test_there_is_no_blob_that_nothing_names(layout: Path) -> None:
    (entry,) = load(layout, "index.json")["manifests"]
    manifest = manifest_of(layout)
    named = {d["digest"].removeprefix("sha256:") for d in (entry, manifest["config"], *manifest["layers"])}
    assert {path.name for path in (layout / "blobs/sha256").iterdir()} == named


def test_config_has_the_digests_of_the_unpacked_layers_in_order(tmp_path: Path, layout: Path) -> None:
    config = json.loads(blob(layout, manifest_of(layout)["config"]))
    unpacked = [layers.read(tmp_path / f"source/layer-{number}.tar.gz", "").diff_id for number in (1, 2)]
    assert config["rootfs"] == {"type": "layers", "diff_ids": unpacked}
    assert [entry["comment"] for entry in config["history"]] == ["layer 1", "layer 2"]


def test_config_says_what_to_run_and_how(layout: Path) -> None:
    config = json.loads(blob(layout, manifest_of(layout)["config"]))
    assert (config["os"], config["architecture"]) == ("linux", "amd64")
    assert config["config"] == {
        "Entrypoint": ["thing"],
        "Cmd": ["run"],
        "Env": ["PATH=/bin"],
        "WorkingDir": "/",
        "Labels": {"org.opencontainers.image.title": "thing"},
    }


def test_digest_that_is_returned_is_that_of_the_manifest(tmp_path: Path) -> None:
    digest = oci.write(make_image(tmp_path / "source"), tmp_path / "layout")
    assert load(tmp_path / "layout", "index.json")["manifests"][0]["digest"] == digest


def test_docker_finds_the_same_config_and_layers(layout: Path) -> None:
    (entry,) = load(layout, "manifest.json")
    assert entry["RepoTags"] == ["localhost/thing:v1"]
    assert all((layout / path).is_file() for path in (entry["Config"], *entry["Layers"]))


def test_tar_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        oci.write(make_image(tmp_path / name), tmp_path / f"{name}.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_tar_holds_the_same_files_as_the_folder(tmp_path: Path, layout: Path) -> None:
    oci.write(make_image(tmp_path / "again"), tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as archive:
        packed = {member.name for member in archive if member.isfile()}
    assert packed == {path.relative_to(layout).as_posix() for path in layout.rglob("*") if path.is_file()}


def test_layout_that_was_there_is_replaced(tmp_path: Path, layout: Path) -> None:
    oci.write(make_image(tmp_path / "again", name="localhost/thing:v2"), layout)
    (entry,) = load(layout, "index.json")["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "v2"


def test_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(ImageError, match="mine is there and is no image layout"):
        oci.write(make_image(tmp_path / "source"), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_nothing_but_the_image_is_left_in_the_folder_it_was_written_to(tmp_path: Path) -> None:
    oci.write(make_image(tmp_path / "source"), tmp_path / "out/image.tar")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["image.tar"]
