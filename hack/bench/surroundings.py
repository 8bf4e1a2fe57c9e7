"""Measures what the driver is made of, on the same machine and in the same run: disk, API server, tool, protocol."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

from dra_driver.devices.simulated import SimulatedNode
from hack.bench.driver import scenario
from hack.bench.load import repeat

_SYNCED: Final = b"x" * 4096
_SYNCS: Final = 50


def machine(directory: Path) -> dict[str, str]:
    """Facts that figures depend on, in words."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _processor(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "file system": _file_system(directory),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def disk_sync(directory: Path) -> tuple[float, float]:
    """Median seconds to append 4 KiB to a file and sync it, then to overwrite 4 KiB of it and sync it.

    Appending also changes the file's size, which costs some file systems a journal commit.
    """
    path = directory / "sync"
    with path.open("wb", buffering=0) as file:

        def once() -> None:
            file.write(_SYNCED)
            os.fdatasync(file.fileno())

        appended = median(repeat(once, _SYNCS))
        file.seek(0)
        overwritten = median(repeat(once, _SYNCS))
    path.unlink()
    return appended, overwritten


def tool(directory: Path, delay_ms: int, at_once: int, runs: int) -> tuple[float, float]:
    """The stand-in nvidia-smi by itself: median seconds of a run, then seconds a run with ``at_once`` in flight."""
    path = directory / "scenario.yaml"
    path.write_text(scenario(1, delay_ms), encoding="utf-8")
    node = SimulatedNode.load(path)
    root = directory / "tree"
    root.mkdir()
    node.materialise(root)
    gpu = node.source().scan().gpus[0].uuid
    command = [str(root / "usr/bin/nvidia-smi"), "compute-policy", "-i", gpu, "--set-timeslice", "2"]

    def once(_: int = 0) -> None:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True, process_group=0)

    alone = median(repeat(once, runs))
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as callers:
        list(callers.map(once, range(runs * 3)))
    return alone, (time.perf_counter() - began) / (runs * 3)


def cost(action: Callable[[], object], times: int) -> float:
    """Median seconds of an action, after a few that do not count."""
    repeat(action, max(1, times // 10))
    return median(repeat(action, times))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _file_system(directory: Path) -> str:
    """Type of the file system that a directory is on: that of the longest mount point above it."""
    where = directory.resolve()
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split()
        if where.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
