"""What was measured, as frozen values with the figures that follow from them. No measuring and no printing here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

TENTHS_FROM = 50
"""Fewer calls than this and a tenth of them says nothing."""


def quantile(values: Sequence[float], part: float) -> float | None:
    """The value below which ``part`` (0 to 1) of the values lie, between neighbours in proportion."""
    if not values:
        return None
    ordered = sorted(values)
    position = part * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One row of calls of one kind.

    operation: ``prepare``, ``repeat`` or ``unprepare``. sharing: what the claims ask for. gpus: devices on the node.
    at_once: calls in flight. seconds: of the calls that succeeded, in the order in which they began. failures: the
    answers of the others. wall_s: from the first call to the last answer. cpu_s: of the driver in between, without the
    tool's. tool_runs: runs of nvidia-smi in between. None: could not be seen.
    """

    operation: str
    sharing: str
    gpus: int
    at_once: int
    seconds: tuple[float, ...]
    failures: tuple[str, ...] = ()
    wall_s: float
    cpu_s: float | None = None
    tool_runs: int | None = None

    @property
    def calls(self) -> int:
        """How many calls were made."""
        return len(self.seconds) + len(self.failures)

    @property
    def p50(self) -> float | None:
        """Median, in seconds."""
        return quantile(self.seconds, 0.5)

    @property
    def p90(self) -> float | None:
        """Nine of ten calls took at most this, in seconds."""
        return quantile(self.seconds, 0.9)

    @property
    def max(self) -> float | None:
        """The slowest call, in seconds."""
        return max(self.seconds, default=None)

    @property
    def tenths(self) -> tuple[float, float] | None:
        """Medians of the first and the last tenth, in seconds; None for too few calls."""
        size = len(self.seconds) // 10
        if len(self.seconds) < TENTHS_FROM:
            return None
        return median(self.seconds[:size]), median(self.seconds[-size:])

    @property
    def growth(self) -> float | None:
        """Last tenth divided by first tenth."""
        tenths = self.tenths
        return tenths[1] / tenths[0] if tenths else None

    @property
    def rate(self) -> float:
        """Successful calls a second."""
        return len(self.seconds) / self.wall_s if self.wall_s else 0.0

    @property
    def cpu_per_call(self) -> float | None:
        """CPU seconds of the driver for each call."""
        return None if self.cpu_s is None or not self.calls else self.cpu_s / self.calls


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the driver: seconds from exec until all slices were in the API server, and until registration."""

    published_s: float
    registered_s: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the driver, in bytes. moment: ``idle``, ``prepared`` (in the first round) or ``after all rounds``."""

    gpus: int
    prepared: int
    moment: str
    rss: int
    pss: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the same machine takes for the parts that the driver is made of; medians in seconds, None: not measured.

    disk_append, disk_overwrite: 4 KiB written and synced. get: one GET of a claim. empty_call: a call of the kubelet
    without claims. tool: one run of the stand-in nvidia-smi. tool_at_once: seconds a run, with as many at a time as
    the load has.
    """

    disk_append: float
    disk_overwrite: float
    get: float
    empty_call: float | None = None
    tool: float | None = None
    tool_at_once: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that one run of the bench found."""

    machine: dict[str, str]
    surroundings: Surroundings
    starts: tuple[Start, ...] = ()
    memory: tuple[Memory, ...] = ()
    timings: tuple[Timing, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def timing(self, operation: str, sharing: str, calls: int, at_once: int = 1) -> Timing | None:
        """The row of this kind, if it was measured."""
        wanted = (operation, sharing, calls, at_once)
        return next((t for t in self.timings if (t.operation, t.sharing, t.calls, t.at_once) == wanted), None)

    def memory_at(self, gpus: int, prepared: int, moment: str) -> Memory | None:
        """The memory at this moment, if it was measured."""
        wanted = (gpus, prepared, moment)
        return next((m for m in self.memory if (m.gpus, m.prepared, m.moment) == wanted), None)
