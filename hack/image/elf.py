"""Reads from a program which machine it is for and which loader it asks for. Nothing else of ELF."""

from pathlib import Path
from typing import BinaryIO, Final

_PT_INTERP: Final = 3


class NotElf(Exception):
    """The file is no 64-bit little-endian ELF file."""


def machine_of(program: Path) -> int:
    """Number of the machine that a program is for: 62 is x86-64, 183 AArch64. Raises NotElf."""
    with program.open("rb") as file:
        return int.from_bytes(_header(file, program)[18:20], "little")


def loader_of(program: Path) -> str | None:
    """Path of the loader that a program asks for; None when it is static. Raises NotElf."""
    with program.open("rb") as file:
        header = _header(file, program)
        table, size, count = (int.from_bytes(header[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58)))
        file.seek(table)
        entries = file.read(size * count)
        for at in range(0, len(entries), size):
            if int.from_bytes(entries[at : at + 4], "little") == _PT_INTERP:
                file.seek(int.from_bytes(entries[at + 8 : at + 16], "little"))
                return file.read(int.from_bytes(entries[at + 32 : at + 40], "little")).rstrip(b"\0").decode()
    return None


def _header(file: BinaryIO, program: Path) -> bytes:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
        raise NotElf(f"{program} is no 64-bit little-endian ELF file")
    return header
