"""The driver's files as NVIDIA's own generator finds them: ``nvidia-ctk cdi generate``, its paths made the host's.

Its device nodes are left alone: ``device_nodes`` makes missing ones and lets none be left out.
"""

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.elf import NotALibrary, soname
from dra_driver.cdi.hook_program import LDCACHE, HookProgram
from dra_driver.cdi.host_programs import HostProgram, ProgramFailed, Toolbox
from dra_driver.cdi.layout import FileEdits
from dra_driver.cdi.libraries import REQUIRED_LIBRARIES
from dra_driver.cdi.spec import VOID, Edits, Env, Hook, Mount
from dra_driver.cdi.tool_search import generator_places
from dra_driver.cdi.tools import GENERATOR, HOOK, Tools
from dra_driver.cdi.workspace import workspace
from dra_driver.hostfs import DriverRoots, resolve_inside
from dra_driver.model.errors import CdiError

RUN_SECONDS: Final = 20.0

_WITHOUT_DEVICES: Final = "--device-id=none"
_NOT_KNOWN: Final = "not defined: -device-id"
_MAX_BYTES: Final = 4 << 20
_VOID_SOURCE: Final = "/dev/null"
_MAX_PATH_BYTES: Final = 4095
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

        Raises NoToolkit; CdiError where a person named a program that is not there; ProgramFailed when no program
        gives edits that are whole: libraries of this driver version and a hook that lets programs find them, every
        file there and under the driver root, all rules of CDI kept.
        """
        failure: ProgramFailed | None = None
        places = generator_places(self._toolbox, self._tools)
        for program in places.programs:
            try:
                return self._understood(self._run(program, hooks), program, driver_version, hooks)
            except ProgramFailed as error:
                failure = error
        if failure is not None:
            raise failure
        if (given := self._tools.ctk_path) is not None:
            raise CdiError(f"--nvidia-ctk-path (NVIDIA_CTK_PATH): found {given}, there is no such program")
        raise NoToolkit(f"there is no {GENERATOR} in {places.searched}")

    def _run(self, program: HostProgram, hooks: HookProgram) -> bytes:
        try:
            return self._output(program, hooks, _WITHOUT_DEVICES)
        except ProgramFailed as error:
            if _NOT_KNOWN not in str(error):
                raise
        return self._output(program, hooks)

    def _output(self, program: HostProgram, hooks: HookProgram, *more: str) -> bytes:
        """What one run wrote."""
        try:
            self._tools.shared.mkdir(mode=0o750, parents=True, exist_ok=True)
            with workspace(self._tools.shared, GENERATOR) as directory:
                output = directory / "edits.json"
                arguments = (
                    "cdi",
                    "generate",
                    "--mode=nvml",
                    "--format=json",
                    f"--driver-root={self._roots.container_driver_root}",
                    f"--dev-root={self._roots.container_dev_root}",
                    f"--nvidia-cdi-hook-path={hooks.path}",
                    f"--output={output}",
                    *more,
                )
                program.run(arguments, RUN_SECONDS)
                return _read(output)
        except OSError as error:
            raise ProgramFailed(f"{program.host_path}: {error.filename}: {error.strerror}") from error

    def _understood(
        self, raw: bytes, program: HostProgram, driver_version: str, hooks: HookProgram
    ) -> tuple[FileEdits, list[Path]]:
        try:
            edits = json.loads(raw)["containerEdits"]
            given = dict.fromkeys(_mount(entry) for entry in edits["mounts"])
            env = tuple(Env(*entry.split("=", 1)) for entry in _words(edits.get("env", [])))
            calls = tuple(_hooks(edits.get("hooks", []), hooks))
        except _MALFORMED as error:
            raise ProgramFailed(f"{program.host_path} gave no CDI spec that can be read: {error!r:.200}") from error
        try:
            files = {mount.host_path: self._file(mount.host_path) for mount in given if mount.host_path != _VOID_SOURCE}
            _check(given, files, driver_version, calls)
        except (_Unfit, OSError) as error:
            raise ProgramFailed(f"{program.host_path} {error}") from error
        mounts = tuple(
            replace(mount, host_path=str(self._roots.on_host(files[mount.host_path])))
            if mount.host_path in files
            else mount
            for mount in given
        )
        whole = Edits(mounts=mounts, env=env if VOID in env else (*env, VOID), hooks=calls)
        if whole.problems:
            raise ProgramFailed(f"{program.host_path} gave a CDI spec that breaks rules: {whole.problems[0]}")
        return FileEdits(whole.mounts, whole.env, whole.hooks), list(files.values())

    def _file(self, given: str) -> Path:
        """The file as seen here, links resolved inside the driver root as the host's are not. Raises _Unfit."""
        root, path = self._roots.container_driver_root, Path(given)
        if not path.is_relative_to(root) or ".." in path.parts:
            raise _Unfit(f"gave {given:.200}, which is not under {root}")
        file = resolve_inside(root, path.relative_to(root))
        if file is None:
            raise _Unfit(f"gave {given:.200}, which is not there")
        return file


class _Unfit(Exception):
    """What a generator gave is not whole; the text says what it did."""


def _check(mounts: Iterable[Mount], files: Mapping[str, Path], driver_version: str, calls: Iterable[Hook]) -> None:
    """Raises _Unfit, OSError."""
    at: dict[str, Path | None] = {}
    for mount in mounts:
        path = mount.container_path
        parts = path.split("/")
        if parts[0] or any(part in ("", ".", "..") for part in parts[1:]) or len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise _Unfit(f"gave the container's path {path:.200}, must be absolute, whole and of a file")
        if path in at:
            raise _Unfit(f"gave two mounts for {path}")
        at[path] = file = files.get(mount.host_path)
        if file is not None and ".so." in file.name and not file.is_file():
            raise _Unfit(f"gave {file}, which is no file")
    libraries: dict[str, list[Path]] = {f"{name}.{driver_version}": [] for name in REQUIRED_LIBRARIES}
    for path, file in at.items():
        if file is not None and (name := os.path.basename(path)) in libraries:
            libraries[name].append(file)
    if missing := [name for name, found in libraries.items() if not found]:
        raise _Unfit(f"found no {' and '.join(missing)} of the running driver")
    for found in libraries.values():
        _check_library(found)
    if not any(LDCACHE in call.args for call in calls):
        raise _Unfit(f"gave no call of the hook {LDCACHE}, without which programs find no library")


def _check_library(files: Sequence[Path]) -> None:
    """One of them must be for this machine; others may be for 32-bit programs. Raises _Unfit."""
    whys = []
    for file in files:
        try:
            soname(file)
        except (NotALibrary, OSError) as error:
            whys.append(f"gave {file}, which cannot be used: {error}")
        else:
            return
    raise _Unfit("; ".join(whys))


def _read(output: Path) -> bytes:
    """Raises OSError; a program may leave anything at the place of its output."""
    descriptor = os.open(output, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(output))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES)
    finally:
        os.close(descriptor)


def _text(value: object) -> str:
    """Raises ValueError for what no path, word or variable of a spec may be."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"found {value!r:.100}, must be printable text")
    return value


def _words(value: object) -> tuple[str, ...]:
    """Raises TypeError, ValueError."""
    if not isinstance(value, list):
        raise TypeError(f"found {value!r:.100}, must be a list")
    return tuple(_text(word) for word in value)


def _mount(entry: Mapping[str, Any]) -> Mount:
    return Mount(
        host_path=_text(entry["hostPath"]),
        container_path=_text(entry["containerPath"]),
        options=_words(entry.get("options", [])),
    )


def _hooks(entries: Sequence[Mapping[str, Any]], program: HookProgram) -> Iterator[Hook]:
    """Calls of the host's program, of hooks that it has; older generators call ``nvidia-ctk hook <name>``."""
    for entry in entries:
        arguments = list(_words(entry["args"])[1:])
        if arguments[0] == "hook":
            del arguments[0]
        if arguments[0] in program.subcommands:
            yield Hook(
                stage=_text(entry["hookName"]),
                path=program.path,
                args=(HOOK, *arguments),
                env=_words(entry.get("env", [])),
            )
