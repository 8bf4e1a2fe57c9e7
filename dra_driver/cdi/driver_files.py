"""The edits that all claims of a node share: the NVIDIA driver's files and common device nodes, for containers.

Here it is decided who looks for the files and whether hooks finish containers. What was found is kept for as long as
nothing that it rests on changes.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dra_driver.cdi import builtin
from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.hook_program import LIMITS, LIMITS_STAGE, HookFinder, HookProgram, NoHookProgram
from dra_driver.cdi.host_programs import ProgramFailed, Toolbox
from dra_driver.cdi.layout import FileEdits, Finds, hook_free, with_hooks
from dra_driver.cdi.spec import DeviceNode, Edits, Hook
from dra_driver.cdi.toolkit import Generator, NoToolkit
from dra_driver.cdi.tools import HOOK, HOOK_FREE, EditsSource, HookMode, Tools
from dra_driver.cdi.watch import Watch, watch
from dra_driver.hostfs import LIBRARY_DIRECTORIES, DriverRoots, find_file
from dra_driver.model.devices import Device
from dra_driver.model.errors import CdiError

log = logging.getLogger(__name__)

_NVML: Final = "libnvidia-ml.so.1"
_LIMITS_DIRECTORIES: Final = tuple(
    directory for directory in LIBRARY_DIRECTORIES if directory not in ("usr/lib", "usr/lib/nvidia/tesla", "lib")
)
"""Where the hook for memory limits looks, besides the loader's cache, which is not relied on here."""

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+")


@dataclass(frozen=True, slots=True)
class _Known:
    """A whole result, and what it rests on. Its device nodes are those of the last who asked.

    program: what its hooks call, None where there are none.
    """

    driver_version: str
    watch: Watch
    edits: Edits
    program: HookProgram | None

    def holds(self, driver_version: str) -> bool:
        """Whether this is about that driver and nothing changed since."""
        return self.driver_version == driver_version and self.watch.holds()


class DriverFiles:
    """Files under a driver root and nodes under a dev root, as CDI edits. Thread-safe.

    Host paths lie under ``driver_root`` with links resolved, and each was seen to exist under
    ``container_driver_root``. Container paths: ``layout``, or as NVIDIA's generator has them.
    """

    def __init__(self, roots: DriverRoots, nodes: DeviceNodes, tools: Tools = HOOK_FREE) -> None:
        self._roots = roots
        self._nodes = nodes
        self._files = _Files(roots, tools)
        self._lock = threading.Lock()
        self._known: _Known | None = None
        self._failure: tuple[float, str] | None = None

    def common(self, driver_version: str) -> Edits:
        """Edits that all claims share, of this driver version's files alone.

        The same object is returned as long as nothing it rests on changed or vanished; only whole results are
        kept. Raises CdiError naming what is missing: libcuda or libnvidia-ml of this version (with the
        directories searched), /dev/nvidiactl or /dev/nvidia-uvm, a program that the settings ask for.
        """
        nodes = self._nodes.common(driver_version)
        known = self._look_once(driver_version)
        if known.edits.device_nodes != nodes:
            self._known = known = replace(known, edits=replace(known.edits, device_nodes=nodes))
        return known.edits

    def look_ahead(self, driver_version: str) -> None:
        """Find the files before a claim waits for them; device nodes are left alone. Raises CdiError."""
        self._look_once(driver_version)

    def memory_limit_hook(self, driver_version: str, gpu_uuid: str) -> Hook:
        """The call that sets a container's memory limits on one GPU. Raises CdiError that says what is missing."""
        program = self._look_once(driver_version).program
        if program is None:
            raise CdiError(f"memory limits are set by {HOOK}, and containers are set up without hooks")
        if LIMITS not in program.subcommands:
            raise CdiError(f"{program.path} is not known to have the hook {LIMITS}, which sets memory limits")
        root = self._roots.driver_root
        if find_file(self._roots.container_driver_root, _LIMITS_DIRECTORIES, _NVML) is None:
            raise CdiError(f"the hook {LIMITS} of {program.path} would not find {_NVML} under {root}")
        return program.hook(LIMITS, ("--driver-root", str(root), "--gpu-id", gpu_uuid), LIMITS_STAGE)

    def device_nodes(self, device: Device) -> tuple[DeviceNode, ...]:
        """Nodes of one GPU or MIG device, never cached. Raises CdiError naming the path that is missing."""
        return self._nodes.of(device)

    def _look_once(self, driver_version: str) -> _Known:
        """One look for all who wait. A failure is the answer to those who asked before it: programs may take long."""
        known = self._known
        if known is not None and known.holds(driver_version):
            return known
        if not _VERSION.fullmatch(driver_version):
            raise CdiError(f"driver version: found {driver_version!r}, must be numbers with dots, e.g. 580.159.04")
        asked = time.monotonic()
        with self._lock:
            known = self._known
            if known is not None and known.holds(driver_version):
                return known
            if self._failure is not None and self._failure[0] > asked:
                raise CdiError(self._failure[1])
            self._known = None
            try:
                self._known = known = self._look(driver_version)
            except CdiError as error:
                self._failure = time.monotonic(), str(error)
                raise
            return known

    def _look(self, driver_version: str) -> _Known:
        root = self._roots.container_driver_root
        watched = watch(root, builtin.places(driver_version), self._files.programs())
        found, files, how, program = self._files.find(driver_version)
        gone = sorted(str(file) for file in files if not os.access(file, os.F_OK))
        if gone:
            raise CdiError(f"{gone[0]} vanished while the driver's files were read: is the driver being replaced?")
        edits = Edits(mounts=found.mounts, env=found.env, hooks=found.hooks)
        log.info(
            "NVIDIA driver %s: %d mounts for containers, found under %s %s",
            driver_version,
            len(edits.mounts),
            self._roots.driver_root,
            how,
        )
        return _Known(driver_version, watched.and_of(files).and_copies(self._files.copies()), edits, program)


class _Files:
    """Who looks for files, and how containers are finished, as the settings say and the node allows."""

    def __init__(self, roots: DriverRoots, tools: Tools) -> None:
        toolbox = Toolbox(roots, tools.shared)
        self._roots = roots
        self._tools = tools
        self._hooks = HookFinder(toolbox, tools)
        self._generator = Generator(roots, toolbox, tools)

    def programs(self) -> tuple[Path, ...]:
        """Programs that matter, there or not."""
        if self._tools.hooks is HookMode.NONE:
            return ()
        generator = () if self._tools.edits is EditsSource.BUILTIN else self._generator.watched
        return (*self._hooks.watched, *generator)

    def copies(self) -> tuple[Path, ...]:
        """Files that looking has made."""
        return () if self._tools.hooks is HookMode.NONE else (self._tools.hook_copy,)

    def find(self, driver_version: str) -> tuple[FileEdits, Sequence[Path], str, HookProgram | None]:
        """The edits, the files behind them as seen here, in words how they came about, and what hooks call.

        Raises CdiError.
        """
        program, why = self._hook_program()
        if program is None:
            if self._tools.edits is EditsSource.NVIDIA_CTK:
                raise CdiError(
                    f"--cdi-edits=nvidia-ctk: its edits need nvidia-cdi-hook in containers, and {why}; install the "
                    "NVIDIA container toolkit, set --nvidia-cdi-hook-path, or set --cdi-edits=builtin"
                )
            finds = builtin.find(self._roots, driver_version)
            edits = hook_free(finds, self._roots.on_host, os.uname().machine)
            return edits, _paths(finds), f"by the driver itself, without hooks ({why})", None
        generated = self._generated(driver_version, program)
        if not isinstance(generated, str):
            return *generated, f"by nvidia-ctk, with hooks of {program.path}", program
        finds = builtin.find(self._roots, driver_version)
        edits = with_hooks(finds, program, self._roots.on_host)
        return edits, _paths(finds), f"by the driver itself ({generated}), with hooks of {program.path}", program

    def _hook_program(self) -> tuple[HookProgram | None, str]:
        """The program, or why none is used. Raises CdiError where the settings ask for one."""
        if self._tools.hooks is HookMode.NONE:
            return None, "--cdi-hooks=none"
        try:
            return self._hooks.find(), ""
        except NoHookProgram as error:
            if self._tools.hooks is HookMode.AUTO:
                return None, str(error)
            raise CdiError(
                f"--cdi-hooks=nvidia-cdi-hook: {error}; install the NVIDIA container toolkit, set "
                "--nvidia-cdi-hook-path, or set --cdi-hooks=none"
            ) from error

    def _generated(self, driver_version: str, program: HookProgram) -> tuple[FileEdits, Sequence[Path]] | str:
        """What nvidia-ctk gives, or why it is not asked. Raises CdiError where the settings ask for it."""
        if self._tools.edits is EditsSource.BUILTIN:
            return "--cdi-edits=builtin"
        try:
            return self._generator.generate(driver_version, program)
        except (NoToolkit, ProgramFailed) as error:
            if self._tools.edits is EditsSource.AUTO:
                return str(error)
            raise CdiError(
                f"--cdi-edits=nvidia-ctk: {error}; install the NVIDIA container toolkit, set --nvidia-ctk-path, or set "
                "--cdi-edits=builtin"
            ) from error


def _paths(finds: Finds) -> list[Path]:
    return [
        *(library.file for library in finds.libraries),
        *finds.files.values(),
        *finds.sockets.values(),
        *finds.refused,
    ]
