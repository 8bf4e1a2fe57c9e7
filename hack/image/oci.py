"""Writes an OCI image layout, as a folder or a tar; a tar can also be loaded by Docker.

The bytes depend on layers and configuration alone. What is in the layers is none of this module's business.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hack.image import layers
from hack.image.errors import ImageError
from hack.image.layers import Layer

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
_CREATED: Final = "1970-01-01T00:00:00Z"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image is. name: ``repository:tag``, under which it is imported. architecture: ``amd64`` or ``arm64``."""

    name: str
    architecture: str
    layers: Sequence[Layer]
    entrypoint: Sequence[str]
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def write(image: Image, output: Path) -> str:
    """Write the image and return the digest of its manifest.

    output: a name that ends in ``.tar`` becomes a tar, any other a folder; what was there is replaced, unless it
    is a folder that holds something else. Raises ImageError.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=output.parent) as scratch:
        made = Path(scratch) / "layout"
        made.mkdir()
        digest = _write_folder(image, made)
        if output.suffix == ".tar":
            packed = Path(scratch) / "image.tar"
            with packed.open("wb") as file:
                layers.write_tar(made, file)
            packed.replace(output)
        else:
            _clear(output)
            made.replace(output)
    return digest


def _clear(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / "oci-layout").is_file()):
        raise ImageError(f"{folder} is there and is no image layout: name another folder, or a file ending in .tar")
    shutil.rmtree(folder)


def _write_folder(image: Image, folder: Path) -> str:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in image.layers:
        shutil.copyfile(layer.path, blobs / _hex(layer.digest))
    config = _blob(blobs, _config(image), CONFIG)
    descriptors = [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in image.layers]
    manifest = _blob(
        blobs, {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors}, MANIFEST
    )
    tag = image.name.rpartition(":")[2]
    entry = {
        **manifest,
        "platform": {"os": "linux", "architecture": image.architecture},
        "annotations": {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": tag},
    }
    _put(folder / "index.json", {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    _put(folder / "oci-layout", {"imageLayoutVersion": "1.0.0"})
    _put(folder / "manifest.json", [_docker(image, str(config["digest"]))])
    return str(manifest["digest"])


def _config(image: Image) -> Json:
    process: Json = {
        "Entrypoint": list(image.entrypoint),
        "Env": [f"{name}={value}" for name, value in image.environment.items()],
        "WorkingDir": "/",
        "Labels": dict(image.labels),
    }
    if image.command:
        process["Cmd"] = list(image.command)
    return {
        "created": _CREATED,
        "architecture": image.architecture,
        "os": "linux",
        "config": process,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
        "history": [{"created": _CREATED, "created_by": "hack.image", "comment": layer.what} for layer in image.layers],
    }


def _docker(image: Image, config: str) -> Json:
    """What ``docker load`` of older versions reads in place of the index."""
    blobs = [f"blobs/sha256/{_hex(layer.digest)}" for layer in image.layers]
    return {"Config": f"blobs/sha256/{_hex(config)}", "RepoTags": [image.name], "Layers": blobs}


def _blob(blobs: Path, content: Json, media_type: str) -> Json:
    data = _bytes(content)
    found = hashlib.sha256(data).hexdigest()
    (blobs / found).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{found}", "size": len(data)}


def _put(path: Path, content: Any) -> None:
    path.write_bytes(_bytes(content))


def _bytes(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
