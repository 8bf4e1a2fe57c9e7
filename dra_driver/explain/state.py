"""What an explanation is made from: objects of a cluster at one moment, indexed. Values only."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dra_driver.model.errors import DriverError
from dra_driver.scheduling import consumption
from dra_driver.scheduling.consumption import DeviceId, Usage
from dra_driver.scheduling.shapes import misshapen

Json = dict[str, Any]

KINDS = (
    "DeviceClass",
    "DeviceTaintRule",
    "Namespace",
    "Node",
    "Pod",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
)
"""Kinds that count here; a list of any of them does as well."""


class Misshapen(DriverError):
    """An object is not what Kubernetes has under its kind; the text names the field."""


@dataclass
class State:
    """Objects by kind, in the order they came."""

    objects: dict[str, list[Json]] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Iterable[Json]) -> "State":
        """Of whatever was found; what does not count here is left out. Lists are taken apart. Raises Misshapen."""
        made = cls({kind: [] for kind in KINDS})
        for each in objects:
            kind = str(each.get("kind") or "")
            if kind.endswith("List"):
                items = each.get("items") or []
                if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                    raise Misshapen(f"{kind}: items is no list of objects")
                inner = [{"kind": kind.removesuffix("List"), **item} for item in items]
                for name, found in cls.of(inner).objects.items():
                    made.objects[name] += found
            elif kind in made.objects:
                if wrong := misshapen(kind, each):
                    raise Misshapen(f"{kind} {_name(each)}: {wrong}")
                made.objects[kind].append(each)
        return made

    def all(self, kind: str) -> list[Json]:
        """All objects of a kind."""
        return self.objects.get(kind, [])

    def find(self, kind: str, name: str, namespace: str | None = None) -> Json | None:
        """One object by name; None where there is none."""
        for each in self.all(kind):
            if each["metadata"].get("name") == name and namespace in (None, namespace_of(each)):
                return each
        return None

    @cached_property
    def classes(self) -> dict[str, Json]:
        """DeviceClasses by name."""
        return {each["metadata"]["name"]: each for each in self.all("DeviceClass")}

    @cached_property
    def slices(self) -> list[Json]:
        """ResourceSlices, with the taints that DeviceTaintRules put on their devices."""
        rules = [each["spec"] for each in self.all("DeviceTaintRule")]
        return [_tainted(each, rules) for each in self.all("ResourceSlice")]

    @cached_property
    def usage(self) -> Usage:
        """What allocated claims hold."""
        return Usage.of(self.all("ResourceClaim"))

    @cached_property
    def holders(self) -> dict[DeviceId, list[Json]]:
        """Claims by the devices they hold."""
        found: dict[DeviceId, list[Json]] = {}
        for claim in self.all("ResourceClaim"):
            for result in consumption.results(claim):
                if not result.get("adminAccess"):
                    device = (result["driver"], result["pool"], result["device"])
                    found.setdefault(device, []).append(claim)
        return found


def _name(each: Json) -> str:
    metadata = each.get("metadata")
    return str(metadata.get("name", "without a name") if isinstance(metadata, dict) else "without metadata")


def namespace_of(each: Json) -> str:
    """The namespace of an object; files may leave it out."""
    return str(each["metadata"].get("namespace") or "default")


def full_name(each: Json) -> str:
    """``namespace/name``."""
    return f"{namespace_of(each)}/{each['metadata'].get('name') or each['metadata'].get('generateName', '')}"


def _tainted(resource_slice: Json, rules: list[Json]) -> Json:
    spec = resource_slice["spec"]
    devices = []
    for device in spec.get("devices") or []:
        added = [rule["taint"] for rule in rules if _concerns(rule.get("deviceSelector") or {}, spec, device)]
        devices.append({**device, "taints": [*(device.get("taints") or []), *added]} if added else device)
    return {**resource_slice, "spec": {**spec, "devices": devices}}


def _concerns(selector: Json, spec: Json, device: Json) -> bool:
    facts = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
    return all(selector.get(name) in (None, fact) for name, fact in facts.items())
