"""Explanations as text and as JSON."""

from collections.abc import Iterator

from dra_driver.explain.answers import Answer, NodeAnswer
from dra_driver.explain.state import Json
from dra_driver.explain.verdicts import DeviceAnswer, RequestAnswer

_DEVICES_SHOWN = 6


def lines(answer: Answer) -> Iterator[str]:
    """For people: the verdict first, then node by node."""
    yield f"{answer.question.title}: {_verdict(answer)}"
    yield from (f"  note: {text}" for text in answer.incomplete)
    yield from (f"  {text}" for text in answer.problems)
    for result in answer.results:
        yield f"  request {result['request']} has {_result(result)}"
    for node in answer.nodes:
        yield from _node(node, bool(answer.results))


def as_json(answer: Answer) -> Json:
    """The same for programs."""
    return {
        "subject": answer.question.title,
        "fits": answer.fits,
        "allocated": list(answer.results),
        "problems": [*answer.problems, *answer.incomplete],
        "nodes": [
            {
                "node": node.node,
                "fits": node.fits,
                "problem": node.problem or None,
                "would_get": [{key: result[key] for key in _WOULD_GET if key in result} for result in node.chosen],
                "requests": [_request_json(request) for request in node.requests],
            }
            for node in answer.nodes
        ],
    }


_WOULD_GET = ("request", "driver", "pool", "device", "consumedCapacity", "adminAccess")


def _request_json(request: RequestAnswer) -> Json:
    return {
        "request": request.name,
        "deviceClassName": request.device_class,
        "wanted": request.wanted,
        "devices": [
            {
                "driver": each.driver,
                "pool": each.pool,
                "device": each.device,
                "fits": each.reason is None,
                "obstacle": each.reason.kind.value if each.reason else None,
                "reason": each.reason.text if each.reason else None,
                "help": (each.reason.help or None) if each.reason else None,
            }
            for each in request.devices
        ],
    }


def _verdict(answer: Answer) -> str:
    if answer.results:
        return "allocated"
    if answer.problems:
        return "can be served nowhere"
    fitting = [node.node for node in answer.nodes if node.fits]
    if fitting:
        return f"fits on {', '.join(fitting)}"
    return f"fits on none of {len(answer.nodes)} nodes with devices" if answer.nodes else "no node has devices"


def _result(result: Json) -> str:
    # A claim that asks for no memory of a GPU in shares holds 0 of it, which tells nobody anything.
    amounts = {name: amount for name, amount in (result.get("consumedCapacity") or {}).items() if amount != "0"}
    consumed = ", ".join(f"{name} {amount}" for name, amount in amounts.items())
    share = f", a share of it: {consumed}" if consumed else ""
    admin = ", with admin access, which holds nothing" if result.get("adminAccess") else ""
    return f"device {result['device']} of pool {result['pool']} ({result['driver']}){share}{admin}"


def _node(node: NodeAnswer, allocated: bool) -> Iterator[str]:
    if allocated:
        yield f"  node {node.node}, as it is now:"
        for request in node.requests:
            yield f"    request {request.name} ({request.device_class}) selects {_names(request.selected)}"
        return
    if node.fits:
        yield f"  node {node.node}: fits, would get {', '.join(str(result['device']) for result in node.chosen)}"
    else:
        yield f"  node {node.node}: {node.problem}"
    for request in node.requests:
        if not node.fits or len(request.fitting) < len(request.selected):
            yield from _request(request)


def _request(request: RequestAnswer) -> Iterator[str]:
    count = "device" if request.wanted == "1" else "devices"
    wants = f"wants {request.wanted} {count}, can have {_names(request.fitting)}"
    yield f"    request {request.name} ({request.device_class}) {wants}"
    grouped: dict[tuple[str, str], list[DeviceAnswer]] = {}
    for device in request.devices:
        if device.reason is not None:
            grouped.setdefault((device.reason.text, device.reason.help), []).append(device)
    for (text, helps), devices in grouped.items():
        yield f"      {_names(devices)}: {text}"
        if helps:
            yield f"        -> {helps}"


def _names(devices: list[DeviceAnswer]) -> str:
    names = [each.device for each in devices]
    if not names:
        return "none"
    more = f" and {len(names) - _DEVICES_SHOWN} more" if len(names) > _DEVICES_SHOWN else ""
    return ", ".join(names[:_DEVICES_SHOWN]) + more
