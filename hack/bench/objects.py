"""Kubernetes objects that the load needs. Pure: names in, JSON dicts out."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver_api import names

Json = dict[str, Any]

LABEL = "bench.gpu.nvidia.com/run"
REQUEST = "gpu"
CONSUMER_GROUP = "bench.gpu.nvidia.com"

PLAIN = "none"
"""No sharing configuration: the driver must leave the card alone."""

SLICED = "TimeSlicing Long"
"""Needs one run of the tool to set, and one to reset."""

UNCHANGED = "TimeSlicing Default"
"""On a card whose slice is Default already: needs no run."""

SHARED = "none, shares"
"""As PLAIN, with many claims on one card, each on a share of its own."""

SHARED_SLICED = "TimeSlicing Long, shares"
"""As SLICED, for a card that another claim has given this slice already."""

_INTERVALS = {SLICED: "Long", UNCHANGED: "Default", SHARED_SLICED: "Long"}


@dataclass(frozen=True, slots=True)
class Device:
    """A device as published in a ResourceSlice."""

    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


def claim(name: str, run: str, sharing: str) -> Json:
    """A ResourceClaim of one GPU. sharing: one of the names above."""
    return {
        "apiVersion": names.RESOURCE_API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": {LABEL: run}},
        "spec": {
            "devices": {
                "requests": [{"name": REQUEST, "exactly": {"deviceClassName": names.DRIVER_NAME}}],
                **({"config": [_opaque(sharing)]} if sharing in _INTERVALS else {}),
            }
        },
    }


def allocated(created: Json, device: Device, node: str, sharing: str) -> Json:
    """The claim with the status that scheduler and controllers would give it: ``device``, reserved for one consumer."""
    result: Json = {"request": REQUEST, "driver": names.DRIVER_NAME, "pool": device.pool, "device": device.name}
    if sharing in (SHARED, SHARED_SLICED):
        result["shareID"] = str(uuid.uuid4())
    config = [{**_opaque(sharing), "source": "FromClaim"}] if sharing in _INTERVALS else []
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    name = created["metadata"]["name"]
    # Not a pod: Kubernetes would look for it, and take a claim whose pod does not exist away from it meanwhile.
    consumer = {"apiGroup": CONSUMER_GROUP, "resource": "runs", "name": name}
    consumer["uid"] = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    return {
        **created,
        "status": {
            "allocation": {
                "devices": {"results": [result], **({"config": config} if config else {})},
                "nodeSelector": {"nodeSelectorTerms": [term]},
            },
            "reservedFor": [consumer],
        },
    }


def node(name: str) -> Json:
    """A Node object."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def devices_of(slices: Sequence[Json]) -> tuple[Device, ...] | None:
    """All devices of one pool in publishing order, or None while slices of its newest generation are missing."""
    pools = [(obj["spec"]["pool"], obj) for obj in slices]
    if not pools:
        return None
    newest = max(pool["generation"] for pool, _ in pools)
    current = [(pool, obj) for pool, obj in pools if pool["generation"] == newest]
    if len(current) != current[0][0]["resourceSliceCount"]:
        return None
    ordered = sorted((obj for _, obj in current), key=lambda obj: str(obj["metadata"]["name"]))
    return tuple(
        Device(obj["spec"]["pool"]["name"], entry["name"])
        for obj in ordered
        for entry in obj["spec"].get("devices") or []
    )


def _opaque(sharing: str) -> Json:
    parameters = {
        "apiVersion": names.CONFIG_API_VERSION,
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": _INTERVALS[sharing]}},
    }
    return {"requests": [REQUEST], "opaque": {"driver": names.DRIVER_NAME, "parameters": parameters}}
