"""From the lines of pods that measure to figures: one alone, then two at once. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

Json = Mapping[str, Any]

UNITS: Final = {"compute": ("TFLOP/s", 1e12), "copy": ("TB/s", 1e12), "launch": ("launches/s", 1.0)}
"""Kind of work -> unit of its rate, and how much of what is counted that is."""
LATEST_S: Final = 0.2
"""A pod that came so late into a slot did not work in all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One pod's work of one kind. rate: median of its slots, in ``UNITS``. seconds: medians, of single calls."""

    slots: int
    rate: float
    p50_s: float
    p99_s: float
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """One kind of work: the first pod alone, then each of two in the same slots, and their sum."""

    kind: str
    alone: Rate
    first: Rate
    second: Rate

    @property
    def total(self) -> float:
        """Of both."""
        return self.first.rate + self.second.rate

    @property
    def of_alone(self) -> float:
        """What both have together, as part of what one has alone."""
        return self.total / self.alone.rate


def whole(lines: Sequence[Json]) -> list[Json]:
    """The lines of slots that were worked in from their start."""
    return [line for line in lines if line["kind"] in UNITS and line["late"] <= LATEST_S]


def before(lines: Sequence[Json], moment: float, slot_s: float) -> list[Json]:
    """Whole slots that were over at a moment (seconds since 1970)."""
    return [line for line in whole(lines) if (line["slot"] + 1) * slot_s <= moment]


def together(first: Sequence[Json], second: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """The lines of both in slots that both worked in from their start."""
    common = {line["slot"] for line in whole(first)} & {line["slot"] for line in whole(second)}
    one, other = ([line for line in whole(lines) if line["slot"] in common] for lines in (first, second))
    return one, other


def kinds(lines: Sequence[Json]) -> dict[str, int]:
    """Kind of work -> number of whole slots."""
    found: dict[str, int] = {}
    for line in whole(lines):
        found[line["kind"]] = found.get(line["kind"], 0) + 1
    return found


def rate(lines: Sequence[Json], kind: str) -> Rate:
    """One pod's work of a kind. Raises ValueError when there is none."""
    found = [line for line in lines if line["kind"] == kind]
    if not found:
        raise ValueError(f"no whole slot of {kind}")
    _, unit = UNITS[kind]
    return Rate(
        slots=len(found),
        rate=median(line["done"] / line["seconds"] for line in found) / unit,
        p50_s=median(line["p50"] for line in found),
        p99_s=median(line["p99"] for line in found),
        longest_s=max(line["max"] for line in found),
    )


def shares(alone: Sequence[Json], first: Sequence[Json], second: Sequence[Json], kind: str) -> Shares:
    """Figures of a kind that both pods did in the same slots. Raises ValueError when one has not done it."""
    slots = [{line["slot"] for line in lines if line["kind"] == kind} for lines in (first, second)]
    same = [[line for line in lines if line["slot"] in slots[0] & slots[1]] for lines in (first, second)]
    return Shares(kind=kind, alone=rate(alone, kind), first=rate(same[0], kind), second=rate(same[1], kind))


def document(found: Shares) -> dict[str, Any]:
    """As JSON has it."""
    return {**asdict(found), "unit": UNITS[found.kind][0], "total": found.total, "of_alone": found.of_alone}


def document_of(found: Rate) -> dict[str, Any]:
    """The same for one rate."""
    return asdict(found)
