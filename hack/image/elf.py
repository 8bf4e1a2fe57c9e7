"""Reads from a program which loader it asks for. Nothing else of ELF."""

from pathlib import Path
from typing import Final

_PT_INTERP: Final = 3


class NotElf(Exception):
    """The file is no 64-bit little-endian ELF file."""


def loader_of(program: Path) -> str | None:
    """Path of the loader that a program asks for; None when it is static. Raises NotElf."""
    with program.open("rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
            raise NotElf(f"{program} is no 64-bit little-endian ELF file")
        table, size, count = (int.from_bytes(header[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58)))
        file.seek(table)
        entries = file.read(size * count)
        for at in range(0, len(entries), size):
            if int.from_bytes(entries[at : at + 4], "little") == _PT_INTERP:
                file.seek(int.from_bytes(entries[at + 8 : at + 16], "little"))
                return file.read(int.from_bytes(entries[at + 32 : at + 40], "little")).rstrip(b"\0").decode()
    return None
