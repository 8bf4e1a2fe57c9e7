"""The whole measurement, in the order in which it is made."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_driver_api import names
from hack.bench import driver, objects, surroundings
from hack.bench.cluster import Cluster
from hack.bench.errors import BenchError
from hack.bench.processes import Child
from hack.bench.rounds import Level, Subject
from hack.bench.samples import Measured, Memory, Start, Surroundings, Timing

LEVELS: Final = (8, 100, 400, 1000)
STARTS: Final = 5
SHARES: Final = 400
IDLE_GPUS: Final = 8
_API_S: Final = 30.0
_IDLE_SECONDS: Final = 1.5
REPETITIONS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure.

    levels: claims prepared at the same time, one a GPU. at_once: calls in flight in the parallel rounds. starts: of the
    driver with 8 GPUs, besides those that the rounds need. shares: claims on 8 GPUs with shares, 0 for none. tool_ms:
    what the stand-in nvidia-smi takes. slicing: whether claims may ask for a time slice. repetitions: of small costs
    that are measured by themselves.
    """

    levels: tuple[int, ...] = LEVELS
    at_once: int = 16
    starts: int = STARTS
    shares: int = SHARES
    tool_ms: int = 20
    slicing: bool = True
    repetitions: int = REPETITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is there already.

    kubeconfig: an API server. driver_kubeconfig: for drivers that are started, when it is another one. socket, pid: a
    driver. node: the one of that driver, or the one whose drivers are started; '' for nodes that are made.
    """

    kubeconfig: Path | None = None
    driver_kubeconfig: Path | None = None
    socket: Path | None = None
    node: str = ""
    pid: int | None = None
    command: tuple[str, ...] = field(default_factory=lambda: tuple(driver.default_command()))
    directory: Path | None = None


@dataclass(slots=True)
class _Findings:
    starts: list[Start] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    get: float = 0.0
    empty_call: float | None = None


class Suite:
    """Runs a plan. ``quiet``: no progress on standard error."""

    def __init__(self, plan: Plan, given: Given, quiet: bool = False) -> None:
        self._plan = plan
        self._given = given
        self._quiet = quiet
        self._run = f"bench-{os.getpid()}"
        self._found = _Findings()

    def run(self) -> Measured:
        """Measure. Raises BenchError or ApiError; whatever was started has ended, and its files are gone."""
        with tempfile.TemporaryDirectory(prefix="dra-bench-", dir=self._given.directory) as name:
            directory = Path(name)
            facts = surroundings.machine(directory)
            self._say("the disk and the tool by themselves")
            append, overwrite = surroundings.disk_sync(directory)
            alone, parallel = self._tool(directory)
            with self._api(directory) as kubeconfig:
                cluster = Cluster(kubeconfig)
                try:
                    facts["API server"] = "simulated" if self._given.kubeconfig is None else cluster.version()
                    if self._given.socket is None:
                        self._own_driver(cluster, kubeconfig, directory)
                    else:
                        self._given_driver(cluster, self._given.socket)
                finally:
                    cluster.close()
        return Measured(
            machine=facts,
            surroundings=Surroundings(
                disk_append=append,
                disk_overwrite=overwrite,
                get=self._found.get,
                empty_call=self._found.empty_call,
                tool=alone,
                tool_at_once=parallel,
            ),
            starts=tuple(self._found.starts),
            memory=tuple(self._found.memory),
            timings=tuple(self._found.timings),
            notes=tuple(self._found.notes),
        )

    def _tool(self, directory: Path) -> tuple[float | None, float | None]:
        if self._given.socket is not None:
            self._found.notes.append("the tool of a driver that was not started here cannot be measured")
            return None, None
        place = directory / "tool"
        place.mkdir()
        return surroundings.tool(place, self._plan.tool_ms, self._plan.at_once, self._plan.repetitions)

    @contextmanager
    def _api(self, directory: Path) -> Iterator[Path]:
        """The kubeconfig of the given API server, or of one that lives as long as the block."""
        if self._given.kubeconfig is not None:
            yield self._given.kubeconfig
            return
        kubeconfig = directory / "kubeconfig"
        with Child([sys.executable, "-m", "hack.bench.api", str(kubeconfig)], directory / "api.log") as server:
            server.wait_for(kubeconfig, _API_S)
            yield kubeconfig

    def _own_driver(self, cluster: Cluster, kubeconfig: Path, directory: Path) -> None:
        setup = driver.Setup(
            kubeconfig=self._given.driver_kubeconfig or kubeconfig,
            directory=directory,
            tool_ms=self._plan.tool_ms,
            command=self._given.command,
        )
        if self._given.node and cluster.slices(self._given.node)[0]:
            raise BenchError(
                f"node {self._given.node!r} has ResourceSlices of {names.DRIVER_NAME}: stop the driver that publishes "
                "them, or measure it with --socket"
            )
        for number in range(self._plan.starts):
            self._say(f"start {number + 1} of {self._plan.starts}")
            with self._driver(setup, cluster, f"start-{number}", IDLE_GPUS):
                pass
        for claims in self._plan.levels:
            with self._driver(setup, cluster, f"{claims}", claims) as subject:
                self._level(subject, cluster, claims)
        if self._plan.shares:
            with self._driver(setup, cluster, "shares", IDLE_GPUS) as subject:
                self._shares(subject, cluster)

    @contextmanager
    def _driver(self, setup: driver.Setup, cluster: Cluster, place: str, gpus: int) -> Iterator[Subject]:
        """A driver for as long as the block, on the given node or one of its own; starts with 8 GPUs are counted."""
        node = self._given.node or f"{self._run}-{place}"
        if not self._given.node:
            cluster.add_node(node)
        try:
            child, up, times = driver.start(setup, cluster, node, gpus, place)
            if gpus == IDLE_GPUS:
                self._found.starts.append(times)
            with child:
                yield Subject(node=node, socket=up.socket, devices=up.devices, pid=up.pid, tool_runs=up.tool_runs)
        finally:
            if not self._given.node:
                cluster.remove_node(node)
            cluster.remove_slices(node)

    def _given_driver(self, cluster: Cluster, socket: Path) -> None:
        node = self._given.node
        devices = objects.devices_of(cluster.slices(node)[0])
        if not devices:
            raise BenchError(f"node {node!r} has no complete set of ResourceSlices of {names.DRIVER_NAME}")
        subject = Subject(node=node, socket=socket, devices=devices, pid=self._given.pid)
        fitting = [claims for claims in self._plan.levels if claims <= len(devices)] or [len(devices)]
        if len(fitting) < len(self._plan.levels):
            self._found.notes.append(f"node {node} has {len(devices)} devices: no level with more claims than that")
        for claims in fitting:
            self._level(subject, cluster, claims)

    def _level(self, subject: Subject, cluster: Cluster, claims: int) -> None:
        with self._opened(subject, cluster) as level:
            time.sleep(_IDLE_SECONDS)  # a driver that has just published is not idle yet
            level.note_memory(0, "idle")
            plain = level.claims(objects.PLAIN, claims)
            self._small_costs(level, cluster, plain[0])
            level.round(plain, objects.PLAIN, 1, first=True)
            level.round(plain, objects.PLAIN, self._plan.at_once)
            if self._plan.slicing:
                self._sliced(level, claims)
            level.note_memory(0, "after all rounds")

    def _sliced(self, level: Level, claims: int) -> None:
        sliced = level.claims(objects.SLICED, claims)
        level.round(sliced, objects.SLICED, 1)
        level.round(sliced, objects.SLICED, self._plan.at_once)
        if claims <= IDLE_GPUS:
            level.round(level.claims(objects.UNCHANGED, claims), objects.UNCHANGED, 1)

    def _shares(self, subject: Subject, cluster: Cluster) -> None:
        with self._opened(subject, cluster) as level:
            level.round(level.claims(objects.SHARED, self._plan.shares), objects.SHARED, 1, first=True)
            if self._plan.slicing:
                level.second_user()

    @contextmanager
    def _opened(self, subject: Subject, cluster: Cluster) -> Iterator[Level]:
        level = Level(subject, cluster, self._run, self._say)
        try:
            yield level
        finally:
            level.close()
            self._found.memory += level.found.memory
            self._found.timings += level.found.timings

    def _small_costs(self, level: Level, cluster: Cluster, claim: objects.Claim) -> None:
        """What one GET and one call without claims take; once is enough."""
        if self._found.empty_call is None:
            self._found.get = surroundings.cost(lambda: cluster.get(claim), 5 * self._plan.repetitions)
            self._found.empty_call = surroundings.cost(level.plugin.empty_call, 5 * self._plan.repetitions)

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"bench: {text}", file=sys.stderr, flush=True)
