"""Values as the ResourceSlice API accepts them: strings, versions, integers, quantities. Pure.

Each function answers None where the API server would refuse the value, because one refused attribute would
cost the whole slice. Limits: Kubernetes pkg/apis/resource/validation.
"""

import re

from dra_driver_api.quantity import format_bytes

STRING_LIMIT = 64
"""Most bytes of a string or version attribute."""

INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1

_VERSION = re.compile(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?((?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)")
_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SUFFIX = re.compile(rf"(?:-{_IDENTIFIER}(?:\.{_IDENTIFIER})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?")


def string(value: object) -> str | None:
    """Cut to 64 bytes of UTF-8 without splitting a character; None for anything but a text with content."""
    if not isinstance(value, str):
        return None
    encoded = value.encode("utf-8", errors="replace")[:STRING_LIMIT]
    return encoded.decode("utf-8", errors="ignore") or None


def version(value: object) -> str | None:
    """Make valid SemVer of a dotted version of one to three numbers; None when there is no way.

    Leading zeros go and missing parts become 0, as upstream does: ``535.54.03`` is published as ``535.54.3``.
    """
    found = _VERSION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    numbers = [(part or "0").lstrip("0") or "0" for part in found.groups()[:3]]
    suffix = found[4]
    normal = ".".join(numbers) + suffix
    if len(normal) > STRING_LIMIT or not _SUFFIX.fullmatch(suffix):
        return None
    return None if any(int(number) > _UINT64_MAX for number in numbers) else normal


def integer(value: object) -> int | None:
    """A 64-bit integer, or None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -INT64_MAX - 1 <= value <= INT64_MAX else None


def quantity(value: object) -> str | None:
    """Write a count or a number of bytes as Kubernetes does: ``150754820096`` is ``143771Mi``, 7 is ``7``.

    None for anything but a 64-bit integer of 0 or more.
    """
    number = integer(value)
    if number is None or number < 0:
        return None
    return format_bytes(number)
