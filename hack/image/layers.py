"""Image layers: a folder as a tar whose bytes depend on names, contents and modes alone."""

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from hack.image.errors import ImageError

EPOCH: Final = 0
"""Time of every file, in seconds since 1970."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A gzipped layer on disk. diff_id: digest of the tar inside. Digests are ``sha256:...``; sizes are bytes."""

    path: Path
    what: str
    digest: str
    diff_id: str
    size: int
    unpacked: int


def write(tree: Path, output: Path) -> None:
    """Write a folder as gzipped layer; everything belongs to root. Raises ImageError for what is no file or link."""
    with output.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=EPOCH) as packed:
        write_tar(tree, packed)


def write_tar(tree: Path, output: io.IOBase) -> None:
    """Write a folder as plain tar, sorted by path."""
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _sorted(tree):
            member = _member(path, path.relative_to(tree).as_posix())
            if member.isreg():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)


def unpack(layer: Path, into: Path) -> None:
    """Unpack a layer of ours."""
    with tarfile.open(layer) as archive:
        archive.extractall(into, filter="tar")


def read(path: Path, what: str) -> Layer:
    """The digests and sizes of a layer that was written."""
    inner, unpacked = hashlib.sha256(), 0
    with gzip.open(path) as content:
        for chunk in _chunks(content):
            inner.update(chunk)
            unpacked += len(chunk)
    return Layer(
        path=path,
        what=what,
        digest=digest_of(path),
        diff_id=f"sha256:{inner.hexdigest()}",
        size=path.stat().st_size,
        unpacked=unpacked,
    )


def digest_of(path: Path) -> str:
    """``sha256:...`` of a file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _chunks(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _sorted(tree: Path) -> Iterator[Path]:
    """Everything below a folder, parents first, in an order that no file system decides."""
    with os.scandir(tree) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            yield Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from _sorted(Path(entry.path))


def _member(path: Path, name: str) -> tarfile.TarInfo:
    found = path.lstat()
    member = tarfile.TarInfo(name)
    member.mtime = EPOCH
    member.mode = stat.S_IMODE(found.st_mode)
    member.uname = member.gname = ""
    if stat.S_ISLNK(found.st_mode):
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
    elif stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISREG(found.st_mode):
        member.size = found.st_size
    else:
        raise ImageError(f"{name} is neither a file, a folder nor a link: images have no room for it")
    return member
