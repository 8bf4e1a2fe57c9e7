"""Which devices a claim gets: the scheduler's choice, made small. Pure functions over API objects.

Rules: ``k8s.io/dynamic-resource-allocation/structured`` - slices by name, devices in list order, the first that fit.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.scheduling import consumption
from dra_driver.scheduling.consumption import Usage
from dra_driver.scheduling.fitting import Fitting, Obstacle, Pick
from dra_driver.scheduling.pools import Candidate
from dra_driver.scheduling.requests import CannotAllocate, Request, requests_of
from dra_driver.scheduling.selectors import Compile, SelectorError, attribute
from dra_driver.scheduling.small_cel import compile_selector

Json = dict[str, Any]

MAX_RESULTS = 32
"""Devices a claim can have (AllocationResultsMaxSize)."""

NO_FIT = "cannot allocate all claims"
"""Of a claim that the search found nothing for."""

MAX_STEPS = 100_000
"""Devices looked at before a search is given up; the scheduler has a time limit instead."""


@dataclass(slots=True)
class _Choice:
    request: Request
    picks: list[Pick] = field(default_factory=list)


def allocate(
    claim: Json,
    classes: Mapping[str, Json],
    devices: Sequence[Candidate],
    in_use: Usage,
    node: str,
    compiler: Compile = compile_selector,
) -> Json:
    """The ``status.allocation`` for a claim.

    classes: DeviceClass objects by name. compiler: of CEL selectors. Raises CannotAllocate.
    """
    spec = claim["spec"].get("devices") or {}
    search = _Search(requests_of(claim, classes), devices, spec.get("constraints") or [], Fitting(compiler))
    try:
        found = search.run(in_use)
    except SelectorError as error:
        raise CannotAllocate(f"claim {claim['metadata']['name']}: {error}") from error
    if not found:
        raise CannotAllocate(NO_FIT)
    choices = search.choices
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


class _Search:
    """Fills ``choices`` with the first devices that satisfy everything, request by request, with backtracking."""

    def __init__(
        self, wishes: list[list[Request]], devices: Sequence[Candidate], constraints: list[Json], fitting: Fitting
    ) -> None:
        self.choices: list[_Choice] = []
        self._wishes, self._devices, self._constraints, self._fitting = wishes, devices, constraints, fitting
        self._steps = 0

    def run(self, used: Usage) -> bool:
        """Whether all the requests that are left can be filled."""
        if len(self.choices) == len(self._wishes):
            return True
        for request in self._wishes[len(self.choices)]:
            devices = self._selected(request) if request.every else self._devices
            count = len(devices) if request.every else request.count
            if not count:
                continue
            for picked, after in self._combinations(request, devices, count, used):
                self.choices.append(_Choice(request, picked))
                if self.run(after):
                    return True
                self.choices.pop()
        return False

    def _selected(self, request: Request) -> list[Candidate]:
        return [candidate for candidate in self._devices if self._fitting.unselected(request, candidate) is None]

    def _combinations(
        self, request: Request, devices: Sequence[Candidate], count: int, used: Usage
    ) -> Iterator[tuple[list[Pick], Usage]]:
        """Ways to fill one request, in list order, each with what is in use then; a prefix that breaks a constraint is
        not followed. A request gets a device once, also where it is shared; another request may have it too.
        """

        def extend(chosen: list[Pick], used: Usage, start: int) -> Iterator[tuple[list[Pick], Usage]]:
            if len(chosen) == count:
                yield chosen, used
                return
            for index in range(start, len(devices)):
                self._steps += 1
                if self._steps > MAX_STEPS:
                    raise CannotAllocate(f"the search was given up after {MAX_STEPS} devices were looked at")
                pick = self._fitting.judge(request, devices[index], used)
                if isinstance(pick, Obstacle):
                    if request.every:
                        return
                    continue
                longer = [*chosen, pick]
                if _satisfied([*self.choices, _Choice(request, longer)], self._constraints):
                    after = used if request.admin else used.plus(pick.candidate.id, pick.amounts)
                    yield from extend(longer, after, index + 1)

        return extend([], used, 0)


def _satisfied(choices: list[_Choice], constraints: list[Json]) -> bool:
    for constraint in constraints:
        same, different = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
        name = same or different
        if not name:
            raise CannotAllocate(f"constraint {sorted(constraint)} is unknown: matchAttribute or distinctAttribute")
        names = constraint.get("requests") or []
        values = [
            attribute(pick.candidate.driver, pick.candidate.device, name)
            for choice in choices
            if not names or choice.request.name in names or choice.request.main in names
            for pick in choice.picks
        ]
        kinds = len(set(values))
        if None in values or (same and kinds > 1) or (different and kinds < len(values)):
            return False
    return True


def _result(choice: _Choice, pick: Pick) -> Json:
    driver, pool, device = pick.candidate.id
    result: Json = {"request": choice.request.name, "driver": driver, "pool": pool, "device": device}
    if pick.amounts is not None:
        result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": consumption.written(pick.amounts)}
    return result | {"adminAccess": True} if choice.request.admin else result


def _class_configs(choices: list[_Choice]) -> list[Json]:
    """Configs of the DeviceClasses, each once, with all requests of its class."""
    by_class: dict[str, tuple[Json, list[str]]] = {}
    for choice in choices:
        device_class = choice.request.device_class
        by_class.setdefault(device_class["metadata"]["name"], (device_class, []))[1].append(choice.request.name)
    return [
        {"source": "FromClass", "requests": names, **config}
        for device_class, names in by_class.values()
        for config in device_class["spec"].get("config") or []
    ]


def _claim_configs(configs: list[Json], choices: list[_Choice]) -> list[Json]:
    """Configs of the claim that concern a request or the alternative that was chosen."""
    chosen = {name for choice in choices for name in (choice.request.name, choice.request.name.partition("/")[0])}
    return [
        {"source": "FromClaim", **config}
        for config in configs
        if not config.get("requests") or chosen.intersection(config["requests"])
    ]
