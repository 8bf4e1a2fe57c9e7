"""What the API server does to an object before it stores it: defaults and refusals, by type. No storage here.

Rules: the ``strategy`` and ``validation`` packages of Kubernetes 1.36, as far as this driver meets them.
"""

from collections.abc import Callable
from typing import Any

from dra_driver.simulator import slice_rules
from dra_driver.simulator.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Kind
from dra_driver.simulator.name_rules import dns_subdomain
from dra_driver.simulator.statuses import bad_request, invalid

Json = dict[str, Any]

MAX_RESULTS = 32
MAX_RESERVATIONS = 256
_RESULT_FIELDS = ("request", "driver", "pool", "device")


def prepare_new(kind: Kind, obj: Json) -> None:
    """Set defaults in a new object. Status is the server's to fill where there is a subresource for it."""
    if kind is RESOURCE_CLAIMS:
        obj.pop("status", None)
        for request in _requests(obj):
            _default_request(request.get("exactly"))
            for alternative in request.get("firstAvailable") or []:
                _default_request(alternative)
    elif kind is PODS:
        obj["status"] = {"phase": "Pending"}


def check_new(kind: Kind, obj: Json) -> None:
    """Refuse a bad new object. Raises StatusError 400 or 422."""
    name = obj["metadata"]["name"]
    problems = [] if dns_subdomain(name) else [f"metadata.name: Invalid value: {name!r}: must be a DNS subdomain"]
    if check := _CHECKS.get(kind.plural):
        problems += check(obj)
    if problems:
        raise invalid(kind, name, problems)


def check_update(kind: Kind, new: Json, old: Json) -> None:
    """Refuse a bad new state of ``old``. Raises StatusError 400 or 422."""
    problems: list[str] = []
    if kind is RESOURCE_SLICES:
        problems = _slice(new) + slice_rules.update_complaints(new, old)
    elif kind is RESOURCE_CLAIMS:
        if new.get("spec") != old.get("spec"):
            problems.append("spec: Invalid value: field is immutable")
        problems += _claim_status(new.get("status") or {}, old.get("status") or {})
    if problems:
        raise invalid(kind, new["metadata"]["name"], problems)


def _requests(claim: Json) -> list[Json]:
    devices = (claim.get("spec") or {}).get("devices") or {}
    return devices.get("requests") or []


def _default_request(request: Json | None) -> None:
    if request is not None:
        request.setdefault("allocationMode", "ExactCount")
        if request["allocationMode"] == "ExactCount":
            request.setdefault("count", 1)


def _slice(obj: Json) -> list[str]:
    if strangers := slice_rules.unknown_fields(obj):
        listed = ", ".join(f'unknown field "{path}"' for path in strangers)
        raise bad_request(f"ResourceSlice in version v1 cannot be handled: strict decoding error: {listed}")
    return slice_rules.complaints(obj)


def _claim(obj: Json) -> list[str]:
    problems, names = [], set[str]()
    for index, request in enumerate(_requests(obj)):
        path, name = f"spec.devices.requests[{index}]", request.get("name", "")
        if not name or name in names:
            problems.append(f"{path}.name: Invalid value: {name!r}: must be given and unique")
        names.add(name)
        if ("exactly" in request) == ("firstAvailable" in request):
            problems.append(f"{path}: Invalid value: exactly one of exactly and firstAvailable is required")
        elif "exactly" in request and not (request["exactly"] or {}).get("deviceClassName"):
            problems.append(f"{path}.exactly.deviceClassName: Required value")
    for index, config in enumerate(((obj.get("spec") or {}).get("devices") or {}).get("config") or []):
        problems += [
            f"spec.devices.config[{index}].requests: Invalid value: {named!r}: no such request in the claim"
            for named in config.get("requests") or []
            if named.partition("/")[0] not in names
        ]
    return problems


def _template(obj: Json) -> list[str]:
    return [f"spec.{problem}" for problem in _claim(obj.get("spec") or {})]


def _claim_status(new: Json, old: Json) -> list[str]:
    problems = []
    allocation, reserved = new.get("allocation"), new.get("reservedFor") or []
    if allocation and old.get("allocation") and allocation != old["allocation"]:
        problems.append("status.allocation: Invalid value: field is immutable")
    if reserved and not allocation:
        problems.append("status.reservedFor: Forbidden: may not be specified when `allocated` is not set")
    if len(reserved) > MAX_RESERVATIONS:
        problems.append(f"status.reservedFor: Too many: {len(reserved)}: must have at most {MAX_RESERVATIONS} items")
    uids = [consumer.get("uid") for consumer in reserved]
    if not all(uids) or len(set(uids)) != len(uids):
        problems.append("status.reservedFor: Invalid value: every consumer needs a uid of its own")
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    if len(results) > MAX_RESULTS:
        problems.append(f"status.allocation.devices.results: Too many: {len(results)}: at most {MAX_RESULTS}")
    for index, result in enumerate(results):
        problems += [
            f"status.allocation.devices.results[{index}].{key}: Required value"
            for key in _RESULT_FIELDS
            if not result.get(key)
        ]
    return problems


_CHECKS: dict[str, Callable[[Json], list[str]]] = {
    "resourceslices": _slice,
    "resourceclaims": _claim,
    "resourceclaimtemplates": _template,
}
