"""Whether one device can serve one request, what it takes of it, or what stands in the way."""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from dra_driver.scheduling import consumption, node_terms
from dra_driver.scheduling.consumption import Amounts, Usage
from dra_driver.scheduling.pools import Candidate
from dra_driver.scheduling.requests import Request, Selector
from dra_driver.scheduling.selectors import Compile, SelectorError


class Kind(Enum):
    """Kinds of obstacles. A device that has several is told by the first."""

    SELECTOR = "selector"
    IN_USE = "in use"
    TAINT = "taint"
    CAPACITY = "capacity"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a device does not serve a request. selector: the one that is false; text: what is missing otherwise."""

    kind: Kind
    text: str = ""
    selector: Selector | None = None


@dataclass(frozen=True, slots=True)
class Pick:
    """One device, and what is taken of it; None for a whole one."""

    candidate: Candidate
    amounts: Amounts | None


class Fitting:
    """Judges devices. Each selector is evaluated once on each device, and only when it is come to."""

    def __init__(self, compile_selector: Compile) -> None:
        self._compile = compile_selector
        self._found: dict[tuple[str, consumption.DeviceId], bool] = {}

    def unselected(self, request: Request, candidate: Candidate) -> Selector | None:
        """The first selector that is false on a device. Raises SelectorError, naming whose selector failed where."""
        for selector in request.selectors:
            key = (selector.expression, candidate.id)
            if key not in self._found:
                try:
                    matches = self._compile(selector.expression)
                    self._found[key] = matches(candidate.driver, candidate.device)
                except SelectorError as error:
                    raise SelectorError(f"{selector.source}: {error}") from error
            if not self._found[key]:
                return selector
        return None

    def judge(self, request: Request, candidate: Candidate, used: Usage) -> Pick | Obstacle:
        """What the request would take of a device, or why it cannot. Raises SelectorError."""
        shared = consumption.is_shared(candidate.device)
        held = candidate.id in used.whole or (candidate.id in used.consumed and not shared)
        in_use = held and not request.admin
        try:
            selector = self.unselected(request, candidate)
        except SelectorError:
            # The scheduler does not come to the selectors of a device that is taken.
            if in_use:
                return Obstacle(Kind.IN_USE)
            raise
        if selector is not None:
            return Obstacle(Kind.SELECTOR, selector=selector)
        if in_use:
            return Obstacle(Kind.IN_USE)
        taints = node_terms.untolerated(candidate.device.get("taints") or (), request.tolerations)
        if taints:
            return Obstacle(Kind.TAINT, ", ".join(map(node_terms.written, taints)))
        if request.admin:
            return Pick(candidate, None)
        amounts = consumption.take(candidate.device, request.capacity, used.consumed.get(candidate.id, {}))
        if amounts is None:
            return Obstacle(Kind.CAPACITY)
        short = _short_counter(candidate, used)
        if short:
            return Obstacle(Kind.COUNTER, short)
        return Pick(candidate, amounts if shared else None)


def _short_counter(candidate: Candidate, used: Usage) -> str:
    """The counter of the pool that has not enough left for one device more, '' when all have."""
    counters = candidate.counters
    wanted = counters.consumed.get(candidate.device["name"]) if counters else None
    if counters is None or not wanted or candidate.id in used.consumed:
        return ""
    left = dict(counters.totals)
    for driver, pool, device in {*used.whole, *used.consumed}:
        if (driver, pool) == (candidate.driver, candidate.pool):
            for counter, amount in counters.consumed.get(device, {}).items():
                left[counter] = left.get(counter, Fraction(0)) - amount
    for counter, amount in wanted.items():
        rest = max(Fraction(0), left.get(counter, Fraction(0)))
        if amount > rest:
            return f"{counter[1]} of {counter[0]}: {amount} needed, {rest} of {counters.totals.get(counter, 0)} left"
    return ""
