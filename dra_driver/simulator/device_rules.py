"""What a real API server refuses in one device of a ResourceSlice. Pure functions.

Rules: ``pkg/apis/resource/validation`` of Kubernetes 1.36.
"""

import re
from collections.abc import Iterator
from typing import Any

from dra_driver.scheduling import quantities
from dra_driver.simulator import name_rules

Json = dict[str, Any]

MAX_NAMES = 32
MAX_STRING = 64
MAX_TAINTS = 16
MAX_CONSUMPTIONS = 2
MAX_COUNTERS = 32
MAX_VALID_VALUES = 10

_DEVICE_FIELDS = frozenset(
    (
        "name",
        "attributes",
        "capacity",
        "consumesCounters",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "taints",
        "bindsToNode",
        "bindingConditions",
        "bindingFailureConditions",
        "allowMultipleAllocations",
        "nodeAllocatableResourceMappings",
    )
)
_SCALARS: dict[str, type] = {"bool": bool, "int": int, "string": str, "version": str}
_LISTS = {"bools": "bool", "ints": "int", "strings": "string", "versions": "version"}
_TAINT_EFFECTS = ("None", "NoSchedule", "NoExecute")
_SEMVER = re.compile(
    r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][\dA-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][\dA-Za-z-]*))*)?"
    r"(\+[\dA-Za-z-]+(\.[\dA-Za-z-]+)*)?$"
)


def unknown_fields(device: Json) -> list[str]:
    """Keys that a device does not have."""
    return [key for key in device if key not in _DEVICE_FIELDS]


def has_extras(device: Json) -> bool:
    """Whether the device lowers the number of devices that fit into a slice."""
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(_LISTS.keys() & value.keys() for value in (device.get("attributes") or {}).values())


def complaints(path: str, device: Json) -> Iterator[str]:
    """Everything wrong with one device; ``path`` is where it stands."""
    if not name_rules.dns_label(device.get("name")):
        yield f"{path}.name: Invalid value: {device.get('name')!r}: must be a DNS label"
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > MAX_NAMES:
        found = len(attributes) + len(capacity)
        yield f"{path}: Too many: {found}: attributes and capacities together must be at most {MAX_NAMES}"
    for name, value in attributes.items():
        yield from _attribute(f"{path}.attributes[{name}]", name, value)
    for name, value in capacity.items():
        yield from _capacity(f"{path}.capacity[{name}]", name, value, device)
    yield from _taints(f"{path}.taints", device.get("taints") or [])
    yield from _consumptions(f"{path}.consumesCounters", device.get("consumesCounters") or [])


def _attribute(path: str, name: str, value: Json) -> Iterator[str]:
    if not name_rules.qualified_name(name):
        yield f"{path}: Invalid value: {name!r}: must be [domain/]identifier, 63 and 32 characters at most"
    given = [key for key in value if value[key] is not None]
    if len(given) != 1 or given[0] not in (*_SCALARS, *_LISTS):
        yield f"{path}: Invalid value: {sorted(given)}: exactly one value must be specified"
        return
    kind, content = given[0], value[given[0]]
    if kind in _SCALARS:
        yield from _scalar(f"{path}.{kind}", kind, content)
    elif not isinstance(content, list) or not content:
        yield f"{path}.{kind}: Required value: a list must not be empty"
    else:
        for index, item in enumerate(content):
            yield from _scalar(f"{path}.{kind}[{index}]", _LISTS[kind], item)


def _scalar(path: str, kind: str, value: object) -> Iterator[str]:
    if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
        yield f"{path}: Invalid value: {value!r}: must be of type {kind}"
    elif kind == "int" and not -(2**63) <= value < 2**63:  # type: ignore[operator]
        yield f"{path}: Invalid value: {value!r}: must fit into 64 bits"
    elif isinstance(value, str) and len(value) > MAX_STRING:
        yield f"{path}: Too long: may not be more than {MAX_STRING} bytes"
    elif kind == "version" and not _SEMVER.match(str(value)):
        yield f"{path}: Invalid value: {value!r}: must be a string compatible with semver.org spec 2.0.0"


def _capacity(path: str, name: str, value: Json, device: Json) -> Iterator[str]:
    if not name_rules.qualified_name(name):
        yield f"{path}: Invalid value: {name!r}: must be [domain/]identifier, 63 and 32 characters at most"
    amount = quantities.parse(value.get("value"))
    if amount is None:
        yield f"{path}.value: Invalid value: {value.get('value')!r}: must be a quantity"
        return
    policy = value.get("requestPolicy")
    if policy is None:
        return
    if not device.get("allowMultipleAllocations"):
        yield f"{path}.requestPolicy: Forbidden: only with allowMultipleAllocations"
    yield from _policy(f"{path}.requestPolicy", policy, amount)


def _policy(path: str, policy: Json, amount: Any) -> Iterator[str]:
    default, limits = quantities.parse(policy.get("default")), policy.get("validRange")
    values = [quantities.parse(v) for v in policy.get("validValues") or []]
    if (limits or values) and default is None:
        yield f"{path}.default: Required value"
        return
    if limits and values:
        yield f"{path}: Forbidden: exactly one of validRange and validValues"
    if limits:
        yield from _range(f"{path}.validRange", limits, default, amount)
    if len(values) > MAX_VALID_VALUES:
        yield f"{path}.validValues: Too many: {len(values)}: must have at most {MAX_VALID_VALUES} items"
    if values and (None in values or values != sorted(v for v in values if v is not None)):
        yield f"{path}.validValues: Invalid value: must be quantities in ascending order"
    elif values and default not in values:
        yield f"{path}.default: Invalid value: must be one of validValues"


def _range(path: str, limits: Json, default: Any, amount: Any) -> Iterator[str]:
    low = quantities.parse(limits.get("min"))
    high = quantities.parse(limits.get("max")) if "max" in limits else amount
    step = quantities.parse(limits.get("step")) if "step" in limits else None
    if low is None or high is None:
        yield f"{path}: Invalid value: min is required and both limits must be quantities"
        return
    if not low <= default <= high <= amount:
        yield f"{path}: Invalid value: min <= default <= max <= value must hold"
    if step is not None and (step <= 0 or low + step > amount):
        yield f"{path}.step: Invalid value: must be positive, and min + step must not exceed the value"
    elif step is not None and ((default - low) % step or (high - low) % step):
        yield f"{path}.step: Invalid value: default and max must be min plus a multiple of step"


def _taints(path: str, taints: list[Json]) -> Iterator[str]:
    if len(taints) > MAX_TAINTS:
        yield f"{path}: Too many: {len(taints)}: must have at most {MAX_TAINTS} items"
    for index, taint in enumerate(taints):
        if not name_rules.label_key(taint.get("key")):
            yield f"{path}[{index}].key: Invalid value: {taint.get('key')!r}: must be a label name"
        if not name_rules.label_value(taint.get("value", "")):
            yield f"{path}[{index}].value: Invalid value: {taint.get('value')!r}: must be a label value"
        if taint.get("effect") not in _TAINT_EFFECTS:
            listed = ", ".join(_TAINT_EFFECTS)
            yield f"{path}[{index}].effect: Unsupported value: {taint.get('effect')!r}: supported: {listed}"


def _consumptions(path: str, entries: list[Json]) -> Iterator[str]:
    if len(entries) > MAX_CONSUMPTIONS:
        yield f"{path}: Too many: {len(entries)}: must have at most {MAX_CONSUMPTIONS} items"
    for index, entry in enumerate(entries):
        name = entry.get("counterSet")
        if not name_rules.dns_label(name):
            yield f"{path}[{index}].counterSet: Invalid value: {name!r}: must be a DNS label"
        yield from counters(f"{path}[{index}].counters", entry.get("counters"))


def counters(path: str, given: Json | None) -> Iterator[str]:
    """Counters of a set, or of one consumption."""
    if not given:
        yield f"{path}: Required value"
        return
    if len(given) > MAX_COUNTERS:
        yield f"{path}: Too many: {len(given)}: must have at most {MAX_COUNTERS} items"
    for name, counter in given.items():
        if not name_rules.dns_label(name):
            yield f"{path}[{name}]: Invalid value: {name!r}: must be a DNS label"
        if quantities.parse((counter or {}).get("value")) is None:
            yield f"{path}[{name}].value: Invalid value: must be a quantity"
