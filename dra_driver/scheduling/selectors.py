"""What a CEL selector is to an allocator, whoever evaluates it; attributes by their full names."""

from collections.abc import Callable
from typing import Any

from dra_driver.model.errors import DriverError

Json = dict[str, Any]
Match = Callable[[str, Json], bool]
"""(driver, device) -> whether it is selected. Raises SelectorError where CEL fails on the device."""

Compile = Callable[[str], Match]
"""Keeps what it has compiled: it is asked for the same expression for each device of each node.

Raises SelectorError for an expression that is wrong or not understood.
"""


class SelectorError(DriverError):
    """A selector that is not understood, or that fails on a device."""

    kind = "selector"


def attribute(driver: str, device: Json, qualified: str) -> str | int | bool | None:
    """A device's attribute by its full name; names without a domain belong to the driver. None when absent."""
    attributes = device.get("attributes") or {}
    domain, _, name = qualified.rpartition("/")
    value = attributes.get(qualified)
    if value is None and domain == driver:
        value = attributes.get(name)
    return next(iter(value.values())) if value else None
