"""Settings of a GPU behind ports.GpuControl: compute mode in process, time slice with the driver's tool.

The time slice has no NVML call. When and whether to set anything is decided elsewhere.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from dra_driver import hostfs
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import (
    ControlError,
    ControlGone,
    ControlRefused,
    ControlTimeout,
    ControlUnsupported,
)
from dra_driver.model.texts import printable
from dra_driver.ports import GpuControl
from dra_driver.processes import Finished, run_limited

log = logging.getLogger(__name__)

TIME_SLICES: Final = ("Default", "Short", "Medium", "Long")
"""What nvidia-smi calls the intervals 0 to 3."""

_LEVEL = re.compile(r"\b(default|short|medium|long)\b", re.IGNORECASE)
_NOT_SUPPORTED = re.compile(r"not[ _-]?supported|unsupported", re.IGNORECASE)
# Some failures are only printed: the exit code is 0 all the same.
_FAILED = re.compile(r"^\s*failed\b|insufficient permissions", re.IGNORECASE | re.MULTILINE)
_EXIT_UNSUPPORTED = frozenset({3, 13})
_EXIT_GONE = frozenset({6, 9, 12, 15})
_SHOWN_OUTPUT = 200
_LOCK_POLL_S = 0.02


class ComputeModes(Protocol):
    """Compute mode and epoch, as NvmlSource and a simulated node give them; errors as in ports.GpuControl."""

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """Read it."""

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """Set it."""

    def epoch(self) -> str:
        """Changes when the driver or NVML was lost in between."""


class GpuTool:
    """Runs the driver's nvidia-smi for one GPU at a time; calls for different GPUs do not wait on each other.

    find: path of nvidia-smi, asked before each run since the driver can come, go and be upgraded; None when
    there is none. library: libnvidia-ml to preload, since the tool under a driver root must not pick another
    one. searched: where ``find`` looks, for the error text.
    """

    def __init__(
        self,
        find: Callable[[], Path | None],
        library: Callable[[], Path | None],
        timeout_s: float = 10.0,
        searched: str = "the driver root",
        lock_directory: Path | None = None,
    ) -> None:
        self._find = find
        self._library = library
        self._timeout_s = timeout_s
        self._searched = searched
        self._lock_directory = lock_directory

    @classmethod
    def under(cls, root: Path, timeout_s: float = 10.0, lock_directory: Path | None = None) -> "GpuTool":
        """The tool and library of the driver root as seen by this process."""
        folders = ", ".join(folder or "." for folder in hostfs.BINARY_DIRECTORIES)
        return cls(
            find=lambda: hostfs.find_binary(root, "nvidia-smi"),
            library=lambda: hostfs.find_library(root, "libnvidia-ml.so.1"),
            timeout_s=timeout_s,
            searched=f"{root}: {folders}",
            lock_directory=lock_directory,
        )

    def set_time_slice(self, gpu_uuid: str, interval: int) -> None:
        """One run of ``nvidia-smi compute-policy --set-timeslice``.

        Raises ControlUnsupported when the GPU has no such setting, ControlTimeout, ControlGone when the tool,
        the driver or the GPU is missing, else ControlError. Texts name GPU, command, exit, last output line.
        """
        if interval not in range(len(TIME_SLICES)):
            raise ControlError(f"GPU {gpu_uuid}: time slice {interval!r} is not one of 0, 1, 2, 3")
        with self._alone(gpu_uuid) as lock:
            self._run(gpu_uuid, ("compute-policy", "-i", gpu_uuid, "--set-timeslice", str(interval)), lock)

    @contextmanager
    def _alone(self, gpu_uuid: str) -> Iterator[Sequence[int]]:
        """Wait for a run for this GPU that outlived a killed driver, or it would undo what is set now.

        The lock goes with the last process that has it open, so also with a tool whose driver is gone. Raises
        ControlTimeout.
        """
        if self._lock_directory is None:
            yield ()
            return
        descriptor = os.open(self._lock_directory / f"{gpu_uuid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + self._timeout_s
            while not hostfs.try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise ControlTimeout(
                        f"GPU {gpu_uuid}: an nvidia-smi of an earlier driver still runs after {self._timeout_s:g} s"
                    )
                time.sleep(_LOCK_POLL_S)
            yield (descriptor,)
        finally:
            os.close(descriptor)

    def time_slice(self, gpu_uuid: str) -> int | None:
        """The slice that ``nvidia-smi compute-policy --list`` shows, None when it does not tell.

        Raises ControlTimeout and ControlGone only.
        """
        try:
            output = self._run(gpu_uuid, ("compute-policy", "-i", gpu_uuid, "--list"))
        except (ControlTimeout, ControlGone):
            raise
        except ControlError as error:
            log.debug("time slice unknown: %s", error)
            return None
        return parse_time_slice(output)

    def _run(self, gpu_uuid: str, arguments: Sequence[str], inherited: Sequence[int] = ()) -> str:
        tool = self._find()
        if tool is None:
            raise ControlGone(f"GPU {gpu_uuid}: nvidia-smi is not there (searched {self._searched})")
        shown = f'GPU {gpu_uuid}: "{" ".join((str(tool), *arguments))}"'
        try:
            finished = run_limited((str(tool), *arguments), self._environment(), self._timeout_s, inherited)
        except TimeoutError as error:
            raise ControlTimeout(f"{shown} was ended: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            kind = ControlGone if isinstance(error, FileNotFoundError | PermissionError) else ControlError
            raise kind(f"{shown} cannot be run: {reason}") from error
        if finished.code != 0 or _FAILED.search(finished.output):
            raise _failure(shown, finished)
        return finished.output

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        library = self._library()
        if library is not None:
            others = environment.get("LD_PRELOAD", "")
            environment["LD_PRELOAD"] = f"{library}:{others}" if others else str(library)
        return environment


class ToolControl:
    """GpuControl of a node whose settings this driver may change."""

    def __init__(self, modes: ComputeModes, tool: GpuTool) -> None:
        self._modes = modes
        self._tool = tool

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """See ports.GpuControl."""
        return self._modes.compute_mode(gpu_uuid)

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """See ports.GpuControl."""
        self._modes.set_compute_mode(gpu_uuid, mode)

    def time_slice(self, gpu_uuid: str) -> int | None:
        """See ports.GpuControl."""
        return self._tool.time_slice(gpu_uuid)

    def set_time_slice(self, gpu_uuid: str, interval: int) -> None:
        """See ports.GpuControl."""
        self._tool.set_time_slice(gpu_uuid, interval)

    def epoch(self) -> str:
        """See ports.GpuControl."""
        return self._modes.epoch()


class ObservingControl:
    """GpuControl for ``--gpu-control=observe``: reads as ``inner`` does and refuses every change."""

    def __init__(self, inner: GpuControl) -> None:
        self._inner = inner

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """See ports.GpuControl."""
        return self._inner.compute_mode(gpu_uuid)

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """Raises ControlRefused."""
        raise _refused(gpu_uuid, f"compute mode would have to be set to {mode.name}")

    def time_slice(self, gpu_uuid: str) -> int | None:
        """See ports.GpuControl."""
        return self._inner.time_slice(gpu_uuid)

    def set_time_slice(self, gpu_uuid: str, interval: int) -> None:
        """Raises ControlRefused."""
        raise _refused(gpu_uuid, f"time slice would have to be set to {interval}")

    def epoch(self) -> str:
        """See ports.GpuControl."""
        return self._inner.epoch()


def parse_time_slice(output: str) -> int | None:
    """The interval 0..3 in what ``compute-policy --list`` printed for one GPU.

    The layout is not documented and changes, so only the level's word counts, and only if there is exactly
    one: a help text names all four.
    """
    levels = {word.capitalize() for word in _LEVEL.findall(output)}
    return TIME_SLICES.index(levels.pop()) if len(levels) == 1 else None


def _refused(gpu_uuid: str, change: str) -> ControlRefused:
    return ControlRefused(f"GPU {gpu_uuid}: its {change}, and this driver runs with --gpu-control=observe")


def _failure(shown: str, finished: Finished) -> ControlError:
    """The typed error for a run that failed; exit codes are those of nvidia-smi's manual."""
    text = f"{shown} {finished.ending}"
    lines = [line.strip() for line in finished.output.splitlines() if line.strip()]
    if lines:
        last = printable(lines[-1])
        text += f": {last if len(last) <= _SHOWN_OUTPUT else last[: _SHOWN_OUTPUT - 3] + '...'}"
    if _NOT_SUPPORTED.search(finished.output) or finished.code in _EXIT_UNSUPPORTED:
        return ControlUnsupported(text)
    return ControlGone(text) if finished.code in _EXIT_GONE else ControlError(text)
