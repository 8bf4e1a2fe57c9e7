"""Node selectors and taints, as kube-scheduler reads them. Pure functions over API objects.

Rules: ``k8s.io/component-helpers/scheduling/corev1``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]

BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep away what does not tolerate them."""


def matches(selector: Json, node: str, labels: Mapping[str, str]) -> bool:
    """Whether a NodeSelector takes a node: one of its terms has to hold, and an empty term holds for none."""
    return any(_term(term, node, labels) for term in selector.get("nodeSelectorTerms") or [])


def untolerated(taints: Iterable[Json], tolerations: Iterable[Json]) -> list[Json]:
    """Taints of a node or a device that keep away whoever has these tolerations."""
    known = list(tolerations)
    return [
        taint for taint in taints if taint.get("effect") in BLOCKING and not any(_tolerates(t, taint) for t in known)
    ]


def written(taint: Json) -> str:
    """``key=value:effect``."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def _term(term: Json, node: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    names = {"metadata.name": node}
    return all(_holds(e, labels) for e in expressions) and all(_holds(f, names) for f in fields)


def _holds(requirement: Json, labels: Mapping[str, str]) -> bool:
    found, wanted = labels.get(requirement["key"]), requirement.get("values") or []
    match requirement["operator"]:
        case "In":
            return found in wanted
        case "NotIn":
            return found not in wanted
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return _integer(found) is not None and _integer(found) > int(wanted[0])  # type: ignore[operator]
        case "Lt":
            return _integer(found) is not None and _integer(found) < int(wanted[0])  # type: ignore[operator]
        case _:
            return False


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None
