"""Which devices a claim gets: the scheduler's choice, made small. Pure functions over API objects.

Rules: ``k8s.io/dynamic-resource-allocation/structured`` - slices by name, devices in list order, the first that
fit; what is taken of devices that are shared is in ``consumption``. Not here: partitions with counters, taints.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.errors import DriverError
from dra_driver.simulator import consumption
from dra_driver.simulator.cel import SelectorError, attribute, compile_selector
from dra_driver.simulator.consumption import Amounts, DeviceId, Usage

Json = dict[str, Any]

MAX_RESULTS = 32
"""Devices a claim can have (AllocationResultsMaxSize)."""


class CannotAllocate(DriverError):
    """The claim does not fit on this node now, or never will; the text says why."""

    kind = "allocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One device of the node."""

    driver: str
    pool: str
    device: Json

    @property
    def id(self) -> DeviceId:
        """Driver, pool and device name."""
        return (self.driver, self.pool, self.device["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """One request, or one alternative of it. ``name`` is ``main/sub`` for an alternative."""

    name: str
    device_class: Json
    matching: tuple[Candidate, ...]
    count: int
    every: bool
    admin: bool
    capacity: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Pick:
    """One device, and what is taken of it; None for a whole one."""

    candidate: Candidate
    amounts: Amounts | None


@dataclass(slots=True)
class _Choice:
    wish: _Wish
    picks: list[_Pick] = field(default_factory=list)


def candidates(slices: Iterable[Json], node: str) -> list[Candidate]:
    """The node's devices in allocation order, of complete pools in their newest generation."""
    pools: dict[tuple[str, str], list[Json]] = {}
    for resource_slice in sorted(slices, key=lambda s: str(s["metadata"]["name"])):
        spec = resource_slice["spec"]
        if spec.get("nodeName") == node:
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
    found: list[Candidate] = []
    for (driver, pool), specs in pools.items():
        newest = max(spec["pool"].get("generation", 0) for spec in specs)
        current = [spec for spec in specs if spec["pool"].get("generation", 0) == newest]
        if len(current) == current[0]["pool"]["resourceSliceCount"]:
            devices = [device for spec in current for device in spec.get("devices") or []]
            found += [Candidate(driver=driver, pool=pool, device=device) for device in devices]
    return found


def allocate(
    claim: Json,
    classes: Mapping[str, Json],
    devices: Sequence[Candidate],
    in_use: Usage,
    node: str,
) -> Json:
    """The ``status.allocation`` for a claim.

    classes: DeviceClass objects by name. Raises CannotAllocate.
    """
    spec = claim["spec"].get("devices") or {}
    try:
        wishes = [_alternatives(request, classes, devices) for request in spec.get("requests") or []]
    except SelectorError as error:
        raise CannotAllocate(f"claim {claim['metadata']['name']}: {error}") from error
    choices: list[_Choice] = []
    if not _choose(wishes, choices, in_use, spec.get("constraints") or []):
        raise CannotAllocate("cannot allocate all claims")
    if sum(len(choice.picks) for choice in choices) > MAX_RESULTS:
        raise CannotAllocate(f"more than {MAX_RESULTS} devices in claim {claim['metadata']['name']}")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "devices": {
            "results": [_result(choice, pick) for choice in choices for pick in choice.picks],
            "config": [*_class_configs(choices), *_claim_configs(spec.get("config") or [], choices)],
        },
        "nodeSelector": {"nodeSelectorTerms": [term]},
    }


def _alternatives(request: Json, classes: Mapping[str, Json], devices: Sequence[Candidate]) -> list[_Wish]:
    if "exactly" in request:
        return [_wish(request["name"], request["exactly"], classes, devices)]
    return [
        _wish(f"{request['name']}/{option['name']}", option, classes, devices) for option in request["firstAvailable"]
    ]


def _wish(name: str, request: Json, classes: Mapping[str, Json], devices: Sequence[Candidate]) -> _Wish:
    class_name = request["deviceClassName"]
    device_class = classes.get(class_name)
    if device_class is None:
        raise CannotAllocate(f"request {name}: could not retrieve device class {class_name}")
    selectors = [*(device_class["spec"].get("selectors") or []), *(request.get("selectors") or [])]
    tests = [compile_selector(selector["cel"]["expression"]) for selector in selectors]
    matching = tuple(c for c in devices if all(test(c.driver, c.device) for test in tests))
    every = request.get("allocationMode") == "All"
    return _Wish(
        name=name,
        device_class=device_class,
        matching=matching,
        count=len(matching) if every else request.get("count", 1),
        every=every,
        admin=bool(request.get("adminAccess")),
        capacity=(request.get("capacity") or {}).get("requests") or {},
    )


def _choose(wishes: Sequence[list[_Wish]], choices: list[_Choice], used: Usage, constraints: list[Json]) -> bool:
    """Fill ``choices`` with the first devices that satisfy everything, request by request, with backtracking."""
    if len(choices) == len(wishes):
        return True
    for wish in wishes[len(choices)]:
        if not wish.count:
            continue
        for picked, after in _combinations(wish, used, choices, constraints):
            choices.append(_Choice(wish, picked))
            if _choose(wishes, choices, after, constraints):
                return True
            choices.pop()
    return False


def _combinations(
    wish: _Wish, used: Usage, choices: list[_Choice], constraints: list[Json]
) -> Iterator[tuple[list[_Pick], Usage]]:
    """Ways to fill one request, in list order, each with what is in use then; a prefix that breaks a constraint is not
    followed. A device that is shared may come more than once, but not where all devices are asked for.
    """

    def extend(chosen: list[_Pick], used: Usage, start: int) -> Iterator[tuple[list[_Pick], Usage]]:
        if len(chosen) == wish.count:
            yield chosen, used
            return
        for index in range(start, len(wish.matching)):
            pick = _pick(wish, wish.matching[index], used)
            if pick is None:
                if wish.every:
                    return
                continue
            longer = [*chosen, pick]
            if _satisfied([*choices, _Choice(wish, longer)], constraints):
                again = pick.amounts is not None and not wish.every
                after = used if wish.admin else used.plus(pick.candidate.id, pick.amounts)
                yield from extend(longer, after, index if again else index + 1)

    return extend([], used, 0)


def _pick(wish: _Wish, candidate: Candidate, used: Usage) -> _Pick | None:
    """The device for this request, None where it is taken."""
    if wish.admin:
        return _Pick(candidate, None)
    if candidate.id in used.whole:
        return None
    amounts = consumption.take(candidate.device, wish.capacity, used.consumed.get(candidate.id, {}))
    if amounts is None:
        return None
    return _Pick(candidate, amounts if consumption.is_shared(candidate.device) else None)


def _satisfied(choices: list[_Choice], constraints: list[Json]) -> bool:
    for constraint in constraints:
        if "matchAttribute" not in constraint:
            raise CannotAllocate(f"constraint {sorted(constraint)} is beyond this allocator: matchAttribute only")
        names = constraint.get("requests") or []
        values = {
            attribute(candidate.driver, candidate.device, constraint["matchAttribute"])
            for choice in choices
            if not names or choice.wish.name in names or choice.wish.name.partition("/")[0] in names
            for candidate in (pick.candidate for pick in choice.picks)
        }
        if len(values) > 1 or None in values:
            return False
    return True


def _result(choice: _Choice, pick: _Pick) -> Json:
    driver, pool, device = pick.candidate.id
    result: Json = {"request": choice.wish.name, "driver": driver, "pool": pool, "device": device}
    if pick.amounts is not None:
        result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": consumption.written(pick.amounts)}
    return result | {"adminAccess": True} if choice.wish.admin else result


def _class_configs(choices: list[_Choice]) -> list[Json]:
    """Configs of the DeviceClasses, each once, with all requests of its class."""
    by_class: dict[str, tuple[Json, list[str]]] = {}
    for choice in choices:
        device_class = choice.wish.device_class
        by_class.setdefault(device_class["metadata"]["name"], (device_class, []))[1].append(choice.wish.name)
    return [
        {"source": "FromClass", "requests": names, **config}
        for device_class, names in by_class.values()
        for config in device_class["spec"].get("config") or []
    ]


def _claim_configs(configs: list[Json], choices: list[_Choice]) -> list[Json]:
    """Configs of the claim that concern a request or the alternative that was chosen."""
    chosen = {name for choice in choices for name in (choice.wish.name, choice.wish.name.partition("/")[0])}
    return [
        {"source": "FromClaim", **config}
        for config in configs
        if not config.get("requests") or chosen.intersection(config["requests"])
    ]
