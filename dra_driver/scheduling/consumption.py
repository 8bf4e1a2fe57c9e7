"""How much of a device that several claims may have each of them takes. Pure functions over API objects.

Rules: ``k8s.io/dynamic-resource-allocation/structured``, consumable capacity. Amounts are exact fractions; results
carry them as whole numbers, as the scheduler rounds requests of a policy with a step.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dra_driver.scheduling import quantities

Json = dict[str, Any]
DeviceId = tuple[str, str, str]
Amounts = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class Usage:
    """What claims hold. whole: devices that one claim has; consumed: what shares take, by device and capacity."""

    whole: frozenset[DeviceId] = frozenset()
    consumed: Mapping[DeviceId, Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, claims: Iterable[Json]) -> "Usage":
        """Of allocated claims; admin access holds nothing."""
        used = cls()
        for result in (result for claim in claims for result in results(claim)):
            if not result.get("adminAccess"):
                device = (result["driver"], result["pool"], result["device"])
                used = used.plus(device, _amounts(result) if result.get("shareID") else None)
        return used

    def plus(self, device: DeviceId, amounts: Amounts | None) -> "Usage":
        """With one device more in use, as a whole for None."""
        if amounts is None:
            return Usage(self.whole | {device}, self.consumed)
        before = self.consumed.get(device, {})
        summed = {name: before.get(name, Fraction(0)) + amounts.get(name, 0) for name in {*before, *amounts}}
        return Usage(self.whole, {**self.consumed, device: summed})

    def __or__(self, other: "Usage") -> "Usage":
        both = Usage(self.whole | other.whole, self.consumed)
        for device, amounts in other.consumed.items():
            both = both.plus(device, amounts)
        return both


def results(claim: Json) -> list[Json]:
    """The allocated devices of a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def is_shared(device: Json) -> bool:
    """Whether several claims may have a device."""
    return bool(device.get("allowMultipleAllocations"))


def take(device: Json, requested: Mapping[str, str], consumed: Amounts) -> Amounts | None:
    """What a request takes of a device's capacities, None when it asks for what the device has not or has no more.

    requested: ``capacity.requests`` of the request. consumed: what others took.
    """
    capacity = device.get("capacity") or {}
    if requested.keys() - capacity.keys():
        return None
    taken = {name: asked(entry, requested.get(name)) for name, entry in capacity.items()}
    fits = all(
        allowed(taken[name], entry.get("requestPolicy") or {})
        and taken[name] + consumed.get(name, 0) <= number(entry["value"])
        for name, entry in capacity.items()
    )
    return taken if fits else None


def written(amounts: Amounts) -> dict[str, str]:
    """As ``consumedCapacity`` of a result."""
    return {name: str(math.ceil(amount)) for name, amount in amounts.items()}


def asked(entry: Json, requested: str | None) -> Fraction:
    """What a request for so much of a capacity takes, rounded up as its policy says; None takes the default."""
    policy = entry.get("requestPolicy") or {}
    if requested is None:
        return number(policy.get("default", entry["value"]))
    amount, limits = number(requested), policy.get("validRange")
    if limits is None:
        values = [number(value) for value in policy.get("validValues") or []]
        return next((value for value in values if amount <= value), amount)
    low = number(limits["min"])
    if amount <= low or "step" not in limits:
        return max(amount, low)
    step = number(limits["step"])
    return low + step * math.ceil((amount - low) / step)


def allowed(amount: Fraction, policy: Json) -> bool:
    """Whether one request may take an amount."""
    limits, values = policy.get("validRange") or {}, policy.get("validValues")
    if values:
        return amount in [number(value) for value in values]
    return "max" not in limits or amount <= number(limits["max"])


def _amounts(result: Json) -> Amounts:
    return {name: number(amount) for name, amount in (result.get("consumedCapacity") or {}).items()}


def number(text: object) -> Fraction:
    """The number behind a quantity of an API object, 0 for what is none."""
    found = quantities.parse(text)
    return Fraction(0) if found is None else found
