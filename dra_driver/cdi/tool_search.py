"""Where programs of NVIDIA's container toolkit may be, and in which order they are looked for. Reads only.

A path that a person gave is the only one. Else our own directories come first, and the first of them that has the
program counts; then the host's, each in turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.host_programs import HostProgram, Toolbox
from dra_driver.cdi.tools import GENERATOR, HOOK, Tools
from dra_driver.hostfs import BINARY_DIRECTORIES

HOST_DIRECTORIES: Final = tuple(
    Path("/", directory)
    for directory in (*filter(None, BINARY_DIRECTORIES), "usr/local/bin", "usr/local/nvidia/toolkit")
)
"""The last is where the GPU Operator puts the toolkit."""

_LDCONFIG: Final = ("sbin/ldconfig", "sbin/ldconfig.real", "usr/sbin/ldconfig")


@dataclass(frozen=True, slots=True)
class Places:
    """Where one program may be, there or not, as far as it can be seen here. own: in directories of ours."""

    own: tuple[HostProgram, ...] = ()
    host: tuple[HostProgram, ...] = ()

    @property
    def own_program(self) -> HostProgram | None:
        """Ours, if we have it."""
        return next((place for place in self.own if place.is_there), None)

    @property
    def host_programs(self) -> Iterator[HostProgram]:
        """The host's that are there."""
        return (place for place in self.host if place.is_there)

    @property
    def programs(self) -> Iterator[HostProgram]:
        """Those that are there, in the order in which they are tried."""
        if (own := self.own_program) is not None:
            yield own
        yield from self.host_programs

    @property
    def watched(self) -> tuple[Path, ...]:
        """What the outcome of a search rests on, as seen here."""
        return tuple(place.seen for place in (*self.own, *self.host))

    @property
    def searched(self) -> str:
        """The directories, for messages."""
        return ", ".join(dict.fromkeys(str(place.host_path.parent) for place in (*self.own, *self.host)))


def hook_places(toolbox: Toolbox, tools: Tools) -> Places:
    """Of nvidia-cdi-hook; none where the given path of the host cannot be seen."""
    if tools.hook_path is None:
        return _places(HOOK, toolbox, tools)
    given = toolbox.place(tools.hook_path)
    return Places(host=() if given is None else (given,))


def generator_places(toolbox: Toolbox, tools: Tools) -> Places:
    """Of nvidia-ctk."""
    if tools.ctk_path is None:
        return _places(GENERATOR, toolbox, tools)
    return Places(own=(HostProgram(tools.ctk_path, tools.ctk_path),))


def why_hooks_would_fail(toolbox: Toolbox) -> str:
    """Why the host cannot finish containers with hooks, whichever program it has; '' if nothing is known against it."""
    if toolbox.lacks(*_LDCONFIG):
        return f"the host has no {' or '.join(f'/{path}' for path in _LDCONFIG)} for hooks to call"
    return ""


def _places(name: str, toolbox: Toolbox, tools: Tools) -> Places:
    own = (directory / name for directory in tools.own)
    host = (directory / name for directory in HOST_DIRECTORIES) if toolbox.sees_host else ()
    return Places(
        tuple(HostProgram(path, path) for path in own),
        tuple(place for path in host if (place := toolbox.place(path)) is not None),
    )
