"""How the API server treats one object: filling in, merging, naming. No storage here."""

import json
import random
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from dra_driver.simulator.kinds import PODS, Kind
from dra_driver.simulator.statuses import bad_request, invalid

Json = dict[str, Any]

SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
"""Metadata that a client cannot write."""

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_MAX_GENERATED_PREFIX = 58


def now() -> str:
    """The time as objects carry it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def normal(kind: Kind, obj: Json, namespace: str) -> Json:
    """A private copy with kind, version and namespace filled in."""
    new: Json = json.loads(json.dumps(obj))
    for key, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if new.setdefault(key, wanted) != wanted:
            raise bad_request(f"{key} of the object is {new[key]!r}, but this is the path of {wanted!r}")
    metadata = new.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request(f"metadata is {metadata!r}, not an object")
    if kind.namespaced:
        wanted = namespace or metadata.get("namespace") or "default"
        if metadata.setdefault("namespace", wanted) != wanted:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    else:
        metadata.pop("namespace", None)
    return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata} | new


def generated_name(kind: Kind, metadata: Json) -> str:
    """A name from ``generateName``, its prefix cut to the server's limit. Raises StatusError 422."""
    prefix = metadata.get("generateName")
    if not prefix:
        raise invalid(kind, "", ["metadata.name: Required value: name or generateName is required"])
    letters = "".join(random.choices(_NAME_LETTERS, k=5))  # noqa: S311 - a name, not a secret
    return f"{prefix[:_MAX_GENERATED_PREFIX]}{letters}"


def merge_parts(kind: Kind, new: Json, old: Json, status: bool) -> Json:
    """What an update may touch: everything but the status, or with ``status`` nothing but it."""
    if status:
        kept = deepcopy(old)
        kept["status"] = new.get("status") or {}
        return kept
    if kind.status:
        new.pop("status", None)
        if "status" in old:
            new["status"] = deepcopy(old["status"])
    for key in SERVER_OWNED:
        new["metadata"].pop(key, None)
        if key in old["metadata"]:
            new["metadata"][key] = old["metadata"][key]
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
    return new


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386); changes and returns ``target``."""
    if not isinstance(patch, dict):
        return patch
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def held(kind: Kind, content: Json, grace_seconds: int | None) -> bool:
    """Whether an object outlives its deletion: finalizers, or a pod whose containers may still run."""
    if content["metadata"].get("finalizers"):
        return True
    if kind is not PODS or grace_seconds == 0:
        return False
    over = (content.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return bool((content.get("spec") or {}).get("nodeName")) and not over


def finished(content: Json) -> bool:
    """Whether an object that is being deleted has nothing left that holds it."""
    metadata = content["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")
