"""Reads by NVML calls what concerns the memory of one GPU: whether it knows limits of cgroups, and who uses it.

No pynvml here and no session handling: ``call`` comes from ``devices.nvml``.
"""

import os
from pathlib import Path
from typing import Any, Final

from dra_driver.devices.nvml_calls import Call, FunctionMissing, NotFound
from dra_driver.model.devices import GpuProcess

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
"""A cgroup that is there on every node, and that nobody limits."""


class MemoryReader:
    """Memory of a GPU by NVML handle. structs: pynvml, or what has its structures."""

    def __init__(self, call: Call, structs: Any) -> None:
        self._call = call
        self._structs = structs

    def check_limits(self, handle: Any) -> None:
        """Read the limits of the root cgroup; that it has none is an answer too.

        Raises NotSupported or FunctionMissing where GPU or driver does not know limits, else ControlError.
        """
        limits = getattr(self._structs, "c_nvmlGetMemoryLimits_v1_t", None)
        if limits is None:
            raise FunctionMissing("nvmlDeviceGetMemoryLimits_v1: not in this pynvml")
        try:
            self._call("nvmlDeviceGetMemoryLimits_v1", handle, limits(nameSpace=os.fsencode(CGROUP_ROOT)))
        except NotFound:
            return

    def processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        """The processes that have a compute context on the GPU. Raises ControlError."""
        found = self._call("nvmlDeviceGetComputeRunningProcesses", handle)
        return tuple(GpuProcess(pid=int(each.pid), memory_bytes=_bytes(each.usedGpuMemory)) for each in found)


def _bytes(amount: int | None) -> int | None:
    return None if amount is None else int(amount)
