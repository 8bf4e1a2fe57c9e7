"""Asking the running machine: NVML in this process, programs with ``--version`` or ``--help``. Changes nothing."""

from pathlib import Path
from typing import Final

from dra_driver.cdi.host_programs import HostProgram, ProgramFailed
from dra_driver.devices.nvml import NvmlSource
from dra_driver.hostfs import find_library
from dra_driver.model.devices import Inventory
from dra_driver.processes import ENVIRONMENT, run_limited

_SECONDS: Final = 5.0


class LiveProbes:
    """Implements ``gpus.Probes``. driver_root: as seen here."""

    def __init__(self, driver_root: Path) -> None:
        self._nvml = NvmlSource(lambda: find_library(driver_root, "libnvidia-ml.so.1"), scan_timeout_s=30.0)

    def inventory(self) -> Inventory:
        """See Probes."""
        return self._nvml.scan()

    def check_memory_limits(self, gpu_uuid: str) -> None:
        """See Probes."""
        self._nvml.check_memory_limits(gpu_uuid)

    def help_text(self, program: HostProgram) -> str:
        """See Probes."""
        try:
            return program.run(("--help",), _SECONDS).output
        except ProgramFailed:
            return ""

    def version_text(self, program: Path) -> str:
        """See Probes."""
        try:
            return run_limited((str(program), "--version"), ENVIRONMENT, _SECONDS).output
        except (OSError, TimeoutError):
            return ""

    def close(self) -> None:
        """End the NVML session."""
        self._nvml.close()
