"""Makes shared objects that hold nothing but their SONAME, for the driver tree of a simulated node.

They are real ELF files, because the dynamic linker complains about anything else that is preloaded and ldconfig
makes no links for it.
"""

import platform
import struct
from typing import Final

_MACHINES: Final = {"x86_64": 62, "aarch64": 183, "arm64": 183}
_ET_DYN, _PT_LOAD, _PT_DYNAMIC = 3, 1, 2
_DT_NULL, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 0, 4, 5, 6, 10, 11, 14
_HEADER, _PROGRAM_HEADER, _SYMBOL = 64, 56, 24
_READ = 4


def shared_object(soname: str, machine: str = "") -> bytes:
    """A 64-bit little-endian library for this machine (or ``machine``, as ``uname -m`` names it)."""
    strings = b"\0" + soname.encode("ascii") + b"\0"
    symbols_at = _HEADER + 2 * _PROGRAM_HEADER
    hash_at = symbols_at + _SYMBOL
    dynamic_at = hash_at + 16
    entries = (
        (_DT_SONAME, 1),
        (_DT_HASH, hash_at),
        (_DT_STRTAB, dynamic_at + 16 * 7),
        (_DT_SYMTAB, symbols_at),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, _SYMBOL),
        (_DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in entries)
    # One bucket, one (null) symbol: some linkers insist on a hash table.
    hash_table = struct.pack("<IIII", 1, 1, 0, 0)
    size = dynamic_at + len(dynamic) + len(strings)
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH",
        _ET_DYN,
        _MACHINES.get(machine or platform.machine(), 62),
        1,
        0,
        _HEADER,
        0,
        0,
        _HEADER,
        _PROGRAM_HEADER,
        2,
        0,
        0,
        0,
    )
    load = struct.pack("<IIQQQQQQ", _PT_LOAD, _READ | 2, 0, 0, 0, size, size, 0x1000)
    span = len(dynamic)
    pointer = struct.pack("<IIQQQQQQ", _PT_DYNAMIC, _READ | 2, dynamic_at, dynamic_at, dynamic_at, span, span, 8)
    return header + load + pointer + bytes(_SYMBOL) + hash_table + dynamic + strings
