"""The cache folder: finished pieces by what they were made from. A piece appears whole or not at all."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_KEPT_OF_A_KIND: Final = 8


def folder() -> Path:
    """``$XDG_CACHE_HOME/dra-driver-gpu/image``, made when it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    found = Path(base) / "dra-driver-gpu" / "image"
    found.mkdir(parents=True, exist_ok=True)
    return found


def key_of(*parts: Any) -> str:
    """16 hexadecimal digits that stand for these values (anything JSON can write)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def files_key(root: Path, names: list[str]) -> str:
    """The same for the names and contents of files, and of all Python and package data below folders."""
    digest = hashlib.sha256()
    for name in names:
        top = root / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root)}\0{path.stat().st_mode & 0o111}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()[:16]


def kept(name: str, make: Callable[[Path], None], *, fresh: bool = False) -> tuple[Path, bool]:
    """The file of this name in the cache, and whether it was there already; ``make`` writes it when not.

    name: ``<kind>-<key>``; of a kind the last few stay. fresh: make it anew in any case.
    """
    path = folder() / name
    if path.exists() and not fresh:
        path.touch()
        return path, True
    half = path.with_name(f".{name}.{os.getpid()}")
    try:
        make(half)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    _forget(path)
    return path, False


def _forget(newest: Path) -> None:
    """Remove pieces of the same kind that have not been used for the longest; some builds still want older ones."""
    kind = newest.name.partition("-")[0]
    pieces = sorted(newest.parent.glob(f"{kind}-*"), key=lambda piece: piece.stat().st_mtime, reverse=True)
    for piece in pieces[_KEPT_OF_A_KIND:]:
        piece.unlink(missing_ok=True)
