"""Claims of every kind that an allocator has to decide about, by number, and devices to decide about. Pure."""

import random
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.manifests import RESOURCE, Json, claim

PARTITIONS: Final = "partitions.example.com"
_OWN: Final = "device.attributes['gpu.nvidia.com']"
_MEMORY: Final = "device.capacity['gpu.nvidia.com'].memory"

SELECTORS: Final = (
    f"{_OWN}.productName == 'NVIDIA H200'",
    f"{_OWN}.productName.startsWith('NVIDIA L')",
    f"{_OWN}.productName.lowerAscii().matches('h[0-9]+$')",
    f"{_MEMORY}.compareTo(quantity('80Gi')) >= 0",
    f"{_MEMORY}.isLessThan(quantity('48Gi'))",
    f"{_OWN}.driverVersion.isGreaterThan(semver('575.0.0'))",
    f"{_OWN}.driverVersion.compareTo(semver('580.159.4')) == 0",
    f"has({_OWN}.spare) && {_OWN}.spare",
    f"{_OWN}.?spare.orValue(false)",
    f"{_OWN}.spare",
    f"{_OWN}.index in [1, 2, 5]",
    f"{_OWN}.index % 2 == 0 || {_OWN}.index > 4",
    f"cel.bind(own, {_OWN}, own.index > 0 && own.index < 4)",
    "'fabric.example.com' in device.attributes",
    "has(device.attributes['fabric.example.com'].zone)",
    "device.attributes['fabric.example.com'].zone == 'a'",
    "device.allowMultipleAllocations == true",
    "!device.allowMultipleAllocations",
    f"device.driver == 'gpu.nvidia.com' ? {_OWN}.index < 3 : false",
    "false",
)
ATTRIBUTES: Final = ("gpu.nvidia.com/numa", "resource.kubernetes.io/pcieRoot", "gpu.nvidia.com/spare")
TOLERATIONS: Final[tuple[Json, ...]] = (
    {"key": "ecc", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "ecc", "operator": "Equal", "value": "lost", "effect": "NoExecute"},
    {"operator": "Exists"},
)
AMOUNTS: Final[tuple[Json, ...]] = (
    {"shares": "1"},
    {"shares": "2"},
    {"memory": "30Gi"},
    {"memory": "100Gi"},
    {"memory": "1Ti"},
    {"tokens": "1"},
)


def classes() -> list[Json]:
    """DeviceClasses: GPUs, partitions, whatever there is."""
    expressions = {
        "gpu.nvidia.com": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'",
        PARTITIONS: f"device.driver == '{PARTITIONS}'",
        "any.example.com": "true",
    }
    return [
        {
            "apiVersion": RESOURCE,
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
        for name, expression in expressions.items()
    ]


def slices(node: str) -> list[Json]:
    """Eight GPUs, two of them in shares, one tainted; two cards that can be cut in ways that exclude each other."""
    gpus = [_gpu(index) for index in range(8)]
    counters = [{"name": f"card-{card}", "counters": {"slots": {"value": "4"}}} for card in range(2)]
    parts = [_part(card, slots, number) for card in range(2) for slots in (4, 2, 1) for number in range(4 // slots)]
    return [
        _slice(node, "gpu.nvidia.com", 1, "gpus", devices=gpus),
        _slice(node, PARTITIONS, 2, "counters", sharedCounters=counters),
        _slice(node, PARTITIONS, 2, "parts", devices=parts),
    ]


def claims(count: int, seed: int) -> Iterator[Json]:
    """So many claims, always the same ones for a seed."""
    chance = random.Random(seed)
    for number in range(count):
        yield _claim(chance, f"asked-{number}")


def _slice(node: str, driver: str, pool_slices: int, name: str, **content: Any) -> Json:
    spec = {"nodeName": node, "driver": driver, **content}
    pool = {"name": node, "generation": 1, "resourceSliceCount": pool_slices}
    metadata = {"name": f"{node}-{name}"}
    return {"apiVersion": RESOURCE, "kind": "ResourceSlice", "metadata": metadata, "spec": {**spec, "pool": pool}}


def _gpu(index: int) -> Json:
    large, shared = index < 5, index in (3, 6)
    attributes: Json = {
        "type": {"string": "gpu"},
        "index": {"int": index},
        "productName": {"string": "NVIDIA H200" if large else "NVIDIA L40S"},
        "driverVersion": {"version": "580.159.4" if index % 3 else "570.86.15"},
        "numa": {"int": index // 4},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{index // 2:02x}"},
    }
    if index in (1, 4):
        attributes["spare"] = {"bool": index == 1}
    if index in (2, 5):
        attributes["fabric.example.com/zone"] = {"string": "a" if index == 2 else "b"}
    total = "140Gi" if large else "44Gi"
    memory: Json = {"value": total}
    device: Json = {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": memory}}
    if shared:
        memory["requestPolicy"] = {"default": "10Gi", "validRange": {"min": "1Gi", "max": total, "step": "1Gi"}}
        device["capacity"]["shares"] = {
            "value": "4",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "1"}},
        }
        device["allowMultipleAllocations"] = True
    if index == 4:
        device["taints"] = [{"key": "ecc", "value": "lost", "effect": "NoSchedule"}]
    return device


def _part(card: int, slots: int, number: int) -> Json:
    consumes = [{"counterSet": f"card-{card}", "counters": {"slots": {"value": str(slots)}}}]
    attributes = {"slots": {"int": slots}, "card": {"string": f"card-{card}"}}
    return {"name": f"part-{card}-{slots}-{number}", "attributes": attributes, "consumesCounters": consumes}


def _claim(chance: random.Random, name: str) -> Json:
    requests = [_request(chance, f"r{index}") for index in range(chance.choice((1, 1, 1, 2)))]
    constraints = []
    if chance.random() < 0.3:
        kind = chance.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
        constraints.append({kind: chance.choice(ATTRIBUTES)})
    return claim(name, *requests, constraints=constraints)


def _request(chance: random.Random, name: str) -> Json:
    if chance.random() < 0.15:
        options = [{"name": f"option-{number}", **_exactly(chance, plain=True)} for number in range(2)]
        return {"name": name, "firstAvailable": options}
    return {"name": name, "exactly": _exactly(chance)}


def _exactly(chance: random.Random, *, plain: bool = False) -> Json:
    device_class = chance.choice(("gpu.nvidia.com",) * 7 + (PARTITIONS,) * 2 + ("missing.example.com",))
    made: Json = {"deviceClassName": device_class}
    if device_class == PARTITIONS:
        slots = chance.choice((1, 2, 4))
        expression = f"device.attributes['{PARTITIONS}'].slots == {slots}"
        return {**made, "count": chance.choice((1, 1, 2)), "selectors": [{"cel": {"expression": expression}}]}
    if chance.random() < 0.6:
        made["selectors"] = [{"cel": {"expression": chance.choice(SELECTORS)}}]
    if chance.random() < 0.25:
        made["tolerations"] = [chance.choice(TOLERATIONS)]
    if chance.random() < 0.3:
        made["capacity"] = {"requests": chance.choice(AMOUNTS)}
    if not plain and chance.random() < 0.1:
        made["allocationMode"] = "All"
    else:
        made["count"] = chance.choice((1, 1, 1, 2, 3))
    return made
