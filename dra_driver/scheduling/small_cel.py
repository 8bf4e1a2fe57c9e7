"""The small part of CEL that selectors of the demo need, without a library. Pure functions; anything else is refused.

Understood: terms joined by ``&&``, each ``device.driver == 'x'``, ``device.allowMultipleAllocations == true`` or
``device.attributes['domain'].name == value``, with ``==`` or ``!=`` and a string, integer or boolean.
"""

import re
from functools import cache

from dra_driver.scheduling.selectors import Json, Match, SelectorError, attribute

UNDERSTOOD = (
    "device.driver == '...', device.allowMultipleAllocations == true, device.attributes['domain'].name == value, "
    "joined by &&"
)

_TERM = re.compile(
    r"""^device\.(?:(?P<driver>driver)|(?P<shared>allowMultipleAllocations)|attributes\[(?P<q>['"])(?P<domain>[^'"]+)(?P=q)\]\.(?P<name>\w+))"""
    r"""\s*(?P<operator>==|!=)\s*(?P<value>'[^']*'|"[^"]*"|-?\d+|true|false)$"""
)
_AND = re.compile(r"""&&(?=(?:[^'"]|'[^']*'|"[^"]*")*$)""")


@cache
def compile_selector(expression: str) -> Match:
    """A CEL expression as a predicate over (driver, device). Raises SelectorError naming what is not understood.

    The predicate raises SelectorError when the device lacks an attribute, as CEL does.
    """
    terms = [_compile_term(part.strip(), expression) for part in _AND.split(" ".join(expression.split()))]
    return lambda driver, device: all(term(driver, device) for term in terms)


def _compile_term(text: str, expression: str) -> Match:
    found = _TERM.match(text)
    if found is None:
        raise SelectorError(f"CEL {text!r} in {expression!r} is beyond this allocator: it knows {UNDERSTOOD}")
    wanted, equal = _literal(found["value"]), found["operator"] == "=="
    if found["driver"]:
        return lambda driver, device: (driver == wanted) is equal
    if found["shared"]:
        return lambda driver, device: (bool(device.get("allowMultipleAllocations")) is wanted) is equal
    domain, name = found["domain"], found["name"]

    def compare(driver: str, device: Json) -> bool:
        value = attribute(driver, device, f"{domain}/{name}")
        if value is None:
            raise SelectorError(f"CEL runtime error: no such key: {name} (device {device['name']})")
        if type(value) is not type(wanted):
            raise SelectorError(f"CEL runtime error: no such overload: {value!r} == {wanted!r}")
        return (value == wanted) is equal

    return compare


def _literal(text: str) -> str | int | bool:
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if text[0] in "'\"" else int(text)
