"""Which machines and Debian releases images are built for, and what each calls itself elsewhere. Pure data."""

import platform
from dataclasses import dataclass
from typing import Final

from hack.image.errors import ImageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A CPU architecture. name: as Debian and OCI write it. wheel: as wheel tags do. loader: of its glibc programs.

    elf: its number in programs.
    """

    name: str
    wheel: str
    triplet: str
    loader: str
    elf: int


MACHINES: Final = {
    machine.name: machine
    for machine in (
        Machine(name="amd64", wheel="x86_64", triplet="x86_64-linux-gnu", loader="ld-linux-x86-64.so.2", elf=62),
        Machine(name="arm64", wheel="aarch64", triplet="aarch64-linux-gnu", loader="ld-linux-aarch64.so.1", elf=183),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A Debian release: its Python, and the glibc that wheels may count on (minor version of 2.x)."""

    suite: str
    python: str
    glibc: int

    @property
    def python_tag(self) -> str:
        """``cp311``."""
        return "cp" + self.python.replace(".", "")

    @property
    def packages(self) -> tuple[str, ...]:
        """What the driver needs of Debian: the interpreter, all of its library, and what compiled wheels link to."""
        return (f"python{self.python}-minimal", f"libpython{self.python}-stdlib", "libstdc++6", "libgcc-s1")

    @property
    def site_packages(self) -> str:
        """Where Debian's Python looks for packages that are not Debian's, relative to the root."""
        return f"usr/local/lib/python{self.python}/dist-packages"


RELEASES: Final = {
    "debian": Release(suite="bookworm", python="3.11", glibc=36),
    "debian-13": Release(suite="trixie", python="3.13", glibc=41),
}
"""What ``--base`` knows."""

_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


def native() -> Machine:
    """This machine. Raises ImageError when no image can be built on it."""
    found = platform.machine()
    if found not in _NAMES:
        raise ImageError(f"this machine is {found}: images are built on {' and '.join(_NAMES)} only")
    return MACHINES[_NAMES[found]]


def wheel_platforms(machine: Machine, release: Release) -> list[str]:
    """Platform tags of wheels that run there, newest first."""
    newest = [f"manylinux_2_{minor}_{machine.wheel}" for minor in range(release.glibc, 16, -1)]
    return [*newest, f"manylinux2014_{machine.wheel}"]
