"""From the devices of a node to the ResourceSlices of its pool. Pure: equal inventories give equal slices.

Attribute and capacity names and types are upstream's (dra-driver-nvidia-gpu), because users select on them in
CEL. Here and nowhere else is decided what the cluster is told about a device.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from dra_driver.model.devices import Device, DriverInfo, Gpu, MigDevice
from dra_driver.ports import Json
from dra_driver.sharing.memory_limits import ATTRIBUTE
from dra_driver.sharing.shares import WHOLE, ConsumableShares, consumable
from dra_driver.slices import values
from dra_driver_api import names

DEVICES_PER_SLICE = 128
"""Most devices a slice may hold."""

DEVICES_PER_SLICE_WITH_EXTRAS = 64
"""Most devices a slice may hold when any of them has taints, consumed counters or list attributes."""

FACTS_PER_DEVICE = 32
"""Most attributes and capacities of one device, counted together."""

GENERATE_NAME_LIMIT = 58
"""Where the API server cuts ``generateName`` before it adds five random characters."""

PCI_BUS_ID = f"{names.STANDARD_ATTRIBUTE_DOMAIN}/pciBusID"
PCIE_ROOT = f"{names.STANDARD_ATTRIBUTE_DOMAIN}/pcieRoot"
NUMA_NODE = f"{names.STANDARD_ATTRIBUTE_DOMAIN}/numaNode"

SHARED_FIELD = "allowMultipleAllocations"
"""Says of a device that several claims may have it."""

_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LIST_KINDS = ("strings", "ints", "bools", "versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSlice:
    """One slice of the node's pool.

    devices: ``spec.devices`` entries as JSON, in the order in which the scheduler shall try them.
    notes: what had to be left out and why, one line each, for the log.
    """

    devices: tuple[Json, ...] = ()
    notes: tuple[str, ...] = ()


def build_slices(
    devices: Iterable[Device],
    driver: DriverInfo,
    node_name: str,
    sharing: Mapping[str, ConsumableShares] | None = None,
) -> tuple[PoolSlice, ...]:
    """Slices that hold all devices, sorted by minor, then MIG placement; one empty slice for an empty node.

    sharing: device name -> how it is shared; a device that is not in it is whole. What the API server would refuse is
    left out and noted: an attribute, or a device whose name is taken or no DNS label. Odd facts raise nothing.
    """
    notes: list[str] = []
    known = sharing or {}
    entries = [
        _entry(device, driver, known.get(device.name, WHOLE), notes)
        for device in _publishable(sorted(devices, key=_order), node_name, notes)
    ]
    size = devices_per_slice(entries)
    chunks = [entries[start : start + size] for start in range(0, len(entries), size)] or [[]]
    return tuple(
        PoolSlice(devices=tuple(chunk), notes=tuple(notes) if number == 0 else ())
        for number, chunk in enumerate(chunks)
    )


def slice_objects(pool_slices: Iterable[PoolSlice], node_name: str, node_uid: str, generation: int) -> list[Json]:
    """ResourceSlice objects ready to be created, one a slice, owned by the Node."""
    slices = list(pool_slices)
    return [
        {
            "apiVersion": names.RESOURCE_API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {
                "generateName": name_prefix(index, node_name),
                "ownerReferences": [owner_reference(node_name, node_uid)],
            },
            "spec": {
                "driver": names.DRIVER_NAME,
                "nodeName": node_name,
                "pool": {
                    "name": node_name,
                    "generation": generation,
                    "resourceSliceCount": len(slices),
                },
                "devices": list(pool_slice.devices),
            },
        }
        for index, pool_slice in enumerate(slices)
    ]


def name_prefix(index: int, node_name: str) -> str:
    """``generateName`` of a slice: the index comes first because the scheduler walks slices in name order."""
    return f"{index:05x}-{names.DRIVER_NAME}-{node_name}-"[:GENERATE_NAME_LIMIT]


def owner_reference(node_name: str, node_uid: str) -> Json:
    """The Node as owner: slices go when the Node goes."""
    return {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}


def devices_per_slice(entries: Iterable[Json]) -> int:
    """How many of these devices one slice may hold."""
    heavy = any(
        entry.get("taints")
        or entry.get("consumesCounters")
        or any(kind in value for value in entry["attributes"].values() for kind in _LIST_KINDS)
        for entry in entries
    )
    return DEVICES_PER_SLICE_WITH_EXTRAS if heavy else DEVICES_PER_SLICE


def _order(device: Device) -> tuple[int, int, int, int, int, str]:
    """Sort key: gpu-2 before gpu-10, a card before its MIG devices, these by placement."""
    match device:
        case Gpu():
            return (device.minor, 0, 0, 0, 0, device.uuid)
        case MigDevice():
            placed = (device.placement_start, device.placement_size, device.profile_id)
            return (device.parent.minor, 1, *placed, device.uuid)
        case _:
            assert_never(device)


def _publishable(devices: Iterable[Device], node_name: str, notes: list[str]) -> Iterator[Device]:
    """The devices that can be published at all."""
    taken: set[str] = set()
    for device in devices:
        if device.name in taken or not _DNS_LABEL.fullmatch(device.name):
            reason = "its name is taken" if device.name in taken else "its name is not a DNS label"
            notes.append(f"node {node_name}: device {device.name} ({device.uuid}) left out: {reason}")
            continue
        taken.add(device.name)
        yield device


def _entry(device: Device, driver: DriverInfo, shares: ConsumableShares, notes: list[str]) -> Json:
    """One ``spec.devices`` entry."""

    def leave_out(what: str, why: str) -> None:
        notes.append(f"device {device.name}: {what} left out: {why}")

    attributes: dict[str, Json] = {}
    for name, kind, value in (*_attributes(device, driver), *_shared_attributes(device, shares)):
        accepted = _CONVERSIONS[kind](value)
        if accepted is not None:
            attributes[name] = {kind: accepted}
        elif value is not None:
            leave_out(f"attribute {name}", f"{value!r:.80} is not a valid {kind}")
    capacity: dict[str, Json] = {}
    room = FACTS_PER_DEVICE - len(attributes) - bool(shares.count)
    for name, amount in islice(_capacities(device), 2 * FACTS_PER_DEVICE):
        number = values.quantity(amount)
        if number is None:
            leave_out(f"capacity {name}", f"{amount!r:.80} is not a valid quantity")
        elif len(capacity) == room:
            leave_out(f"capacity {name}", f"more than {FACTS_PER_DEVICE} attributes and capacities")
        else:
            capacity[name] = {"value": number}
    entry: Json = {"name": device.name, "attributes": attributes}
    if shares.shared:
        entry[SHARED_FIELD] = True
        capacity, note = consumable(capacity, shares, device.memory_bytes)
        if note:
            notes.append(f"device {device.name}: {note}, any number of claims can have it up to --max-clients-per-gpu")
    return entry | {"capacity": capacity} if capacity else entry


_CONVERSIONS = {"string": values.string, "version": values.version, "int": values.integer}


def _attributes(device: Device, driver: DriverInfo) -> Iterator[tuple[str, str, object]]:
    """(name, kind of value, value) of all attributes; None where the fact is not known."""
    match device:
        case Gpu():
            yield "type", "string", names.TYPE_GPU
            yield "uuid", "string", device.uuid
        case MigDevice():
            yield "type", "string", names.TYPE_MIG
            yield "uuid", "string", device.uuid
            yield "parentUUID", "string", device.parent.uuid
            yield "profile", "string", device.profile
        case _:
            assert_never(device)
    card = device.physical
    yield "productName", "string", card.product_name
    yield "brand", "string", card.brand
    yield "architecture", "string", card.architecture
    yield "cudaComputeCapability", "version", card.cuda_compute_capability
    yield "driverVersion", "version", driver.driver_version
    yield "cudaDriverVersion", "version", _cuda_version(driver.cuda_driver_version)
    yield "addressingMode", "string", card.addressing_mode
    yield PCI_BUS_ID, "string", card.pci_bus_id
    yield PCIE_ROOT, "string", card.pcie_root
    # A negative node is the kernel's way to say that it knows none.
    known_node = card.numa_node is not None and card.numa_node >= 0
    yield NUMA_NODE, "int", card.numa_node if known_node else None


def _shared_attributes(device: Device, shares: ConsumableShares) -> Iterator[tuple[str, str, object]]:
    """As ``_attributes``; what matters only while several claims may have the device. MIG limits memory in hardware."""
    if shares.shared and isinstance(device, Gpu):
        yield ATTRIBUTE, "string", device.memory_limits and device.memory_limits.value


def _capacities(device: Device) -> Iterator[tuple[str, object]]:
    """(name, amount) of all capacities; memory in bytes."""
    match device:
        case Gpu():
            if device.memory_bytes is not None:
                yield "memory", device.memory_bytes
        case MigDevice():
            yield "memory", device.memory_bytes
            yield "multiprocessors", device.multiprocessors
            yield "copyEngines", device.copy_engines
            yield "decoders", device.decoders
            yield "encoders", device.encoders
            yield "jpegEngines", device.jpeg_engines
            yield "ofaEngines", device.ofa_engines
            start = device.placement_start
            for position in range(start, start + device.placement_size):
                yield f"memorySlice{position}", 1
        case _:
            assert_never(device)


def _cuda_version(number: int | None) -> str | None:
    """NVML's 1000 * major + 10 * minor as ``major.minor``."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"
