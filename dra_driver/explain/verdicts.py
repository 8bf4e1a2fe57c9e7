"""Why a claim as a whole gets nothing on a node: a request that nothing serves, a constraint, requests that compete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.explain.reasons import Reason
from dra_driver.explain.state import Json
from dra_driver.scheduling.allocator import NO_FIT, allocate
from dra_driver.scheduling.consumption import Usage
from dra_driver.scheduling.fitting import Kind
from dra_driver.scheduling.pools import Candidate
from dra_driver.scheduling.requests import CannotAllocate
from dra_driver.scheduling.selectors import Compile


@dataclass(frozen=True, slots=True)
class DeviceAnswer:
    """One device against one request. reason: None where it can serve it."""

    driver: str
    pool: str
    device: str
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """One request, or one alternative, on one node. wanted: devices needed, ``all`` or a number."""

    name: str
    device_class: str
    wanted: str
    devices: tuple[DeviceAnswer, ...]

    @property
    def fitting(self) -> list[DeviceAnswer]:
        """Devices that can serve it."""
        return [device for device in self.devices if device.reason is None]

    @property
    def selected(self) -> list[DeviceAnswer]:
        """Devices that its selectors take, whether they can be had or not."""
        return [each for each in self.devices if each.reason is None or each.reason.kind is not Kind.SELECTOR]


@dataclass(frozen=True, slots=True)
class Place:
    """A node as an allocator sees it. used: what allocated claims hold; classes: DeviceClasses by name."""

    node: str
    devices: Sequence[Candidate]
    used: Usage
    classes: Mapping[str, Json]
    compiler: Compile

    def allocate(self, claim: Json) -> list[Json] | str:
        """The results that a claim would get here, or why it would get none."""
        try:
            found = allocate(claim, self.classes, self.devices, self.used, self.node, self.compiler)
        except CannotAllocate as error:
            return str(error)
        results: list[Json] = found["devices"]["results"]
        return results


def why_not(claim: Json, place: Place, requests: Sequence[RequestAnswer], said: str) -> str:
    """What makes the difference: requests that nothing serves, else the constraint without which it would fit.

    said: by the allocator.
    """
    if said != NO_FIT:
        return said
    mains = dict.fromkeys(_main(each) for each in requests)
    blocked = [main for main in mains if all(_short(each) for each in requests if _main(each) == main)]
    if blocked:
        return "; ".join(_short(each) for each in requests if _main(each) in blocked)
    constraints = claim["spec"]["devices"].get("constraints") or []
    for index, constraint in enumerate(constraints):
        if _fits_with(claim, [*constraints[:index], *constraints[index + 1 :]], place):
            return _constraint(constraint)
    if constraints and _fits_with(claim, [], place):
        return " and ".join(_constraint(each) for each in constraints)
    return "each request could be served alone, but not all of them: they need the same devices"


def _main(request: RequestAnswer) -> str:
    return request.name.partition("/")[0]


def _short(request: RequestAnswer) -> str:
    """Why a request alone cannot be served, '' where it can."""
    fitting, selected = len(request.fitting), len(request.selected)
    if not selected:
        return f"request {request.name}: none of {len(request.devices)} devices is selected"
    if request.wanted == "all":
        wanted = f"all {selected} devices"
        return "" if fitting == selected else f"request {request.name} wants {wanted}, {fitting} can be had"
    if fitting >= int(request.wanted):
        return ""
    devices = "device" if request.wanted == "1" else "devices"
    return f"request {request.name} wants {request.wanted} {devices}, {fitting} of {selected} selected can be had"


def _constraint(constraint: Json) -> str:
    names = ", ".join(constraint.get("requests") or []) or "all requests"
    if same := constraint.get("matchAttribute"):
        return f"no devices that can be had have the same {same} (constraint matchAttribute over {names})"
    different = constraint.get("distinctAttribute")
    return f"no devices that can be had all differ in {different} (constraint distinctAttribute over {names})"


def _fits_with(claim: Json, constraints: list[Json], place: Place) -> bool:
    spec = {**claim["spec"], "devices": {**claim["spec"]["devices"], "constraints": constraints}}
    return not isinstance(place.allocate({**claim, "spec": spec}), str)
