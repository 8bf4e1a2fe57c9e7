"""Tables of what was measured: plain text, Markdown for the README, JSON. Pure."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hack.bench.samples import Measured, Timing, quantile
from hack.bench.targets import MIB, Row

NOTHING: Final = "-"
"""Where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column heads and cells, all of them text."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def text(measured: Measured, rows: Sequence[Row]) -> str:
    """For a terminal."""
    return "\n\n".join(_plain_table(table) for table in _tables(measured, rows)) + _notes(measured, "\n\n")


def markdown(measured: Measured, rows: Sequence[Row]) -> str:
    """For a page."""
    return "\n\n".join(_markdown_table(table) for table in _tables(measured, rows)) + _notes(measured, "\n\n")


def as_json(measured: Measured, rows: Sequence[Row]) -> str:
    """For a program: times in ms, memory in MiB, starts in s; ``null`` where nothing could be measured."""
    around = measured.surroundings
    document: dict[str, Any] = {
        "machine": measured.machine,
        "surroundings_ms": {
            "disk_append": _ms(around.disk_append),
            "disk_overwrite": _ms(around.disk_overwrite),
            "api_get": _ms(around.get),
            "empty_call": _ms(around.empty_call),
            "tool": _ms(around.tool),
            "tool_at_once": _ms(around.tool_at_once),
        },
        "starts_s": [
            {"published": _rounded(start.published_s), "registered": _rounded(start.registered_s)}
            for start in measured.starts
        ],
        "memory_mib": [
            {
                "gpus": memory.gpus,
                "prepared": memory.prepared,
                "moment": memory.moment,
                "rss": _rounded(memory.rss / MIB),
                "pss": _rounded(memory.pss / MIB),
            }
            for memory in measured.memory
        ],
        "calls": [_timing_json(timing) for timing in measured.timings],
        "targets": [
            {
                "what": row.what,
                "found": _rounded(row.found),
                "target": _rounded(row.target),
                "unit": row.unit,
                "met": row.met,
            }
            for row in rows
        ],
        "notes": list(measured.notes),
    }
    return json.dumps(document, indent=2)


FORMATS: dict[str, Callable[[Measured, Sequence[Row]], str]] = {"text": text, "json": as_json, "markdown": markdown}


def _tables(measured: Measured, rows: Sequence[Row]) -> Iterator[Table]:
    yield _machine(measured)
    if measured.starts:
        yield _starts(measured)
    if measured.memory:
        yield _memory(measured)
    yield _calls(measured)
    yield _targets(rows)


def _machine(measured: Measured) -> Table:
    around = measured.surroundings
    parts = (
        ("4 KiB appended and synced", around.disk_append),
        ("4 KiB overwritten and synced", around.disk_overwrite),
        ("one GET of a claim", around.get),
        ("one call without claims", around.empty_call),
        ("one run of the stand-in nvidia-smi", around.tool),
        ("the same, many at a time, a run", around.tool_at_once),
    )
    costs = tuple((what, f"{_number(_ms(seconds))} ms") for what, seconds in parts if seconds is not None)
    return Table("Machine", ("fact", "value"), (*measured.machine.items(), *costs))


def _starts(measured: Measured) -> Table:
    first, *later = measured.starts
    lines = [("first", _seconds(first.published_s), _seconds(first.registered_s))]
    if later:
        published = [start.published_s for start in later]
        registered = [start.registered_s for start in later]
        lines += [
            (f"median of {len(later)} more", _seconds(quantile(published, 0.5)), _seconds(quantile(registered, 0.5))),
            ("slowest of these", _seconds(max(published)), _seconds(max(registered))),
        ]
    return Table("Start, 8 GPUs (s from exec)", ("run", "slices published", "registered"), tuple(lines))


def _memory(measured: Measured) -> Table:
    lines = tuple(
        (str(m.gpus), str(m.prepared), m.moment, f"{m.rss / MIB:.1f}", f"{m.pss / MIB:.1f}") for m in measured.memory
    )
    return Table("Memory of the driver (MiB)", ("GPUs", "prepared claims", "moment", "RSS", "PSS"), lines)


def _calls(measured: Measured) -> Table:
    heads = (
        "claims",
        "GPUs",
        "at once",
        "sharing config",
        "call",
        "p50",
        "p90",
        "max",
        "first tenth",
        "last tenth",
        "growth",
        "CPU a call",
        "calls/s",
        "tool runs",
        "failed",
    )
    return Table("Calls, one claim a call (ms)", heads, tuple(_call(timing) for timing in measured.timings))


def _call(timing: Timing) -> tuple[str, ...]:
    first, last = timing.tenths or (None, None)
    times = (timing.p50, timing.p90, timing.max, first, last)
    return (
        str(timing.calls),
        str(timing.gpus),
        str(timing.at_once),
        timing.sharing,
        timing.operation,
        *(_number(_ms(seconds)) for seconds in times),
        _number(timing.growth),
        _number(_ms(timing.cpu_per_call)),
        f"{timing.rate:.0f}",
        NOTHING if timing.tool_runs is None else str(timing.tool_runs),
        str(len(timing.failures)),
    )


def _targets(rows: Sequence[Row]) -> Table:
    words = {True: "yes", False: "NO", None: "not measured"}
    lines = tuple((row.what, _amount(row.found, row.unit), _limit(row), words[row.met]) for row in rows)
    return Table("Targets", ("what", "measured", "target", "met"), lines)


def _limit(row: Row) -> str:
    if row.target == 0:
        return _amount(0, row.unit)
    return ("under " if row.exclusive else "at most ") + _amount(row.target, row.unit)


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    if unit == "calls":
        return f"{value:.0f}"
    return f"{_number(value)} {unit}"


def _timing_json(timing: Timing) -> dict[str, Any]:
    first, last = timing.tenths or (None, None)
    return {
        "operation": timing.operation,
        "sharing": timing.sharing,
        "claims": timing.calls,
        "gpus": timing.gpus,
        "at_once": timing.at_once,
        "p50_ms": _ms(timing.p50),
        "p90_ms": _ms(timing.p90),
        "max_ms": _ms(timing.max),
        "first_tenth_ms": _ms(first),
        "last_tenth_ms": _ms(last),
        "growth": _rounded(timing.growth),
        "cpu_ms_a_call": _ms(timing.cpu_per_call),
        "calls_a_second": _rounded(timing.rate),
        "tool_runs": timing.tool_runs,
        "failed": len(timing.failures),
        "failures": sorted(set(timing.failures))[:5],
    }


def _notes(measured: Measured, before: str) -> str:
    failures = sorted({failure for timing in measured.timings for failure in timing.failures})[:5]
    lines = [*measured.notes, *(f"failed: {failure}" for failure in failures)]
    return before + "\n".join(f"- {line}" for line in lines) if lines else ""


def _plain_table(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(table.heads, *table.lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([table.title, line(table.heads), rule, *(line(cells) for cells in table.lines)])


def _markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    rule = "|" + " --- |" * len(table.heads)
    return "\n".join([f"**{table.title}**", "", line(table.heads), rule, *(line(cells) for cells in table.lines)])


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _number(value: float | None) -> str:
    """Three figures are more than such measurements hold."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
