"""An inventory whose GPUs say whether memory limits are enforced on them. Nothing is assumed from a version.

Three things must be there: NVIDIA's driver answers when it is asked for limits, cgroups are of version 2, and
containers are finished by a hook program that sets limits. Each is asked; NVML's yes holds for its session.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from dra_driver.model.devices import Gpu, Inventory, MemoryLimits
from dra_driver.model.errors import ControlError, ControlGone, ControlTimeout, ControlUnsupported
from dra_driver.ports import DeviceSource, GpuMemory

log = logging.getLogger(__name__)

CONTROLLERS: Final = "fs/cgroup/cgroup.controllers"
"""Below /sys: there in the unified hierarchy, and only there."""


class Asked(Protocol):
    """Who can be asked, as ports.GpuMemory."""

    def check_memory_limits(self, gpu_uuid: str) -> None:
        """See ports.GpuMemory."""


def why_driver_cannot(memory: Asked, gpu_uuid: str) -> str:
    """Why NVIDIA's driver sets no memory limits on a GPU, '' where it can. Raises ControlGone or ControlTimeout."""
    try:
        memory.check_memory_limits(gpu_uuid)
    except (ControlGone, ControlTimeout):
        raise
    except ControlUnsupported as error:
        return f"the NVIDIA driver or the GPU does not know them ({error})"
    except ControlError as error:
        return f"the NVIDIA driver does not tell whether it knows them ({error})"
    return ""


class LimitedSource:
    """A DeviceSource that adds ``Gpu.memory_limits`` to what another finds. ``scan`` comes from one thread.

    sysfs: where /sys is seen. why_no_hook: given the driver's version, why no hook can set limits, '' where one can;
    asked only where the driver can, as it may run programs.
    """

    def __init__(self, source: DeviceSource, memory: GpuMemory, sysfs: Path, why_no_hook: Callable[[str], str]) -> None:
        self._source = source
        self._memory = memory
        self._controllers = sysfs / CONTROLLERS
        self._why_no_hook = why_no_hook
        self._epoch = ""
        self._able: set[str] = set()
        self._told: dict[str, str] = {}

    def scan(self) -> Inventory:
        """See ports.DeviceSource."""
        found = self._source.scan()
        epoch = self._memory.epoch()
        if epoch != self._epoch:
            self._epoch, self._able = epoch, set()
        version = found.driver.driver_version
        gpus = [gpu if gpu.mig_enabled else self._judged(gpu, version) for gpu in found.gpus]
        return replace(found, gpus=tuple(gpus))

    def on_bus(self) -> tuple[str, ...] | None:
        """See ports.DeviceSource."""
        return self._source.on_bus()

    def close(self) -> None:
        """See ports.DeviceSource."""
        self._source.close()

    def _judged(self, gpu: Gpu, driver_version: str) -> Gpu:
        why = self._driver(gpu.uuid)
        if not why and not self._controllers.exists():
            why = "cgroups are not of version 2"
        why = why or self._why_no_hook(driver_version)
        limits = MemoryLimits.OBSERVED if why else MemoryLimits.ENFORCED
        if self._told.get(gpu.uuid) != why:
            self._told[gpu.uuid] = why
            log.info("memory limits on %s (%s): %s%s", gpu.name, gpu.uuid, limits.value, why and f": {why}")
        return replace(gpu, memory_limits=limits)

    def _driver(self, gpu_uuid: str) -> str:
        if gpu_uuid in self._able:
            return ""
        # A no costs one call to ask again, and may have been a fault of the moment.
        try:
            why = why_driver_cannot(self._memory, gpu_uuid)
        except ControlError as error:
            return f"the NVIDIA driver did not answer ({error})"
        if not why:
            self._able.add(gpu_uuid)
        return why
