"""Reads from a shared library the name that programs load it by. Nothing else of ELF."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_MAGIC: Final = b"\x7fELF"
_CLASS_64, _LITTLE = 2, 1
_HEADER: Final = 64
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_MAX_HEADERS: Final = 64 * 1024
_MAX_NAME: Final = 255

_Segment = tuple[int, int, int, int]
"""Type, offset in the file, address, size in the file."""


class NotALibrary(Exception):
    """The file is no 64-bit little-endian ELF file; the text says what it is."""


def soname(path: Path) -> str | None:
    """SONAME of a library; None when it has none that could be a file's name. Raises NotALibrary, OSError."""
    with path.open("rb") as file:
        header = file.read(_HEADER)
        if len(header) < _HEADER or header[:4] != _MAGIC:
            raise NotALibrary("no ELF file")
        if header[4] != _CLASS_64 or header[5] != _LITTLE:
            raise NotALibrary("an ELF file for another kind of machine, must be 64-bit little-endian")
        segments = list(_segments(file, header))
        return next((_soname(file, segments, segment) for segment in segments if segment[0] == _PT_DYNAMIC), None)


def _segments(file: BinaryIO, header: bytes) -> Iterator[_Segment]:
    (table,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    entries = _at(file, table, size * count)
    if size < struct.calcsize("<IIQQQQ"):
        return
    for start in range(0, len(entries) - size + 1, size):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", entries, start)
        yield kind, offset, address, length


def _soname(file: BinaryIO, segments: list[_Segment], dynamic: _Segment) -> str | None:
    facts: dict[int, int] = {}
    for tag, value in struct.iter_unpack("<QQ", _whole_pairs(_at(file, dynamic[1], dynamic[3]))):
        if tag == _DT_NULL:
            break
        facts.setdefault(tag, value)
    if _DT_SONAME not in facts or _DT_STRTAB not in facts:
        return None
    address = facts[_DT_STRTAB] + facts[_DT_SONAME]
    for kind, offset, start, length in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            raw = _at(file, offset + address - start, _MAX_NAME + 1).split(b"\0", 1)[0]
            name = raw.decode("ascii", "replace")
            return name if _is_file_name(name) else None
    return None


def _is_file_name(name: str) -> bool:
    return name not in ("", ".", "..") and name.isprintable() and name.isascii() and "/" not in name


def _at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Bytes of the file, fewer at its end; no offset or length that a broken file names does harm."""
    try:
        file.seek(offset)
        return file.read(min(length, _MAX_HEADERS))
    except (OverflowError, ValueError):
        return b""


def _whole_pairs(entries: bytes) -> bytes:
    return entries[: len(entries) // 16 * 16]
