"""Container images made here, as archives that ``ctr images import`` reads (the form of ``docker save``).

One layer with busybox under all its names serves for pods and, with another entrypoint, as the pause image.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hack.cluster.commands import run
from hack.cluster.errors import ClusterError

BUSYBOX: Final = "dra.local/busybox:1"
PAUSE: Final = "dra.local/pause:1"

_PROGRAM: Final = Path("/bin/busybox")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_FOLDERS: Final = ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "var")
_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnobody:x:65534:\n",
}


@dataclass(frozen=True, slots=True)
class Image:
    """A name and what containers of it run. environment: NAME=value."""

    name: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Sequence[str] = field(default_factory=lambda: ["PATH=/bin:/usr/bin"])


IMAGES: Final = (Image(BUSYBOX, command=("sh",)), Image(PAUSE, entrypoint=("/bin/sleep", "infinity")))


def archive(layer: bytes, images: Sequence[Image]) -> bytes:
    """A tar with these images over one layer (an uncompressed tar)."""
    name = f"{hashlib.sha256(layer).hexdigest()}/layer.tar"
    files = {name: layer}
    manifest = []
    for image in images:
        config = json.dumps(_config(layer, image), sort_keys=True).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        files[config_name] = config
        manifest.append({"Config": config_name, "RepoTags": [image.name], "Layers": [name]})
    files["manifest.json"] = json.dumps(manifest).encode()
    return tar({path: (content, 0o644) for path, content in files.items()})


def busybox_layer(program: Path = _PROGRAM) -> bytes:
    """A root file system of busybox alone. Raises ClusterError."""
    if not program.exists():
        raise ClusterError(f"{program} is missing: install Debian's busybox-static")
    names = run([str(program), "--list"], 10.0).split()
    files = {path: (text.encode(), 0o644) for path, text in _FILES.items()}
    files["bin/busybox"] = (program.read_bytes(), 0o755)
    links = {f"bin/{name}": "busybox" for name in names if name != "busybox"}
    return tar(files, links, _FOLDERS)


def tar(
    files: Mapping[str, tuple[bytes, int]], links: Mapping[str, str] | None = None, folders: Sequence[str] = ()
) -> bytes:
    """A tar of folders, files (content and mode) and symbolic links; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for path in folders:
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if path == "tmp" else 0o755
            out.addfile(entry)
        for path, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = mode, len(content)
            out.addfile(entry, io.BytesIO(content))
        for path, target in sorted((links or {}).items()):
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            out.addfile(entry)
    return buffer.getvalue()


def _config(layer: bytes, image: Image) -> dict[str, object]:
    run = {"Entrypoint": list(image.entrypoint), "Cmd": list(image.command), "Env": list(image.environment)}
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {name: value for name, value in run.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created_by": "hack/cluster"}],
    }
