"""Makes the driver's device nodes that a fresh node lacks: with nvidia-modprobe of the driver root, else with mknod.

Which nodes are needed, and whether one that is there is right, is decided in ``device_nodes``.
"""

import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.kernel_devices import NVIDIA, NVIDIA_MODESET, NVIDIA_UVM, KernelDevices, Permissions, major_of
from dra_driver.cdi.workspace import workspace
from dra_driver.hostfs import DriverRoots, find_binary
from dra_driver.model.texts import in_one_line
from dra_driver.processes import ENVIRONMENT, Finished, run_limited

log = logging.getLogger(__name__)

NVIDIA_MAJOR: Final = 195
"""Character device major of GPUs, nvidiactl and nvidia-modeset: assigned by the kernel, the same everywhere."""

_TOOL: Final = "nvidia-modprobe"
_REST_SECONDS: Final = 60.0
_SHOWN_OUTPUT: Final = 150

Run = Callable[[Sequence[str], Mapping[str, str], float], Finished]


@dataclass(frozen=True, slots=True)
class Known:
    """A node of the driver: its numbers (major None: given out by the kernel when the module loads).

    module: the kernel module whose device it is. gpu: PCI address, for the node of a GPU.
    """

    name: str
    module: str
    major: int | None
    minor: int
    required: bool = True
    gpu: str = ""


COMMON_NODES: Final = (
    Known("nvidia-modeset", NVIDIA_MODESET, NVIDIA_MAJOR, 254, required=False),
    Known("nvidia-uvm", NVIDIA_UVM, None, 0),
    Known("nvidia-uvm-tools", NVIDIA_UVM, None, 1, required=False),
    Known("nvidiactl", NVIDIA, NVIDIA_MAJOR, 255),
)
"""What every GPU container needs beside its GPUs, sorted by name."""


def gpu_node(minor: int, pci_bus_id: str) -> Known:
    """The node of a GPU."""
    return Known(f"nvidia{minor}", NVIDIA, NVIDIA_MAJOR, minor, gpu=pci_bus_id)


class NodeMaker:
    """Makes nodes in ``roots.container_dev_root``; one at a time, from any thread.

    placeholders: a regular file will do where this process may not make a node, as on a simulated node.
    timeout_s: limit of one run of nvidia-modprobe, which may load a kernel module.
    """

    def __init__(
        self,
        kernel: KernelDevices,
        placeholders: bool = False,
        timeout_s: float = 10.0,
        run: Run = run_limited,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kernel = kernel
        self._placeholders = placeholders
        self._timeout_s = timeout_s
        self._run = run
        self._clock = clock
        self._lock = threading.Lock()
        self._rest_until = 0.0

    def make(self, known: Known, roots: DriverRoots, is_right: Callable[[], bool]) -> str:
        """Make a node that is missing, or is of an earlier load of its module; '' or why that could not be done.

        is_right: looks at the node; asked again before each attempt, as others may make it too.
        """
        with self._lock:
            if is_right():
                return ""
            told = self._with_tool(known, roots)
            if is_right():
                log.info("device node %s made with %s", _path(known, roots), _TOOL)
                return ""
            why = self._with_mknod(known, roots)
            if not why:
                log.info("device node %s made", _path(known, roots))
            return f"{told}{why}" if why else ""

    def _with_tool(self, known: Known, roots: DriverRoots) -> str:
        """Run nvidia-modprobe, which loads the module too; what to add to the error text if the node is not made."""
        command = _command(roots)
        if command is None or self._clock() < self._rest_until:
            return ""
        arguments = _ARGUMENTS.get(known.module, ("-c", str(known.minor)))
        try:
            finished = self._run((*command, *arguments), ENVIRONMENT, self._timeout_s)
        except TimeoutError as error:
            # Others wait for this lock: they shall not each wait for the same hang.
            self._rest_until = self._clock() + _REST_SECONDS
            return f"{_TOOL} was ended: {error}; "
        except OSError as error:
            return f"{_TOOL} cannot be run: {error.strerror}; "
        if finished.code == 0:
            return ""
        output = in_one_line(finished.output)
        return f"{_TOOL} {finished.ending}{': ' if output else ''}{output[-_SHOWN_OUTPUT:]}; "

    def _with_mknod(self, known: Known, roots: DriverRoots) -> str:
        """Make it from the kernel's numbers; why that could not be done, with the remedy."""
        major = major_of(known.module, self._kernel.majors())
        if major is None:
            return (
                f"{self._kernel.devices_file} shows no device of the kernel module {known.module}: "
                f"load it on the host, e.g. modprobe {known.module}"
            )
        permissions = Permissions() if known.module == NVIDIA_UVM else self._kernel.permissions()
        if not permissions.modify:
            return (
                "the nvidia module's parameter ModifyDeviceFiles is 0, so others make its device files on this host: "
                f"see its udev rules, or {_by_hand(known, roots, major)}"
            )
        minor = self._kernel.minor(known.gpu) if known.gpu else None
        if minor not in (None, known.minor):
            return f"GPU {known.gpu} has minor number {minor} now: the driver numbers its GPUs anew; try again"
        try:
            self._put(_path(known, roots), os.makedev(major, known.minor), permissions)
        except OSError as error:
            return (
                f"mknod: {error.strerror}; the driver must run privileged on a writable dev root, "
                f"or {_by_hand(known, roots, major)}"
            )
        return ""

    def _put(self, path: Path, numbers: int, permissions: Permissions) -> None:
        """Others see the node whole or not at all: its mode and group go into CDI specs. Raises OSError."""
        with workspace(path.parent, path.name) as directory:
            fresh = directory / path.name
            try:
                os.mknod(fresh, stat.S_IFCHR | permissions.mode, numbers)
            except PermissionError:
                if not self._placeholders:
                    raise
                fresh.touch()
            else:
                os.chown(fresh, permissions.uid, permissions.gid)
                fresh.chmod(permissions.mode)
            fresh.replace(path)


_ARGUMENTS: Final = {NVIDIA_UVM: ("-u", "-c", "0"), NVIDIA_MODESET: ("-m",)}
"""Arguments of nvidia-modprobe; without -u it takes -c for the minor of a GPU, or 255 for nvidiactl."""


def _command(roots: DriverRoots) -> tuple[str, ...] | None:
    """How nvidia-modprobe is started so that it works on the dev root; None where that is not possible.

    It always makes nodes in ``/dev`` and finds modprobe by the host's path, so it is run inside the driver root
    where that has the same ``dev``.
    """
    root = roots.container_driver_root
    tool = find_binary(root, _TOOL)
    if tool is None:
        return None
    if root != Path("/") and _is_same(root / "dev", roots.container_dev_root / "dev"):
        chroot = shutil.which("chroot", path=ENVIRONMENT["PATH"])
        return (chroot, str(root), f"/{tool.relative_to(root)}") if chroot else None
    return (str(tool),) if roots.container_dev_root == Path("/") else None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _path(known: Known, roots: DriverRoots) -> Path:
    return roots.container_dev_root / "dev" / known.name


def _by_hand(known: Known, roots: DriverRoots, major: int) -> str:
    return f"make it on the host: mknod -m 666 {roots.dev_root / 'dev' / known.name} c {major} {known.minor}"
