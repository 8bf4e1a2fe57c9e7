"""Reads what of a ResourceClaim object concerns this driver. Pure: objects in, frozen values out."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from dra_driver.model.claims import AllocatedDevice, Allocation, ClaimRef, ConfigSource, OpaqueConfig
from dra_driver.model.errors import BadConfig, NotAllocated, UnknownDevice
from dra_driver.sharing.memory_limits import asks_for_enforced
from dra_driver_api.names import DRIVER_NAME

_DEVICE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# A UID becomes part of a file name and of CDI device names.
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,126}[A-Za-z0-9])?")


def check_uid(claim: ClaimRef) -> None:
    """Raises BadConfig for a UID that cannot be part of a file name."""
    if not _UID.fullmatch(claim.uid):
        raise BadConfig(f"claim uid {claim.uid[:80]!r} is not made of letters, digits, '-' and '_'")


def read_allocation(claim: ClaimRef, resource_claim: Mapping[str, Any], pool: str) -> Allocation:
    """The allocation of ``claim`` as far as it is this driver's.

    resource_claim: a resource.k8s.io/v1 ResourceClaim. pool: name of this node's pool (the node's name).
    Results and configs of other drivers are left out unread. Raises NotAllocated, UnknownDevice (a device of
    another pool, or a name no device can have) or BadConfig (an entry whose shape the API does not allow).
    """
    allocation = _mapping(resource_claim.get("status") or {}, "status").get("allocation")
    if not allocation:
        raise NotAllocated(f"claim {claim} is not allocated yet: its status has no allocation")
    allocation = _mapping(allocation, "status.allocation")
    devices = _mapping(allocation.get("devices") or {}, "status.allocation.devices")
    results = _list(devices.get("results"), "status.allocation.devices.results")
    configs = _list(devices.get("config"), "status.allocation.devices.config")
    wishes = _wishes(resource_claim)
    return Allocation(
        claim=claim,
        devices=tuple(
            _device(claim, entry, pool, wishes, f"status.allocation.devices.results[{index}]")
            for index, entry in enumerate(results)
            if entry.get("driver") == DRIVER_NAME
        ),
        configs=tuple(_configs(configs)),
    )


def _device(
    claim: ClaimRef, entry: Mapping[str, Any], pool: str, wishes: Mapping[str, Mapping[str, Any]], path: str
) -> AllocatedDevice:
    name, found_pool, request = (_text(entry.get(key), f"{path}.{key}") for key in ("device", "pool", "request"))
    if found_pool != pool:
        raise UnknownDevice(
            f"device {name[:80]!r} of claim {claim} is in pool {found_pool[:80]!r}, not in this node's pool {pool!r}"
        )
    if not _DEVICE_NAME.fullmatch(name):
        raise UnknownDevice(f"device name {name[:80]!r} of claim {claim} is not a DNS label, so no device has it")
    admin_access = entry.get("adminAccess")
    if not isinstance(admin_access, bool | None):
        raise BadConfig(f"{path}.adminAccess is a {type(admin_access).__name__}, must be true or false")
    consumed = _mapping(entry.get("consumedCapacity") or {}, f"{path}.consumedCapacity")
    wish = wishes.get(request, {})
    return AllocatedDevice(
        request=request,
        pool=found_pool,
        device=name,
        admin_access=bool(admin_access),
        share_id=_text(entry.get("shareID"), f"{path}.shareID") or None,
        consumed_capacity=tuple(sorted((str(key), str(value)) for key, value in consumed.items())),
        device_class=str(wish.get("deviceClassName") or ""),
        needs_enforced=any(asks_for_enforced(expression) for expression in expressions(wish)),
    )


def expressions(selecting: Mapping[str, Any]) -> Iterable[str]:
    """The CEL texts among the ``selectors`` of a request, or of the spec of a DeviceClass."""
    for selector in _entries(selecting.get("selectors")):
        cel = selector.get("cel")
        if isinstance(cel, Mapping) and isinstance(cel.get("expression"), str):
            yield cel["expression"]


def _wishes(resource_claim: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Request, or alternative, by the name that results have for it -> what is wished.

    The spec is the API server's to check: what is odd in it is left out here.
    """
    spec = resource_claim.get("spec")
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    found: dict[str, Mapping[str, Any]] = {}
    for request in _entries(devices.get("requests") if isinstance(devices, Mapping) else None):
        name, exactly = str(request.get("name")), request.get("exactly")
        if isinstance(exactly, Mapping):
            found[name] = exactly
        found |= {f"{name}/{wish.get('name')}": wish for wish in _entries(request.get("firstAvailable"))}
    return found


def _entries(value: Any) -> Iterable[Mapping[str, Any]]:
    return (entry for entry in value if isinstance(entry, Mapping)) if isinstance(value, list) else ()


def _configs(entries: list[Mapping[str, Any]]) -> Iterable[OpaqueConfig]:
    for index, entry in enumerate(entries):
        opaque = entry.get("opaque")
        if opaque is None:
            raise BadConfig(f"config[{index}]: only opaque parameters are supported by this driver")
        opaque = _mapping(opaque, f"config[{index}].opaque")
        if opaque.get("driver") != DRIVER_NAME:
            continue
        yield OpaqueConfig(
            source=_source(entry.get("source"), index),
            requests=_requests(entry.get("requests"), f"config[{index}].requests"),
            parameters=opaque.get("parameters"),
            index=index,
        )


def _requests(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, list | None):
        raise BadConfig(f"{path} is a {type(value).__name__}, must be a list")
    return tuple(_text(request, f"{path}[{index}]") for index, request in enumerate(value or ()))


def _text(value: Any, path: str) -> str:
    """'' for a field that is absent."""
    if not isinstance(value, str | None):
        raise BadConfig(f"{path} is a {type(value).__name__}, must be a string")
    return value or ""


def _source(value: Any, index: int) -> ConfigSource:
    try:
        return ConfigSource(value)
    except ValueError:
        valid = ", ".join(source.value for source in ConfigSource)
        raise BadConfig(f"config[{index}].source is {repr(value)[:80]}, must be one of {valid}") from None


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadConfig(f"{path} is a {type(value).__name__}, must be an object")
    return value


def _list(value: Any, path: str) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadConfig(f"{path} is a {type(value).__name__}, must be a list")
    return [_mapping(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
