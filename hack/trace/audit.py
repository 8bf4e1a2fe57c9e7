"""What the API server was asked, by its audit log: the policy, and events from its lines. Pure."""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from dra_driver_api.names import RESOURCE_API_GROUP
from hack.cluster import objects
from hack.trace.events import Event

Json = dict[str, Any]

FAILED: Final = "FailedPrepareDynamicResources"

_DRIVER: Final = f"system:serviceaccount:{objects.DRIVER_NAMESPACE}:{objects.DRIVER_ACCOUNT}"
_SCHEDULER: Final = "system:kube-scheduler"
_CONTROLLER: Final = "system:serviceaccount:kube-system:resource-claim-controller"
_KUBELETS: Final = "system:nodes"
_KUBELET: Final = "system:node:"
_DRA: Final = [{"group": RESOURCE_API_GROUP, "resources": ["resourceclaims", "resourceclaims/*", "resourceslices"]}]
_WRITES: Final = ["create", "update", "patch", "delete", "deletecollection"]
_WHO: Final = {_DRIVER: "driver", _SCHEDULER: "scheduler", _CONTROLLER: "controller"}

POLICY: Final[Json] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "users": [_DRIVER]},
        {"level": "None", "verbs": ["watch"]},
        {"level": "Metadata", "userGroups": [_KUBELETS], "resources": _DRA},
        {"level": "Metadata", "users": [_SCHEDULER, _CONTROLLER], "verbs": _WRITES, "resources": _DRA},
        {"level": "Request", "userGroups": [_KUBELETS], "resources": [{"group": "", "resources": ["events"]}]},
        {"level": "None"},
    ],
}
"""All that the driver asks; of others what concerns claims and slices; the kubelet's events with their texts."""


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Of the lines of an audit log; a watch when it opens. Raises ValueError for a line that is none."""
    for line in lines:
        entry: Json = json.loads(line)
        if _is_told(entry):
            yield _event(entry)


def _is_told(entry: Json) -> bool:
    if entry["verb"] == "watch":
        return bool(entry["stage"] == "ResponseStarted")
    if entry["stage"] != "ResponseComplete":
        return False
    resource = (entry.get("objectRef") or {}).get("resource")
    return entry["user"]["username"] == _DRIVER or resource != "events" or _reason(entry) == FAILED


def _event(entry: Json) -> Event:
    began, ended = _seconds(entry["requestReceivedTimestamp"]), _seconds(entry["stageTimestamp"])
    status = entry.get("responseStatus") or {}
    answer = str(status.get("code", "?"))
    if status.get("message"):
        answer += f" {status['message']}"
    took = None if entry["verb"] == "watch" else round((ended - began) * 1000, 2)
    return Event(at=began, who=f"{_who(entry)} -> API server", what=_what(entry), answer=answer, ms=took)


def _what(entry: Json) -> str:
    reference, url = entry.get("objectRef") or {}, urlsplit(entry["requestURI"])
    names = [reference.get(part) for part in ("namespace", "name", "subresource")]
    where = "/".join([reference.get("resource", url.path), *filter(None, names)])
    query = parse_qs(url.query)
    asked = [f"{name}={query[name][0]}" for name in ("fieldSelector", "resourceVersion") if name in query]
    words = [entry["verb"], where, *asked]
    if reference.get("resource") == "events" and entry.get("requestObject"):
        words += [f"{_reason(entry)}: {entry['requestObject'].get('message') or entry['requestObject'].get('note')}"]
    return " ".join(words)


def _who(entry: Json) -> str:
    user: str = entry["user"]["username"]
    return "kubelet" if user.startswith(_KUBELET) else _WHO.get(user, user)


def _reason(entry: Json) -> str:
    return str((entry.get("requestObject") or {}).get("reason", ""))


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
