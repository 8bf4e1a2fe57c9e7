"""The URL space of the Kubernetes API: from a path to what it addresses, and discovery documents. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.kinds import KINDS, NAMESPACES, Kind, kind_at
from dra_driver.simulator.statuses import no_such_path

Json = dict[str, Any]

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request is about. An empty name means the collection, an empty namespace all namespaces."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    status: bool = False


def target_of(path: str) -> Target:
    """The type, namespace and name that a path addresses. Raises StatusError 404."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path(path)
    namespace = ""
    if rest[0] == NAMESPACES.plural and len(rest) > 2 and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    kind = kind_at(group, version, rest[0]) if rest else None
    if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
        raise no_such_path(path)
    if len(rest) == 3 and not (rest[2] == "status" and kind.status):
        raise no_such_path(path)
    return Target(kind=kind, namespace=namespace, name=(rest + [""])[1], status=len(rest) == 3)


def document(path: str, git_version: str) -> Json | None:
    """Version and discovery documents, None for any other path."""
    groups = {kind.group: kind.version for kind in KINDS if kind.group}
    if path == "/version":
        major, minor, _ = git_version.removeprefix("v").split(".", 2)
        return {"major": major, "minor": minor, "gitVersion": git_version, "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*g) for g in groups.items()]}
    if path == "/api/v1":
        return _resources("v1", (kind for kind in KINDS if not kind.group))
    for group, version in groups.items():
        if path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, version)}
        if path == f"/apis/{group}/{version}":
            return _resources(f"{group}/{version}", (kind for kind in KINDS if kind.group == group))
    return None


def _group(group: str, version: str) -> Json:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _resources(group_version: str, kinds: Iterable[Kind]) -> Json:
    listed: list[Json] = []
    for kind in kinds:
        entry = {"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced}
        listed.append({**entry, "singularName": kind.kind.lower(), "verbs": _VERBS})
        if kind.status:
            listed.append({**entry, "name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": listed,
    }
