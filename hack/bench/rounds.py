"""One level of load on a driver that is up: prepare, prepare again and unprepare the same claims, in several ways."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.bench import load, objects, processes
from hack.bench.cluster import Cluster
from hack.bench.kubelet import Plugin
from hack.bench.objects import Claim, Device
from hack.bench.samples import Memory, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured. pid: of the driver's process, None when it cannot be looked at. tool_runs: likewise."""

    node: str
    socket: Path
    devices: tuple[Device, ...]
    pid: int | None = None
    tool_runs: Callable[[], int] | None = None


@dataclass(slots=True)
class Found:
    """What rounds have found so far."""

    memory: list[Memory] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)


class Level:
    """So many claims on one driver."""

    def __init__(self, subject: Subject, cluster: Cluster, run: str, say: Callable[[str], None]) -> None:
        """run: labels the claims, which are deleted by it. say: told before each round."""
        self.found = Found()
        self._subject = subject
        self._cluster = cluster
        self._run = run
        self._say = say
        self._plugin = Plugin(subject.socket)

    @property
    def plugin(self) -> Plugin:
        """The driver's service."""
        return self._plugin

    def claims(self, sharing: str, count: int) -> list[Claim]:
        """New claims, allocated to the node's devices in turn."""
        devices = self._subject.devices
        chosen = [devices[number % len(devices)] for number in range(count)]
        return self._cluster.allocated_claims(chosen, self._subject.node, self._run, sharing)

    def note_memory(self, prepared: int, moment: str) -> None:
        """Remember what the driver takes now, if it can be seen."""
        if self._subject.pid is not None:
            rss, pss = processes.memory(self._subject.pid)
            self.found.memory.append(Memory(len(self._subject.devices), prepared, moment, rss, pss))

    def round(self, claims: Sequence[Claim], sharing: str, at_once: int, *, first: bool = False) -> None:
        """Prepare, prepare again, unprepare. ``first``: note the memory while all are prepared."""
        self._say(f"{len(claims)} claims on {len(self._subject.devices)} GPUs, {sharing}, {at_once} at a time")
        try:
            self._calls("prepare", self._plugin.prepare, claims, sharing, at_once)
            if first:
                self.note_memory(len(claims), "prepared")
            self._calls("repeat", self._plugin.prepare, claims, sharing, at_once)
        finally:
            self._calls("unprepare", self._plugin.unprepare, claims, sharing, at_once)

    def second_user(self) -> None:
        """Second claims on cards that have the slice already; the first ones leave while the second stay."""
        sharing = objects.SHARED_SLICED
        count = len(self._subject.devices)
        self._say(f"{count} second users of a time slice")
        claims = self.claims(sharing, 2 * count)
        leaving, staying = claims[:count], claims[count:]
        load.run(self._plugin.prepare, leaving, 1)
        try:
            self._calls("prepare", self._plugin.prepare, staying, sharing, 1)
            self._calls("unprepare", self._plugin.unprepare, leaving, sharing, 1)
        finally:
            load.run(self._plugin.unprepare, claims, 1)

    def close(self) -> None:
        """Delete the claims and hang up."""
        self._plugin.close()
        self._cluster.remove_claims(self._run)

    def _calls(
        self, operation: str, call: Callable[[Claim], str], claims: Sequence[Claim], sharing: str, at_once: int
    ) -> None:
        pid, tool_runs = self._subject.pid, self._subject.tool_runs
        runs_before = tool_runs() if tool_runs else 0
        cpu_before = processes.cpu_seconds(pid) if pid is not None else 0.0
        results, wall = load.run(call, claims, at_once)
        timing = Timing(
            operation=operation,
            sharing=sharing,
            gpus=len(self._subject.devices),
            at_once=at_once,
            seconds=tuple(seconds for seconds, error in results if not error),
            failures=tuple(error for _, error in results if error),
            wall_s=wall,
            cpu_s=None if pid is None else processes.cpu_seconds(pid) - cpu_before,
            tool_runs=tool_runs() - runs_before if tool_runs else None,
        )
        self.found.timings.append(timing)
