"""What a Deployment and its pods say of why a daemon does not run yet, in words. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.ports import Json

_LONG: Final = 600
_SHORT: Final = 300
"""Of what goes with other words into one event, which has room for 1,024 bytes."""

_CREATING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_HOPELESS: Final = frozenset({"InvalidImageName"})
_REFUSALS: Final = ("forbidden", "denied the request", "denied request", "is invalid")
"""How a refusal of the API server or an admission is worded, other than one that could not be asked for."""


@dataclass(frozen=True, slots=True)
class Why:
    """What is waited for. final: waiting will not mend it, a person must."""

    words: str
    final: bool = False


def of_deployment(found: Json) -> Why | None:
    """What keeps a Deployment from having its pod made; None when nothing does."""
    for condition in _status(found).get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            message = _cut(condition.get("message"), _LONG) or _cut(condition.get("reason"))
            return Why(f"its pod is refused: {message}", any(word in message for word in _REFUSALS))
    return None


def of_pods(pods: Sequence[Json]) -> Why:
    """What the pods of a daemon wait for."""
    for pod in pods:
        # The ReplicaSet would make one after the other for as long as the kubelet turns them away.
        if _status(pod).get("phase") == "Failed" and not _status(pod).get("containerStatuses"):
            status = _status(pod)
            words = ": ".join(part for part in (_cut(status.get("reason")), _cut(status.get("message"), _LONG)) if part)
            return Why(f"the kubelet refuses its pod {_name(pod)}: {words or 'no reason given'}", final=True)
    newest = max(pods, key=_age_order, default=None)
    if newest is None:
        return Why("it has no pod yet")
    if _metadata(newest).get("deletionTimestamp"):
        return Why(f"its pod {_name(newest)} is being deleted, the next one comes after it")
    return _of_pod(newest)


def _of_pod(pod: Json) -> Why:
    name = _name(pod)
    status: Json = next(iter(_status(pod).get("containerStatuses") or []), {})
    before = _ended((status.get("lastState") or {}).get("terminated"))
    state = status.get("state") or {}
    if "running" in state:
        return Why(_joined([f"its pod {name} runs, and the daemon in it does not serve yet", before]))
    if "terminated" in state:
        return Why(_joined([f"its pod {name} is about to be started again", _ended(state["terminated"]) or before]))
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in _CREATING:
        return Why(f"its pod {name} is being made (kubectl -n {_namespace(pod)} describe pod {name})")
    words = ": ".join(part for part in (reason, _cut(waiting.get("message"))) if part)
    image = _image(pod)
    named = "" if image in words else f" (image {image})"
    return Why(_joined([f"its pod {name} waits: {words}{named}", before]), reason in _HOPELESS)


def _ended(terminated: Json | None) -> str:
    """How a container ended; '' for one that did not."""
    if not terminated:
        return ""
    said = _cut(terminated.get("message"), last=True)
    ended = f"it ended with exit code {terminated.get('exitCode')} ({terminated.get('reason') or 'no reason'})"
    return f"{ended}: {said}" if said else ended


def _joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)


def _cut(text: object, limit: int = _SHORT, *, last: bool = False) -> str:
    """One line of bounded length; last: what is too long loses its beginning, as logs should."""
    line = " ".join(str(text or "").split())
    if len(line) <= limit:
        return line
    return f"...{line[-limit:]}" if last else f"{line[:limit]}..."


def _age_order(pod: Json) -> tuple[bool, str]:
    """Those that stay before those that go, the youngest last."""
    return not _metadata(pod).get("deletionTimestamp"), str(_metadata(pod).get("creationTimestamp"))


def _metadata(found: Json) -> Json:
    return found.get("metadata") or {}


def _status(found: Json) -> Json:
    return found.get("status") or {}


def _name(pod: Json) -> str:
    return str(_metadata(pod).get("name"))


def _namespace(pod: Json) -> str:
    return str(_metadata(pod).get("namespace"))


def _image(pod: Json) -> str:
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image"))
