"""NVIDIA's nvidia-cdi-hook on a node whose NVML is simulated: what runtimes call it with, and which limits it sets.

Specs name a program that keeps how it is called and then becomes the real one. That loads a libnvidia-ml of the
simulated driver which writes down the limits that it is told. The hook knows cgroups of version 2 only, and a node may
have them beside those of version 1: they are mounted where it looks, for it alone. Needs a C compiler.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.hook_program import LIMITS
from tests.unit.cdi import recording_nvml

_PROGRAM: Final = """\
#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
test -e {without} && test "$1" = --help && exec sh -c '"$0" --help | grep -v {limits}' {hook}
test "$1" = {limits} || exec {hook} "$@"
call=$(mktemp -d {calls}/new-XXXXXX)
cat > "$call/state"
printf '%s\\n' "$@" > "$call/arguments"
mv "$call" "{calls}/call-${{call##*-}}"
exec unshare --mount sh -c 'mount -t cgroup2 none /sys/fs/cgroup && exec "$0" "$@"' {hook} "$@" \\
    < "{calls}/call-${{call##*-}}/state"
"""


@dataclass(frozen=True, slots=True)
class Call:
    """How the hook was called: arguments, and the runtime's state of the container from its standard input."""

    arguments: tuple[str, ...]
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """What NVML was told; soft and hard in bytes."""

    gpu_uuid: str
    cgroup: str
    soft: int
    hard: int


class LimitsHook:
    """folder: has the same path on the node. hook: the real program. Both are used by what runs on the node."""

    def __init__(self, folder: Path, hook: Path) -> None:
        self._calls = folder / "calls"
        self._calls.mkdir()
        self._told = folder / "nvml.told"
        self._without = folder / "hook-of-before"
        self._refusing = folder / "nvml.refusing"
        self.path = folder / "bin" / "nvidia-cdi-hook"
        self.path.parent.mkdir()
        self.path.write_text(
            _PROGRAM.format(without=self._without, limits=LIMITS, hook=hook, calls=self._calls), encoding="utf-8"
        )
        self.path.chmod(0o755)

    def put_nvml(self, driver_tree: Path) -> None:
        """Replace NVML's library in a simulated driver, once that is there."""
        (real,) = (path for path in driver_tree.glob("usr/lib64/libnvidia-ml.so.*") if not path.is_symlink())
        recording_nvml.write(real, self._refusing, self._told)

    def know_limits(self, known: bool) -> None:
        """Whether the program is one of today, or one of before there were limits."""
        _there(self._without, not known)
        # What is asked of a program is asked again when its file has changed.
        self.path.touch()

    def refuse(self, refusing: bool) -> None:
        """Whether NVIDIA's driver says that it knows no limits, when they are set."""
        _there(self._refusing, refusing)

    def calls(self, container: str) -> list[Call]:
        """How it was called for a container, by its id."""
        found = [_call(folder) for folder in sorted(self._calls.glob("call-*"))]
        return [each for each in found if each.state["id"] == container]

    def limits(self, container: str) -> list[Limit]:
        """What NVML was told of a container's cgroup."""
        lines = self._told.read_text(encoding="utf-8").splitlines() if self._told.exists() else []
        found = [Limit(gpu, cgroup, int(soft), int(hard)) for gpu, cgroup, soft, hard in map(str.split, lines)]
        return [each for each in found if container in each.cgroup]


def _call(folder: Path) -> Call:
    arguments = (folder / "arguments").read_text(encoding="utf-8").splitlines()
    return Call(tuple(arguments), json.loads((folder / "state").read_text(encoding="utf-8")))


def _there(file: Path, wanted: bool) -> None:
    if wanted:
        file.touch()
    else:
        file.unlink(missing_ok=True)
