"""What was recorded, as values, lines of JSON and lines for people. Pure.

Messages of the kubelet's protocols are decoded by their methods' descriptors; what has none is told by its size.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import yaml
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError

from dra_driver_api.kubelet import dra_pb2, health_pb2, registration_pb2

CALL: Final = "kubelet -> driver"
ANSWER: Final = "driver -> kubelet"
DRIVER: Final = "driver"
DISK: Final = "driver -> disk"

_METHODS: Final[dict[str, MethodDescriptor]] = {
    f"/{service.full_name}/{method.name}": method
    for file in (registration_pb2, dra_pb2, health_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_UID: Final = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TOLD_AT: Final = re.compile(r"last_updated_time: '?\d+'?")
_LONG: Final = 60
_WHO_WIDTH: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    at: when it began, in seconds since 1970. who: one of the above, or ``driver -> API server`` and the like. what: the
    call with its request. answer: '' when there is none to tell. ms: from call to answer, None when that is not known.
    """

    at: float
    who: str
    what: str
    answer: str = ""
    ms: float | None = None


def call_name(method: str) -> str:
    """The name of a gRPC method without its service, as ``NodePrepareResources``."""
    return method.rpartition("/")[2]


def is_stream(method: str) -> bool:
    """Whether answers to a gRPC method come one after the other."""
    return method in _METHODS and bool(_METHODS[method].server_streaming)


def request_text(method: str, content: bytes) -> str:
    """A request in words; '' when it is empty."""
    return _text(_METHODS[method].input_type if method in _METHODS else None, content)


def answer_text(method: str, content: bytes) -> str:
    """An answer in words; '' when it is empty."""
    return _text(_METHODS[method].output_type if method in _METHODS else None, content)


def dump(event: Event) -> str:
    """One line of JSON."""
    return json.dumps(asdict(event))


def load(lines: Iterable[str]) -> list[Event]:
    """From lines of JSON. Raises ValueError or TypeError for anything else."""
    return [Event(**json.loads(line)) for line in lines if line.strip()]


def story(recorded: Iterable[Event]) -> Iterator[Event]:
    """In order of time, with the answer to a call of the kubelet where it was given.

    A message of a stream that says what the one before said is left out; a long answer is told once.
    """
    parts = sorted((part for event in recorded for part in _parts(event)), key=lambda part: part.at)
    told: dict[str, str] = {}
    for part in parts:
        said = _TOLD_AT.sub("", part.answer)
        again = len(said) > _LONG and told.get(part.what) == said
        if said:
            told[part.what] = said
        if not again:
            yield part
        elif part.ms is not None:
            yield replace(part, answer="as before")


def show(event: Event, start: float, width: int = 118) -> str:
    """For people: seconds since ``start``, who, what, and the answer, in lines of at most this width."""
    answer = f" = {event.answer}" if event.answer else ""
    took = "" if event.ms is None else f"  ({event.ms:.1f} ms)"
    head = f"{event.at - start:+8.3f}  {event.who:{_WHO_WIDTH}}  "
    text = _UID.sub(r"\1…", f"{event.what}{answer}{took}")
    return textwrap.fill(
        head + text, width, subsequent_indent=" " * len(head), break_long_words=False, break_on_hyphens=False
    )


def _parts(event: Event) -> list[Event]:
    if event.who != CALL or event.ms is None:
        return [event]
    name = event.what.partition(" ")[0]
    answered = replace(event, at=event.at + event.ms / 1000, who=ANSWER, what=name)
    return [replace(event, answer="", ms=None), answered]


def _text(kind: Any, content: bytes) -> str:
    if kind is None:
        return f"{len(content)} bytes"
    try:
        message = message_factory.GetMessageClass(kind).FromString(content)
    except DecodeError:
        return f"{len(content)} bytes that are no {kind.full_name}"
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return yaml.safe_dump(found, default_flow_style=True, sort_keys=False, width=1 << 20).strip() if found else ""
