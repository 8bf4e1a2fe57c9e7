"""Which devices a claim gets: the scheduler's choice, made small. Pure functions over API objects.

Rules: ``k8s.io/dynamic-resource-allocation/structured`` - slices by name, devices in list order, the first that
fit. Not here: shares (consumable capacity), partitions with counters, taints.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.errors import DriverError
from dra_driver.simulator.cel import SelectorError, attribute, compile_selector

Json = dict[str, Any]
DeviceId = tuple[str, str, str]

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


@dataclass(slots=True)
class _Choice:
    wish: _Wish
    devices: list[Candidate] = field(default_factory=list)


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


def devices_in_use(claims: Iterable[Json]) -> set[DeviceId]:
    """Devices that allocated claims hold; admin access holds nothing."""
    return {
        (result["driver"], result["pool"], result["device"])
        for claim in claims
        for result in _results(claim)
        if not result.get("adminAccess")
    }


def allocate(
    claim: Json,
    classes: Mapping[str, Json],
    devices: Sequence[Candidate],
    in_use: set[DeviceId],
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
    if not _choose(wishes, choices, set(in_use), spec.get("constraints") or []):
        raise CannotAllocate("cannot allocate all claims")
    if sum(len(choice.devices) for choice in choices) > MAX_RESULTS:
        raise CannotAllocate(f"more than {MAX_RESULTS} devices in claim {claim['metadata']['name']}")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "devices": {
            "results": [_result(choice, device) for choice in choices for device in choice.devices],
            "config": [*_class_configs(choices), *_claim_configs(spec.get("config") or [], choices)],
        },
        "nodeSelector": {"nodeSelectorTerms": [term]},
    }


def _results(claim: Json) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


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
    )


def _choose(
    wishes: Sequence[list[_Wish]], choices: list[_Choice], taken: set[DeviceId], constraints: list[Json]
) -> bool:
    """Fill ``choices`` with the first devices that satisfy everything, request by request, with backtracking."""
    if len(choices) == len(wishes):
        return True
    for wish in wishes[len(choices)]:
        if not wish.count or (wish.every and not all(_free(wish, c, taken) for c in wish.matching)):
            continue
        for picked in _combinations(wish, 0, taken, choices, constraints):
            choices.append(_Choice(wish, picked))
            held = set() if wish.admin else {c.id for c in picked}
            if _choose(wishes, choices, taken | held, constraints):
                return True
            choices.pop()
    return False


def _combinations(
    wish: _Wish, start: int, taken: set[DeviceId], choices: list[_Choice], constraints: list[Json]
) -> Iterator[list[Candidate]]:
    """Ways to fill one request, in list order; a prefix that breaks a constraint is not followed."""

    def extend(chosen: list[Candidate], start: int) -> Iterator[list[Candidate]]:
        if len(chosen) == wish.count:
            yield chosen
            return
        for index in range(start, len(wish.matching)):
            candidate = wish.matching[index]
            longer = [*chosen, candidate]
            if _free(wish, candidate, taken) and _satisfied([*choices, _Choice(wish, longer)], constraints):
                yield from extend(longer, index + 1)

    return extend([], start)


def _free(wish: _Wish, candidate: Candidate, taken: set[DeviceId]) -> bool:
    return wish.admin or candidate.id not in taken


def _satisfied(choices: list[_Choice], constraints: list[Json]) -> bool:
    for constraint in constraints:
        if "matchAttribute" not in constraint:
            raise CannotAllocate(f"constraint {sorted(constraint)} is beyond this allocator: matchAttribute only")
        names = constraint.get("requests") or []
        values = {
            attribute(candidate.driver, candidate.device, constraint["matchAttribute"])
            for choice in choices
            if not names or choice.wish.name in names or choice.wish.name.partition("/")[0] in names
            for candidate in choice.devices
        }
        if len(values) > 1 or None in values:
            return False
    return True


def _result(choice: _Choice, candidate: Candidate) -> Json:
    driver, pool, device = candidate.id
    result: Json = {"request": choice.wish.name, "driver": driver, "pool": pool, "device": device}
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
