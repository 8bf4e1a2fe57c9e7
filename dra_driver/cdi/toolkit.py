"""The driver's files as NVIDIA's own generator finds them: ``nvidia-ctk cdi generate``, its paths made the host's.

Its device nodes are left alone: ``device_nodes`` makes missing ones and lets none be left out.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.hook_program import HookProgram
from dra_driver.cdi.host_programs import HostProgram, ProgramFailed, Toolbox
from dra_driver.cdi.layout import FileEdits
from dra_driver.cdi.libraries import REQUIRED_LIBRARIES
from dra_driver.cdi.spec import VOID, Env, Hook, Mount
from dra_driver.cdi.tool_search import generator_places
from dra_driver.cdi.tools import GENERATOR, HOOK, Tools
from dra_driver.hostfs import DriverRoots

RUN_SECONDS: Final = 20.0

_WITHOUT_DEVICES: Final = "--device-id=none"
_NOT_KNOWN: Final = "not defined: -device-id"
_MAX_BYTES: Final = 4 << 20
_VOID_SOURCE: Final = "/dev/null"
_MALFORMED: Final = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


class NoToolkit(Exception):
    """There is no nvidia-ctk; the text says where it was looked for."""


class Generator:
    """Runs nvidia-ctk."""

    def __init__(self, roots: DriverRoots, toolbox: Toolbox, tools: Tools) -> None:
        self._roots = roots
        self._toolbox = toolbox
        self._tools = tools

    @property
    def watched(self) -> tuple[Path, ...]:
        """What a result rests on, there or not."""
        return generator_places(self._toolbox, self._tools).watched

    def generate(self, driver_version: str, hooks: HookProgram) -> tuple[FileEdits, list[Path]]:
        """The edits, and the files behind them as seen here.

        Raises NoToolkit; ProgramFailed when no program gives edits that are whole: libraries of this driver version,
        every file there and under the driver root.
        """
        failure: ProgramFailed | None = None
        places = generator_places(self._toolbox, self._tools)
        for program in places.programs:
            try:
                return self._understood(self._run(program, hooks), program, driver_version, hooks)
            except ProgramFailed as error:
                failure = error
        if failure is None:
            raise NoToolkit(f"there is no {GENERATOR} in {places.searched}")
        raise failure

    def _run(self, program: HostProgram, hooks: HookProgram) -> bytes:
        output = self._tools.shared / f".{GENERATOR}.{os.getpid()}.json"
        arguments = (
            "cdi",
            "generate",
            "--mode=nvml",
            "--format=json",
            f"--driver-root={self._roots.container_driver_root}",
            f"--dev-root={self._roots.container_dev_root}",
            f"--nvidia-cdi-hook-path={hooks.path}",
            f"--output={output}",
        )
        try:
            self._tools.shared.mkdir(mode=0o750, parents=True, exist_ok=True)
            try:
                program.run((*arguments, _WITHOUT_DEVICES), RUN_SECONDS)
            except ProgramFailed as error:
                if _NOT_KNOWN not in str(error):
                    raise
                program.run(arguments, RUN_SECONDS)
            with output.open("rb") as file:
                return file.read(_MAX_BYTES)
        except OSError as error:
            raise ProgramFailed(f"{program.host_path}: {output}: {error.strerror}") from error
        finally:
            output.unlink(missing_ok=True)

    def _understood(
        self, raw: bytes, program: HostProgram, driver_version: str, hooks: HookProgram
    ) -> tuple[FileEdits, list[Path]]:
        try:
            edits = json.loads(raw)["containerEdits"]
            mounts = [(entry["hostPath"], entry["containerPath"], entry["options"]) for entry in edits["mounts"]]
            env = tuple(Env(*entry.split("=", 1)) for entry in edits.get("env", []))
            calls = tuple(_hooks(edits.get("hooks", []), hooks))
        except _MALFORMED as error:
            raise ProgramFailed(f"{program.host_path} gave no CDI spec that can be read: {error!r:.200}") from error
        files = [Path(host) for host, _, _ in mounts if host != _VOID_SOURCE]
        self._check(files, [container for _, container, _ in mounts], program, driver_version)
        described = tuple(Mount(host_path=self._on_host(h), container_path=c, options=tuple(o)) for h, c, o in mounts)
        return FileEdits(described, env if VOID in env else (*env, VOID), calls), files

    def _check(self, files: Sequence[Path], mounted: Sequence[str], program: HostProgram, driver_version: str) -> None:
        root = self._roots.container_driver_root
        for file in files:
            if not file.is_relative_to(root):
                raise ProgramFailed(f"{program.host_path} gave {file}, which is not under {root}")
            if not file.exists():
                raise ProgramFailed(f"{program.host_path} gave {file}, which is not there")
        names = {os.path.basename(path) for path in mounted}
        missing = [name for name in (f"{name}.{driver_version}" for name in REQUIRED_LIBRARIES) if name not in names]
        if missing:
            raise ProgramFailed(f"{program.host_path} found no {' and '.join(missing)} of the running driver")

    def _on_host(self, seen: str) -> str:
        return seen if seen == _VOID_SOURCE else str(self._roots.on_host(Path(seen)))


def _hooks(entries: Sequence[Mapping[str, Any]], program: HookProgram) -> Iterator[Hook]:
    """Calls of the host's program, of hooks that it has; older generators call ``nvidia-ctk hook <name>``."""
    for entry in entries:
        arguments = list(entry["args"][1:])
        if arguments[0] == "hook":
            del arguments[0]
        if arguments[0] in program.subcommands:
            yield Hook(
                stage=entry["hookName"],
                path=program.path,
                args=(HOOK, *arguments),
                env=tuple(entry.get("env", ())),
            )
