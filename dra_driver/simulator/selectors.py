"""Field and label selectors of list and watch requests. Pure functions."""

import re
from collections.abc import Callable
from typing import Any

from dra_driver.simulator.kinds import Kind
from dra_driver.simulator.statuses import bad_request

Json = dict[str, Any]
Match = Callable[[Json], bool]

_TERM = re.compile(r"^\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*$")
_SET_TERM = re.compile(r"^\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*$")


def field_of(obj: Json, path: str) -> str:
    """A field as selectors see it: text, '' when absent."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def field_match(kind: Kind, selector: str) -> Match:
    """A fieldSelector as a predicate. Raises StatusError 400 for labels that the type does not index."""
    terms: list[tuple[str, bool, str]] = []
    for text in filter(None, selector.split(",")):
        found = _TERM.match(text)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
        path, operator, wanted = found.groups()
        if path not in kind.selectable:
            raise bad_request(f"field label not supported: {path}")
        terms.append((path, operator != "!=", wanted))
    return lambda obj: all((field_of(obj, path) == wanted) is equal for path, equal, wanted in terms)


def label_match(selector: str) -> Match:
    """A labelSelector (``a=b``, ``a!=b``, ``a``, ``!a``, ``a in (b,c)``, ``a notin (b)``) as a predicate."""
    tests = [_label_term(text.strip()) for text in re.split(r",(?![^(]*\))", selector) if text.strip()]

    def matches(obj: Json) -> bool:
        labels = obj.get("metadata", {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_term(text: str) -> Callable[[dict[str, str]], bool]:
    if found := _SET_TERM.match(text):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _TERM.match(text):
        key, operator, wanted = found.groups()
        equal = operator != "!="
        return lambda labels: (labels.get(key) == wanted) is equal
    if text.startswith("!"):
        return lambda labels: text[1:].strip() not in labels
    if re.fullmatch(r"[\w./-]+", text):
        return lambda labels: text in labels
    raise bad_request(f"unable to parse requirement: {text}")
