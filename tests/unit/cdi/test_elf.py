import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.cdi.elf import NotALibrary, soname
from dra_driver.devices.elf import shared_object

LIBRARY = shared_object("libcuda.so.1", "x86_64")


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_soname_of_a_library_is_read(tmp_path: Path) -> None:
    assert soname(_write(tmp_path / "lib", LIBRARY)) == "libcuda.so.1"


def test_library_without_a_soname_has_none(tmp_path: Path) -> None:
    without = LIBRARY.replace(struct.pack("<QQ", 14, 1), struct.pack("<QQ", 15, 1))

    assert soname(_write(tmp_path / "lib", without)) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", ".", "..", "a\nb", "\xe4"])
def test_soname_that_is_no_file_name_is_none(tmp_path: Path, name: str) -> None:
    library = LIBRARY.replace(b"libcuda.so.1", name.encode("latin-1").ljust(12, b"\0")[:12] + b"\0" * (len(name) - 12))

    assert soname(_write(tmp_path / "lib", library)) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param(b"", "no ELF file", id="empty"),
        pytest.param(b"INPUT(libcuda.so.1)\n" + bytes(64), "no ELF file", id="linker script"),
        pytest.param(LIBRARY[:4] + b"\1" + LIBRARY[5:], "must be 64-bit", id="32-bit"),
        pytest.param(LIBRARY[:5] + b"\2" + LIBRARY[6:], "must be 64-bit", id="big-endian"),
    ],
)
def test_what_is_no_library_for_this_machine_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    with pytest.raises(NotALibrary, match=text):
        soname(_write(tmp_path / "lib", content))


@given(at=st.integers(0, len(LIBRARY) - 1), value=st.binary(min_size=1, max_size=8), cut=st.integers(64, len(LIBRARY)))
def test_damaged_library_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: bytes, cut: int
) -> None:
    damaged = (LIBRARY[:at] + value + LIBRARY[at + len(value) :])[:cut]
    path = _write(tmp_path_factory.getbasetemp() / "damaged", damaged)

    try:
        name = soname(path)
    except (NotALibrary, OSError):
        return
    assert name is None or "/" not in name
