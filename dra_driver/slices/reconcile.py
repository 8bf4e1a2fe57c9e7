"""What must change in the API server so that it holds the wanted slices. Pure: objects in, changes out.

Rules of generation, count and naming are those of Kubernetes' own ResourceSlice controller
(k8s.io/dynamic-resource-allocation/resourceslice), so that slices of either are taken over without a write.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from dra_driver.ports import Json
from dra_driver.slices.build import PoolSlice, slice_objects
from dra_driver_api.quantity import Quantity

_INDEX = re.compile(r"([0-9a-f]{5,})-")

_GATES = {
    "taints": "DRADeviceTaints",
    "sharedCounters": "DRAPartitionableDevices",
    "consumesCounters": "DRAPartitionableDevices",
    "perDeviceNodeSelection": "DRAPartitionableDevices",
    "allowMultipleAllocations": "DRAConsumableCapacity",
    "requestPolicy": "DRAConsumableCapacity",
    "bindsToNode": "DRADeviceBindingConditions",
    "bindingConditions": "DRADeviceBindingConditions",
    "bindingFailureConditions": "DRADeviceBindingConditions",
    "strings": "DRAListTypeAttributes",
    "ints": "DRAListTypeAttributes",
    "bools": "DRAListTypeAttributes",
    "versions": "DRAListTypeAttributes",
}
"""Fields that an API server drops without a word while the feature gate is off there."""

_QUANTITY_FIELDS = frozenset({"value", "default", "min", "max", "step", "validValues"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What the node's pool shall hold, and who owns it."""

    node_name: str
    node_uid: str
    slices: tuple[PoolSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Writes in the order in which they must be made: deletes, replacements, creations."""

    delete: tuple[Json, ...] = ()
    replace: tuple[Json, ...] = ()
    create: tuple[Json, ...] = ()
    generation: int = 0

    def __bool__(self) -> bool:
        return bool(self.delete or self.replace or self.create)


@dataclass(slots=True)
class Answers:
    """What the API server made of objects that we wrote: wanted spec next to stored spec, by slice UID.

    It may drop fields or fill in ones that we do not know; such a slice is as equal as it gets, and writing
    it again would never end.
    """

    _by_uid: dict[str, tuple[Json, Json]] = field(default_factory=dict)

    def keep(self, wanted: Json, stored: Json) -> None:
        """Remember an answer to a create or a replacement."""
        self._by_uid[_uid(stored)] = (wanted["spec"], stored.get("spec", {}))

    def settled(self, wanted: Json, stored: Json) -> bool:
        """Whether ``stored`` is just what this API server makes of ``wanted``."""
        known = self._by_uid.get(_uid(stored))
        return known is not None and known[1] == stored.get("spec", {}) and _same(wanted["spec"], known[0])

    def retain(self, stored: Iterable[Json]) -> None:
        """Forget slices that are gone."""
        alive = {_uid(item) for item in stored}
        self._by_uid = {uid: answer for uid, answer in self._by_uid.items() if uid in alive}


def plan(pool: Pool, stored: Sequence[Json], answers: Answers, least_generation: int = 0) -> Changes:
    """Compare and decide. ``least_generation``: the highest one that this process has written.

    The generation stays when nothing is created and one slice at most is replaced, else it goes up and every
    slice is written with it: consumers ignore a pool until its slices of one generation are complete.
    """
    current, obsolete = _sort(pool, stored)
    highest = max([least_generation, *(_generation(item) for item in stored)])
    generation = max([least_generation, *(_generation(item) for item in current.values())])
    wanted = slice_objects(pool.slices, pool.node_name, pool.node_uid, generation)
    missing = [index for index in range(len(wanted)) if index not in current]
    changed = [i for i, item in current.items() if not _equal(wanted[i], item, answers)]
    if missing or len(changed) > 1:
        generation = highest + 1
        wanted = slice_objects(pool.slices, pool.node_name, pool.node_uid, generation)
        changed = sorted(current)
    return Changes(
        delete=tuple(obsolete),
        replace=tuple(_replacement(wanted[index], current[index]) for index in sorted(changed)),
        create=tuple(wanted[index] for index in missing),
        generation=generation,
    )


def dropped_gates(wanted: Json, stored: Json) -> dict[str, str]:
    """Fields of ``wanted`` that are not in ``stored``: field name -> feature gate of the API server."""
    lost = _fields(wanted.get("spec")) - _fields(stored.get("spec"))
    return {name: gate for name, gate in _GATES.items() if name in lost}


def _sort(pool: Pool, stored: Sequence[Json]) -> tuple[dict[int, Json], list[Json]]:
    """Current slices by index, and obsolete ones: old generation, other pool, unusable or double index."""
    ours = [item for item in stored if _pool(item).get("name") == pool.node_name]
    newest = max((_generation(item) for item in ours), default=0)
    current: dict[int, Json] = {}
    obsolete = []
    for item in sorted(stored, key=lambda item: str(item["metadata"].get("name", ""))):
        index = _index(item)
        newest_of_pool = _pool(item).get("name") == pool.node_name and _generation(item) == newest
        if newest_of_pool and index < len(pool.slices) and index not in current:
            current[index] = item
        else:
            obsolete.append(item)
    return current, obsolete


def _index(item: Json) -> int:
    """The index in a slice's name; far too large when there is none."""
    found = _INDEX.match(str(item["metadata"].get("name", "")))
    return int(found[1], 16) if found else sys.maxsize


def _pool(item: Json) -> Json:
    pool = item.get("spec", {}).get("pool")
    return pool if isinstance(pool, dict) else {}


def _generation(item: Json) -> int:
    generation = _pool(item).get("generation", 0)
    return generation if isinstance(generation, int) else 0


def _uid(item: Json) -> str:
    return str(item["metadata"].get("uid", ""))


def _equal(wanted: Json, stored: Json, answers: Answers) -> bool:
    owned = stored["metadata"].get("ownerReferences") or []
    if not _same(wanted["metadata"]["ownerReferences"], owned):
        return False
    return answers.settled(wanted, stored) or _same(wanted["spec"], stored.get("spec", {}))


def _same(wanted: object, stored: object, key: str = "") -> bool:
    """Equal as the API means it: empty is absent, quantities by value, a server's ``timeAdded`` is fine."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        left, right = _present(wanted), _present(stored)
        if "timeAdded" not in left and "effect" in left:
            right.pop("timeAdded", None)
        return left.keys() == right.keys() and all(_same(left[name], right[name], name) for name in left)
    if isinstance(wanted, list | tuple) and isinstance(stored, list | tuple):
        return len(wanted) == len(stored) and all(
            _same(left, right, key) for left, right in zip(wanted, stored, strict=True)
        )
    if key in _QUANTITY_FIELDS and wanted != stored:
        return _same_quantity(str(wanted), str(stored))
    return wanted == stored and isinstance(wanted, bool) == isinstance(stored, bool)


def _same_quantity(wanted: str, stored: str) -> bool:
    try:
        return Quantity.parse(wanted) == Quantity.parse(stored)
    except ValueError:
        return False


def _present(value: Mapping[str, object]) -> dict[str, object]:
    """Without what JSON leaves out when it is empty. A false or zero or empty text is a value."""
    return {name: item for name, item in value.items() if item is not None and item not in ([], {}, ())}


def _replacement(wanted: Json, stored: Json) -> Json:
    """What to PUT: the stored object's identity and labels, our owner and spec, its taints' times."""
    metadata = {name: value for name, value in stored["metadata"].items() if name != "managedFields"}
    metadata["ownerReferences"] = wanted["metadata"]["ownerReferences"]
    spec = deepcopy(wanted["spec"])
    times = {
        (device["name"], taint.get("key"), taint.get("value"), taint.get("effect")): taint["timeAdded"]
        for device in stored.get("spec", {}).get("devices") or []
        for taint in device.get("taints") or []
        if "timeAdded" in taint
    }
    for device in spec["devices"]:
        for taint in device.get("taints", ()):
            known = times.get((device["name"], taint.get("key"), taint.get("value"), taint.get("effect")))
            if known is not None:
                taint.setdefault("timeAdded", known)
    return {**wanted, "metadata": metadata, "spec": spec}


def _fields(value: object) -> set[str]:
    """Names of all fields anywhere in a JSON value that hold something."""
    return set(_walk(value))


def _walk(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in _present(value).items():
            yield name
            yield from _walk(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _walk(item)
