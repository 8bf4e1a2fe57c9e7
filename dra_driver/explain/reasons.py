"""Why a device does not serve a request, in words for people, and what would help."""

import re
from dataclasses import dataclass

from dra_driver.explain.state import Json, State, full_name
from dra_driver.scheduling import consumption, node_terms
from dra_driver.scheduling.consumption import Amounts, number
from dra_driver.scheduling.fitting import Kind, Obstacle
from dra_driver.scheduling.pools import Candidate
from dra_driver.scheduling.requests import Request
from dra_driver.scheduling.selectors import SelectorError, attribute

_SHOWN = 3
_MENTIONED = re.compile(
    r"""device\.(attributes|capacity)\s*\[\s*(['"])(?P<domain>.+?)\2\s*\]\s*\.\??\s*(?P<name>\w+)"""
)


@dataclass(frozen=True, slots=True)
class Reason:
    """text: what is in the way; help: what would change it, '' where nothing here would."""

    kind: Kind
    text: str
    help: str


def reason(state: State, request: Request, candidate: Candidate, obstacle: Obstacle) -> Reason:
    """An obstacle in words."""
    if obstacle.selector is not None:
        facts = _facts(candidate, obstacle.selector.expression)
        text = f"{obstacle.selector.source} wants {_one_line(obstacle.selector.expression)}{facts}"
        return Reason(obstacle.kind, text, "")
    if obstacle.kind is Kind.TAINT:
        return Reason(obstacle.kind, f"tainted {obstacle.text}", _toleration(request, candidate))
    if obstacle.kind is Kind.IN_USE:
        text = f"held by {_holders(state, candidate)}"
        return Reason(obstacle.kind, text, "end a pod that holds it, or offer GPUs in shares (docs/sharing.md)")
    if obstacle.kind is Kind.COUNTER:
        text = f"its GPU has no room beside what is in use: {obstacle.text}"
        return Reason(obstacle.kind, text, "end pods that use other partitions of this GPU")
    return _capacity(state, request, candidate, state.usage.consumed.get(candidate.id, {}))


def failed(error: SelectorError) -> Reason:
    """A selector that gives no answer for a device: the scheduler then gives the claim nothing on its node."""
    helps = "a selector that fails on one device fails the whole claim: let it ask has(...) first"
    return Reason(Kind.SELECTOR, str(error), helps if "fails on device" in str(error) else "")


def _capacity(state: State, request: Request, candidate: Candidate, used: Amounts) -> Reason:
    capacity = candidate.device.get("capacity") or {}
    missing = sorted(request.capacity.keys() - capacity.keys())
    if missing:
        has = ", ".join(sorted(capacity)) or "none"
        text = f"has no capacity {', '.join(missing)} (it has: {has})"
        return Reason(Kind.CAPACITY, text, f"let request {request.name} ask for one of its capacities, or for none")
    shared = consumption.is_shared(candidate.device)
    for name, entry in capacity.items():
        wanted = consumption.asked(entry, request.capacity.get(name))
        if not consumption.allowed(wanted, entry.get("requestPolicy") or {}):
            text = f"gives no {_text(wanted)} of {name} to one request: {_policy(entry['requestPolicy'])}"
            return Reason(Kind.CAPACITY, text, f"let request {request.name} ask for what it gives")
        left = number(entry["value"]) - used.get(name, 0)
        if wanted > left:
            held = f", held by {_holders(state, candidate)}" if shared and used.get(name) else ""
            text = f"has {_text(left)} of {_text(number(entry['value']))} {name} left, {_text(wanted)} needed{held}"
            less = "ask for less" if name in request.capacity else "offer more shares (docs/sharing.md)"
            helps = f"end a pod that has a share of it, or {less}" if held else less
            return Reason(Kind.CAPACITY, text, helps)
    return Reason(Kind.CAPACITY, "has not the capacity", "")


def _policy(policy: Json) -> str:
    if policy.get("validValues"):
        return f"one of {', '.join(policy['validValues'])}"
    limits = policy.get("validRange") or {}
    step = f" in steps of {limits['step']}" if "step" in limits else ""
    return f"{limits.get('min', '0')} to {limits.get('max', 'all')}{step}"


def _toleration(request: Request, candidate: Candidate) -> str:
    taint = node_terms.untolerated(candidate.device.get("taints") or (), request.tolerations)[0]
    value = f", value: {taint['value']}" if taint.get("value") else ""
    operator = "Equal" if value else "Exists"
    return (
        f"where the pod can live with it, give request {request.name} the toleration "
        f"{{key: {taint['key']}, operator: {operator}{value}, effect: {taint['effect']}}}"
    )


def _holders(state: State, candidate: Candidate) -> str:
    claims = list({full_name(claim): claim for claim in state.holders.get(candidate.id, [])}.items())
    named = [f"claim {name}{_pods(claim)}" for name, claim in claims[:_SHOWN]]
    more = f" and {len(claims) - _SHOWN} more" if len(claims) > _SHOWN else ""
    return ", ".join(named) + more if named else "this claim's other requests"


def _pods(claim: Json) -> str:
    pods = [str(each["name"]) for each in (claim.get("status") or {}).get("reservedFor") or []]
    if not pods:
        return ", which no pod uses" if claim.get("status") else ""
    return f" (pod{'s' if len(pods) > 1 else ''} {', '.join(pods[:_SHOWN])}{', ...' if len(pods) > _SHOWN else ''})"


def _facts(candidate: Candidate, expression: str) -> str:
    """What the device has of what an expression mentions."""
    found: dict[str, str] = {}
    for mentioned in _MENTIONED.finditer(expression):
        name = mentioned["name"]
        if mentioned[1] == "capacity":
            entry = (candidate.device.get("capacity") or {}).get(name)
            value = entry["value"] if entry else None
        else:
            value = attribute(candidate.driver, candidate.device, f"{mentioned['domain']}/{name}")
        found[name] = "missing" if value is None else str(value)
    if "allowMultipleAllocations" in expression:
        found["allowMultipleAllocations"] = str(consumption.is_shared(candidate.device)).lower()
    if not found:
        return ""
    return f"; here {', '.join(f'{name} is {value}' for name, value in found.items())}"


def _text(amount: object) -> str:
    value = number(str(amount)) if not hasattr(amount, "denominator") else amount
    for suffix, unit in (("Gi", 1024**3), ("Mi", 1024**2)):
        if value and value % unit == 0:  # type: ignore[operator]
            return f"{value // unit}{suffix}"  # type: ignore[operator]
    return str(value)


def _one_line(expression: str) -> str:
    return " ".join(expression.split())
