"""What a real API server refuses in a ResourceSlice. Pure functions from an object to a list of complaints.

Rules: ``pkg/apis/resource/validation`` of Kubernetes 1.36.
"""

from collections.abc import Callable, Iterator
from typing import Any

from dra_driver.simulator import device_rules
from dra_driver.simulator.name_rules import dns_label, dns_subdomain

Json = dict[str, Any]

MAX_DEVICES = 128
MAX_DEVICES_WITH_EXTRAS = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_POOL_NAME = 253
MAX_DRIVER_NAME = 63

_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SPEC_FIELDS = frozenset(("driver", "pool", "devices", "sharedCounters", *_PLACES))
_POOL_FIELDS = frozenset(("name", "generation", "resourceSliceCount"))
_IMMUTABLE: dict[str, Callable[[Json], Any]] = {
    "spec.driver": lambda spec: spec.get("driver"),
    "spec.nodeName": lambda spec: spec.get("nodeName"),
    "spec.pool.name": lambda spec: (spec.get("pool") or {}).get("name"),
}


def unknown_fields(obj: Json) -> list[str]:
    """Paths of fields that the type does not have: a real server drops them without a word."""
    spec = obj.get("spec") or {}
    found = [f"spec.{key}" for key in spec if key not in _SPEC_FIELDS]
    found += [f"spec.pool.{key}" for key in spec.get("pool") or {} if key not in _POOL_FIELDS]
    for index, device in enumerate(spec.get("devices") or []):
        found += [f"spec.devices[{index}].{key}" for key in device_rules.unknown_fields(device)]
    return found


def complaints(obj: Json) -> list[str]:
    """``field: reason`` for everything that is wrong with a slice, [] for a good one."""
    spec = obj.get("spec") or {}
    return [*_identity(spec), *_pool(spec.get("pool")), *_place(spec), *_devices(spec), *_counter_sets(spec)]


def update_complaints(new: Json, old: Json) -> list[str]:
    """What an update must not change."""
    return [
        f"{path}: Invalid value: {read(new['spec'])!r}: field is immutable"
        for path, read in _IMMUTABLE.items()
        if read(new.get("spec") or {}) != read(old.get("spec") or {})
    ]


def _identity(spec: Json) -> Iterator[str]:
    driver = spec.get("driver")
    if not driver:
        yield "spec.driver: Required value"
    elif not dns_subdomain(driver) or len(driver) > MAX_DRIVER_NAME:
        yield f"spec.driver: Invalid value: {driver!r}: must be a DNS subdomain, 63 characters at most"


def _pool(pool: Json | None) -> Iterator[str]:
    pool = pool or {}
    name = pool.get("name")
    if not name:
        yield "spec.pool.name: Required value"
    elif len(name) > MAX_POOL_NAME or not all(dns_subdomain(part) for part in name.split("/")):
        yield f"spec.pool.name: Invalid value: {name!r}: must be DNS subdomains separated by slashes"
    count = pool.get("resourceSliceCount", 0)
    if not isinstance(count, int) or count <= 0:
        yield f"spec.pool.resourceSliceCount: Invalid value: {count!r}: must be greater than zero"
    generation = pool.get("generation", 0)
    if not isinstance(generation, int) or generation < 0:
        yield f"spec.pool.generation: Invalid value: {generation!r}: must be greater than or equal to zero"


def _place(spec: Json) -> Iterator[str]:
    given = [place for place in _PLACES if spec.get(place)]
    if len(given) != 1:
        found = ", ".join(given) or "none"
        yield f"spec: Invalid value: {found}: exactly one of {', '.join(_PLACES)} is required"


def _devices(spec: Json) -> Iterator[str]:
    devices = spec.get("devices") or []
    limit = MAX_DEVICES_WITH_EXTRAS if any(map(device_rules.has_extras, devices)) else MAX_DEVICES
    if len(devices) > limit:
        yield f"spec.devices: Too many: {len(devices)}: must have at most {limit} items"
    seen: set[str] = set()
    for index, device in enumerate(devices):
        path = f"spec.devices[{index}]"
        yield from device_rules.complaints(path, device)
        name = device.get("name", "")
        if name in seen:
            yield f"{path}.name: Duplicate value: {name!r}"
        seen.add(name)


def _counter_sets(spec: Json) -> Iterator[str]:
    sets = spec.get("sharedCounters") or []
    if sets and spec.get("devices"):
        yield "spec: Invalid value: exactly one of sharedCounters and devices may be set"
    if len(sets) > MAX_COUNTER_SETS:
        yield f"spec.sharedCounters: Too many: {len(sets)}: must have at most {MAX_COUNTER_SETS} items"
    names = [entry.get("name", "") for entry in sets]
    for index, entry in enumerate(sets):
        path = f"spec.sharedCounters[{index}]"
        if not dns_label(names[index]):
            yield f"{path}.name: Invalid value: {names[index]!r}: must be a DNS label"
        if names[index] in names[:index]:
            yield f"{path}.name: Duplicate value: {names[index]!r}"
        yield from device_rules.counters(f"{path}.counters", entry.get("counters"))
