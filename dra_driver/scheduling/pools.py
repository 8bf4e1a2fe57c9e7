"""The devices of a node, read from ResourceSlices: which pools reach it, their newest generation, their counters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dra_driver.scheduling import node_terms
from dra_driver.scheduling.consumption import DeviceId, number

Json = dict[str, Any]
CounterId = tuple[str, str]
"""Counter set and counter."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the devices of a pool share. totals: of each counter; consumed: by each device while it is in use."""

    totals: Mapping[CounterId, Fraction]
    consumed: Mapping[str, Mapping[CounterId, Fraction]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One device that pods of the node can have."""

    driver: str
    pool: str
    device: Json
    counters: Counters | None = field(default=None, compare=False)

    @property
    def id(self) -> DeviceId:
        """Driver, pool and device name."""
        return (self.driver, self.pool, self.device["name"])


@dataclass(frozen=True, slots=True)
class Pool:
    """The newest generation of a pool. expected: how many slices it should have; found: how many are there."""

    driver: str
    name: str
    specs: tuple[Json, ...]
    expected: int

    @property
    def complete(self) -> bool:
        """Whether all slices are there; the scheduler takes nothing from a pool that is being changed."""
        return len(self.specs) == self.expected


def pools(slices: Iterable[Json]) -> list[Pool]:
    """All pools, in the order of their slices' names."""
    found: dict[tuple[str, str], list[Json]] = {}
    for resource_slice in sorted(slices, key=lambda s: str(s["metadata"]["name"])):
        spec = resource_slice["spec"]
        found.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    made: list[Pool] = []
    for (driver, name), specs in found.items():
        newest = max(spec["pool"].get("generation", 0) for spec in specs)
        current = tuple(spec for spec in specs if spec["pool"].get("generation", 0) == newest)
        made.append(Pool(driver, name, current, current[0]["pool"]["resourceSliceCount"]))
    return made


def candidates(slices: Iterable[Json], node: str, labels: Mapping[str, str] | None = None) -> list[Candidate]:
    """The node's devices in allocation order, of complete pools in their newest generation."""
    return [candidate for pool in pools(slices) if pool.complete for candidate in _candidates(pool, node, labels or {})]


def reaches(spec: Json, node: str, labels: Mapping[str, str]) -> bool:
    """Whether a slice, or a device that says so for itself, can be used on a node."""
    if spec.get("allNodes"):
        return True
    if spec.get("nodeSelector"):
        return node_terms.matches(spec["nodeSelector"], node, labels)
    return bool(spec.get("nodeName") == node)


def _candidates(pool: Pool, node: str, labels: Mapping[str, str]) -> list[Candidate]:
    counters = _counters(pool.specs)
    return [
        Candidate(driver=pool.driver, pool=pool.name, device=device, counters=counters)
        for spec in pool.specs
        for device in spec.get("devices") or []
        if reaches(device if spec.get("perDeviceNodeSelection") else spec, node, labels)
    ]


def _counters(specs: Sequence[Json]) -> Counters | None:
    """A device of another node uses the pool's counters too, so that all devices are looked at."""
    totals = {
        (counter_set["name"], name): number(counter["value"])
        for spec in specs
        for counter_set in spec.get("sharedCounters") or []
        for name, counter in counter_set["counters"].items()
    }
    if not totals:
        return None
    consumed = {
        device["name"]: {
            (entry["counterSet"], name): number(counter["value"])
            for entry in device.get("consumesCounters") or []
            for name, counter in entry["counters"].items()
        }
        for spec in specs
        for device in spec.get("devices") or []
    }
    return Counters(totals, consumed)
