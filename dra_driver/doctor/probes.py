"""Asking the running machine: NVML in this process, programs with ``--version``. Changes nothing."""

from pathlib import Path
from typing import Final

from dra_driver.devices.nvml import NvmlSource
from dra_driver.hostfs import find_library
from dra_driver.model.devices import Inventory
from dra_driver.processes import ENVIRONMENT, run_limited

_SECONDS: Final = 5.0
_CGROUP: Final = Path("/sys/fs/cgroup")


class LiveProbes:
    """Implements ``gpus.Probes``. driver_root: as seen here."""

    def __init__(self, driver_root: Path) -> None:
        self._nvml = NvmlSource(lambda: find_library(driver_root, "libnvidia-ml.so.1"), scan_timeout_s=30.0)

    def inventory(self) -> Inventory:
        """See Probes."""
        return self._nvml.scan()

    def has_memory_limits(self, gpu_uuid: str) -> bool:
        """See Probes."""
        return self._nvml.has_memory_limits(gpu_uuid, _own_cgroup())

    def version_text(self, program: Path) -> str:
        """See Probes."""
        try:
            return run_limited((str(program), "--version"), ENVIRONMENT, _SECONDS).output
        except (OSError, TimeoutError):
            return ""

    def close(self) -> None:
        """End the NVML session."""
        self._nvml.close()


def _own_cgroup() -> Path:
    """This process's own in the unified hierarchy, where it is seen; else its root."""
    try:
        lines = Path("/proc/self/cgroup").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return _CGROUP
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    return _CGROUP / own if (_CGROUP / own).is_dir() else _CGROUP
