"""The requests of a claim as an allocator needs them: class and selectors put together, alternatives in order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import DriverError

Json = dict[str, Any]


class CannotAllocate(DriverError):
    """The claim does not fit on this node now, or never will; the text says why."""

    kind = "allocation"


@dataclass(frozen=True, slots=True)
class Selector:
    """A CEL selector and whose it is: ``DeviceClass gpu.nvidia.com`` or ``request gpu``, with its place there."""

    source: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, or one alternative of it. ``name`` is ``main/sub`` for an alternative."""

    name: str
    device_class: Json
    selectors: tuple[Selector, ...]
    count: int
    every: bool
    admin: bool
    capacity: Mapping[str, str]
    tolerations: tuple[Json, ...]

    @property
    def main(self) -> str:
        """The name that constraints and configs may use for all alternatives."""
        return self.name.partition("/")[0]


def requests_of(claim: Json, classes: Mapping[str, Json]) -> list[list[Request]]:
    """Each request of a claim with its alternatives. Raises CannotAllocate for a class that does not exist."""
    requests = (claim["spec"].get("devices") or {}).get("requests") or []
    return [[_request(name, option, classes) for name, option in _options(request)] for request in requests]


def classes_of(claim: Json) -> Iterator[tuple[str, str]]:
    """(request name, DeviceClass name) of each request and alternative."""
    for request in (claim["spec"].get("devices") or {}).get("requests") or []:
        for name, option in _options(request):
            yield name, option.get("deviceClassName", "")


def _options(request: Json) -> list[tuple[str, Json]]:
    if "exactly" in request:
        return [(request["name"], request["exactly"])]
    return [(f"{request['name']}/{option['name']}", option) for option in request.get("firstAvailable") or []]


def _request(name: str, request: Json, classes: Mapping[str, Json]) -> Request:
    class_name = request["deviceClassName"]
    device_class = classes.get(class_name)
    if device_class is None:
        raise CannotAllocate(f"request {name}: could not retrieve device class {class_name}")
    return Request(
        name=name,
        device_class=device_class,
        selectors=(
            *_selectors(f"DeviceClass {class_name}", device_class["spec"]),
            *_selectors(f"request {name}", request),
        ),
        count=request.get("count", 1),
        every=request.get("allocationMode") == "All",
        admin=bool(request.get("adminAccess")),
        capacity=(request.get("capacity") or {}).get("requests") or {},
        tolerations=tuple(request.get("tolerations") or ()),
    )


def _selectors(source: str, spec: Json) -> list[Selector]:
    listed = spec.get("selectors") or []
    return [
        Selector(source if len(listed) == 1 else f"{source}, selector {number}", selector["cel"]["expression"])
        for number, selector in enumerate(listed, start=1)
        if "cel" in selector
    ]
