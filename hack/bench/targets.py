"""What the driver is meant to cost, as numbers, held against what was measured. Pure.

Targets that contain a run of the tool are judged by what the tool took in the same run of the bench.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hack.bench.objects import PLAIN, SHARED, SHARED_SLICED, SLICED, UNCHANGED
from hack.bench.samples import Measured, Memory, Timing, quantile

MIB: Final = 1024 * 1024
FEW: Final = 8
MANY: Final = 400
PARALLEL: Final = 100

START_S: Final = 1.0
IDLE_BYTES: Final = 60 * MIB
MANY_BYTES: Final = 65 * MIB
OWN_S: Final = 0.005
"""What the driver may add to a run of the tool, or take when none is needed."""

SHORT_S: Final = 0.003
"""For what needs neither the tool nor new work."""

GROWTH: Final = 1.3
LIMITED_S: Final = 0.1
"""Half of what a limit of 5 requests a second would make of each claim."""


@dataclass(frozen=True, slots=True)
class Row:
    """One target. unit: ``s``, ``ms``, ``MiB``, ``x`` or ``calls``, of both numbers. found None: not measured."""

    what: str
    found: float | None
    target: float
    unit: str
    exclusive: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None when nothing was measured."""
        if self.found is None:
            return None
        return self.found < self.target if self.exclusive else self.found <= self.target


def rows(measured: Measured, at_once: int = 16) -> tuple[Row, ...]:
    """All targets, those that were not measured too."""
    return (
        *_process(measured),
        *_time_slicing(measured),
        *_plain(measured),
        *_at_scale(measured),
        *_parallel(measured, at_once),
    )


def _process(measured: Measured) -> Iterator[Row]:
    published = quantile([start.published_s for start in measured.starts], 0.5)
    yield Row("exec to slices published, 8 GPUs, median", published, START_S, "s", exclusive=True)
    idle = measured.memory_at(FEW, 0, "idle")
    yield Row("memory idle, 8 GPUs", _rss(idle), IDLE_BYTES / MIB, "MiB")
    shared = measured.memory_at(FEW, MANY, "prepared")
    yield Row("memory, 400 prepared claims on 8 GPUs", _rss(shared), MANY_BYTES / MIB, "MiB")
    many = measured.memory_at(MANY, MANY, "prepared")
    yield Row("memory, 400 prepared claims on 400 GPUs", _rss(many), MANY_BYTES / MIB, "MiB")


def _time_slicing(measured: Measured) -> Iterator[Row]:
    tool = measured.surroundings.tool
    if tool is not None:
        for operation in ("prepare", "unprepare"):
            what = f"{operation}, time slicing, p50 (one tool run + 5 ms)"
            yield _p50(what, measured.timing(operation, SLICED, FEW), tool + OWN_S)
    unchanged = measured.timing("prepare", UNCHANGED, FEW)
    yield _p50("prepare, time slicing, the GPU has that slice, p50", unchanged, OWN_S)
    for operation, who in (("prepare", "second user of the slice"), ("unprepare", "not the last user")):
        yield _p50(f"{operation}, time slicing, {who}, p50", measured.timing(operation, SHARED_SLICED, FEW), OWN_S)


def _plain(measured: Measured) -> Iterator[Row]:
    prepare, unprepare = (measured.timing(operation, PLAIN, FEW) for operation in ("prepare", "unprepare"))
    yield _p50("prepare without sharing config, 8 claims, p50", prepare, OWN_S)
    yield _p50("unprepare without sharing config, p50", unprepare, SHORT_S)
    runs = unprepare.tool_runs if unprepare else None
    yield Row("tool runs at unprepare without sharing config", runs, 0, "calls")


def _at_scale(measured: Measured) -> Iterator[Row]:
    cases = ((PLAIN, 400, ""), (PLAIN, 1000, ""), (SHARED, 400, " on 8 GPUs"))
    for sharing, calls, where in cases:
        timing = measured.timing("prepare", sharing, calls)
        growth = timing.growth if timing else None
        yield Row(f"prepare, {calls} claims{where}, last tenth / first tenth", growth, GROWTH, "x")
    yield _p50("prepare again, 400 claims, p50", measured.timing("repeat", PLAIN, MANY), SHORT_S)
    many = measured.timing("prepare", PLAIN, MANY)
    slow = many.p90 if many else None
    yield Row("prepare, 400 claims in a row, p90 (no limiter)", _ms(slow), LIMITED_S * 1000, "ms")


def _parallel(measured: Measured, at_once: int) -> Iterator[Row]:
    timing = measured.timing("prepare", SLICED, PARALLEL, at_once)
    what = f"prepare, time slicing, 100 claims, {at_once} at a time"
    yield Row(f"{what}: failures", len(timing.failures) if timing else None, 0, "calls")
    tool = measured.surroundings.tool_at_once
    if tool is not None:
        found = timing.wall_s / timing.calls if timing and timing.calls else None
        yield Row(f"{what}: a claim (tool {at_once} at a time + 5 ms)", _ms(found), (tool + OWN_S) * 1000, "ms")


def _p50(what: str, timing: Timing | None, target_s: float) -> Row:
    return Row(what, _ms(timing.p50 if timing else None), target_s * 1000, "ms")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _rss(memory: Memory | None) -> float | None:
    return None if memory is None else memory.rss / MIB
