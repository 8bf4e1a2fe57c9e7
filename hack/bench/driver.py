"""Starts ``dra-driver run`` on a simulated node and watches it come up."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_driver_api import names
from hack.bench import kubelet
from hack.bench.cluster import Cluster, SliceWatch
from hack.bench.errors import BenchError
from hack.bench.objects import Device
from hack.bench.processes import Child
from hack.bench.samples import Start

START_S: Final = 60.0
_CALLS: Final = "var/log/nvidia-smi.calls"


def scenario(gpus: int, tool_ms: int) -> str:
    """A simulated node of H100s whose nvidia-smi takes ``tool_ms``."""
    cards = {
        "count": gpus,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0",
        "memoryBytes": 85520809984,
        "addressingMode": "None",
        "numaNode": 0,
    }
    driver = {"version": "580.159.04", "cuda": "13.0"}
    return json.dumps({"driver": driver, "gpus": [cards], "tool": {"delayMs": tool_ms}}, indent=2)


def default_command() -> list[str]:
    """The installed console script of this interpreter, or the package."""
    script = Path(sys.executable).with_name("dra-driver")
    return [str(script)] if script.exists() else [sys.executable, "-m", "dra_driver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How to start a driver. kubeconfig: the driver's own. command: what comes before ``run``."""

    kubeconfig: Path
    directory: Path
    tool_ms: int
    command: Sequence[str] = field(default_factory=default_command)

    def arguments(self, node: str, home: Path) -> list[str]:
        """The whole command line; all of the driver's files are below ``home``."""
        return [
            *self.command,
            "run",
            f"--node-name={node}",
            f"--kubeconfig={self.kubeconfig}",
            f"--cdi-root={home / 'cdi'}",
            f"--kubelet-registrar-directory-path={home / 'registry'}",
            f"--kubelet-plugins-directory-path={home / 'plugins'}",
            f"--simulated-node={home / 'scenario.yaml'}",
            "--feature-gates=TimeSlicingSettings=true",
            # Claims that share are packed closer here than cards are meant to be.
            "--max-clients-per-gpu=1000",
        ]


class Driver:
    """A driver that is up: registered, all devices published."""

    def __init__(self, child: Child, home: Path, node: str, socket: Path, devices: Sequence[Device]) -> None:
        self.pid = child.pid
        self.node = node
        self.socket = socket
        self.devices = tuple(devices)
        self._home = home
        self._calls: Path | None = None

    def tool_runs(self) -> int:
        """How often its nvidia-smi was run so far."""
        if self._calls is None:
            self._calls = next(self._home.glob(f"plugins/*/*/{_CALLS}"), None)
        return self._calls.read_bytes().count(b"\n") if self._calls and self._calls.exists() else 0


def start(setup: Setup, cluster: Cluster, node: str, gpus: int, place: str) -> tuple[Child, Driver, Start]:
    """Start a driver with so many GPUs on a node without slices; its files are in the new folder ``place``.

    Raises BenchError when it does not come up in time.
    """
    home = setup.directory / place
    for name in ("cdi", "registry", "plugins"):
        (home / name).mkdir(parents=True)
    (home / "scenario.yaml").write_text(scenario(gpus, setup.tool_ms), encoding="utf-8")
    with cluster.watching(node, gpus) as watch:
        child = Child(setup.arguments(node, home), home / "driver.log")
        try:
            deadline = child.started_at + START_S
            registered, registration = _registered(child, home / "registry" / names.REGISTRATION_SOCKET, deadline)
            published = _published(child, watch, deadline)
        except BaseException:
            child.end()
            raise
    times = Start(published - child.started_at, registered - child.started_at)
    return child, Driver(child, home, node, registration, watch.devices), times


def command(text: str) -> list[str]:
    """A command line as the shell would split it. Raises BenchError when it is empty or quoted badly."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BenchError(f"--driver-command {text!r} cannot be split: {error}") from error
    if not words:
        raise BenchError("--driver-command is empty, want a program")
    return words


def _registered(child: Child, socket: Path, deadline: float) -> tuple[float, Path]:
    child.wait_for(socket, START_S)
    endpoint, at = kubelet.register(socket, deadline)
    return at, endpoint


def _published(child: Child, watch: SliceWatch, deadline: float) -> float:
    while not watch.wait(0.1):
        child.check()
        if time.monotonic() > deadline:
            raise BenchError(f"the slices were not complete within {START_S:g} s: {child.last_lines()}")
    assert watch.complete_at is not None
    return watch.complete_at
