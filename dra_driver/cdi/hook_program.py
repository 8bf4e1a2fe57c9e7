"""nvidia-cdi-hook: where it is, which hooks it has, and the copy of it that the host's runtime calls.

Specs name the program by its host path. The one in this driver's image is copied into the plugin's directory, which has
the same path on the host; one that the host has is called where it lies.
"""

import filecmp
import logging
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.host_programs import HostProgram, ProgramFailed, Toolbox
from dra_driver.cdi.spec import Hook
from dra_driver.cdi.tool_search import hook_places, why_hooks_would_fail
from dra_driver.cdi.tools import HOOK, Tools
from dra_driver.cdi.workspace import workspace
from dra_driver.model.errors import CdiError

log = logging.getLogger(__name__)

SYMLINKS: Final = "create-symlinks"
COMPAT: Final = "enable-cuda-compat"
LDCACHE: Final = "update-ldcache"
NODE_MODIFICATION: Final = "disable-device-node-modification"
PROFILE: Final = "update-application-profile"
HOOKS: Final = (SYMLINKS, COMPAT, LDCACHE, NODE_MODIFICATION, PROFILE)
"""Those that we call, in the order of their calls."""

NEEDED: Final = (SYMLINKS, LDCACHE)
"""Without these no program in a container finds the libraries."""

LIMITS: Final = "apply-cuda-memory-limits"
"""Sets memory limits of a container's cgroup; called only for claims that have some."""

STAGE: Final = "createContainer"
LIMITS_STAGE: Final = "createRuntime"
"""The container's process and cgroup are there, and hooks run as programs of the host."""

ENVIRONMENT: Final = ("NVIDIA_CTK_DEBUG=false",)
PROBE_SECONDS: Final = 5.0
_MODE: Final = 0o755

_COMMAND = re.compile(r"^ {2,}([a-z][a-z0-9-]+)(?:, [a-z])?(?: {2,}|$)", re.MULTILINE)


class NoHookProgram(Exception):
    """There is no nvidia-cdi-hook that can be used; the text says why."""


@dataclass(frozen=True, slots=True)
class HookProgram:
    """path: on the host, as specs name it. subcommands: the hooks that it has."""

    path: str
    subcommands: frozenset[str]

    def hook(self, subcommand: str, arguments: Iterable[str], stage: str = STAGE) -> Hook:
        """A call of it, as NVIDIA's own tools write it."""
        return Hook(stage=stage, path=self.path, args=(HOOK, subcommand, *arguments), env=ENVIRONMENT)


def subcommands(help_text: str) -> frozenset[str]:
    """The hooks that a program lists for ``--help``."""
    return frozenset(_COMMAND.findall(help_text.partition("COMMANDS:")[2]))


class HookFinder:
    """Finds the program, copies it where need be, and asks it what it can do."""

    def __init__(self, toolbox: Toolbox, tools: Tools) -> None:
        self._toolbox = toolbox
        self._tools = tools
        self._told: set[str] = set()

    @property
    def watched(self) -> tuple[Path, ...]:
        """What a result rests on, there or not."""
        return hook_places(self._toolbox, self._tools).watched

    def find(self) -> HookProgram:
        """Raises NoHookProgram; CdiError where the program that a person named cannot be used."""
        if why := why_hooks_would_fail(self._toolbox):
            raise NoHookProgram(why)
        places = hook_places(self._toolbox, self._tools)
        if self._tools.hook_path is not None:
            return self._find_given(self._tools.hook_path, next(iter(places.host), None))
        reasons = []
        if (own := places.own_program) is not None:
            try:
                return self._copied(own.seen)
            except (ProgramFailed, OSError) as error:
                reasons.append(str(error))
        for program in places.host_programs:
            try:
                return self._asked(program)
            except ProgramFailed as error:
                reasons.append(str(error))
        raise NoHookProgram("; ".join(reasons) or f"there is no {HOOK} in {places.searched}")

    def _find_given(self, path: Path, program: HostProgram | None) -> HookProgram:
        if program is None:
            self._tell(
                f"{path} cannot be seen from here: it is taken to have all hooks, as --nvidia-cdi-hook-path says"
            )
            return HookProgram(str(path), frozenset(HOOKS))
        if not program.is_there:
            raise CdiError(f"--nvidia-cdi-hook-path (NVIDIA_CDI_HOOK_PATH): found {path}, there is no such program")
        try:
            return self._asked(program)
        except ProgramFailed as error:
            raise CdiError(f"--nvidia-cdi-hook-path (NVIDIA_CDI_HOOK_PATH): found {path}, {error}") from error

    def _asked(self, program: HostProgram) -> HookProgram:
        output = program.run(("--help",), PROBE_SECONDS).output
        listed = subcommands(output)
        lacking = [name for name in HOOKS if name not in listed]
        missing = [name for name in NEEDED if name not in listed]
        if missing:
            raise ProgramFailed(f"{program.host_path} has no hook {' and '.join(missing)}")
        if lacking:
            self._tell(f"{program.host_path} has no hook {', '.join(lacking)}: left out")
        return HookProgram(str(program.host_path), listed)

    def _copied(self, own: Path) -> HookProgram:
        """The copy of our program. Raises ProgramFailed, OSError.

        Never written in place: a container that starts meanwhile may be running it. Asked before it takes the place
        of one that may work.
        """
        copy = self._tools.hook_copy
        if copy.is_file() and copy.stat().st_mode & _MODE == _MODE and filecmp.cmp(own, copy, False):
            return self._asked(HostProgram(copy, copy))
        copy.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with workspace(self._tools.shared, HOOK) as directory:
            fresh = directory / HOOK
            shutil.copyfile(own, fresh)
            fresh.chmod(_MODE)
            asked = self._asked(HostProgram(fresh, copy))
            fresh.replace(copy)
        log.info("%s copied to %s, for the container runtime to call", own, copy)
        return asked

    def _tell(self, text: str) -> None:
        """Once, however often containers are planned."""
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)
