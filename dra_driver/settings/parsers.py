"""From a setting's text to its value. Pure; each raises ValueError whose text says what the value must be."""

import math
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TypeVar

from dra_driver.settings.values import Endpoint
from dra_driver.sharing.shares import ConsumableShares

E = TypeVar("E", bound=Enum)

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_POD_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_MAX_PORT = 65535
_MAX_LABEL = 63
_MAX_SUBDOMAIN = 253
_MAX_PATH = 4096


def text(value: str) -> str:
    """Any text."""
    return value


def optional_text(value: str) -> str | None:
    """Any text; empty means not given."""
    return value or None


def node_name(value: str) -> str:
    """A Node's name: a DNS subdomain, as the API server requires. Empty only where no name is required."""
    if value and (len(value) > _MAX_SUBDOMAIN or not _DNS_SUBDOMAIN.fullmatch(value)):
        raise ValueError(
            "must be a DNS subdomain, the name of a Node object: "
            "a-z, 0-9, '-' and '.', beginning and ending with a letter or digit, at most 253 characters"
        )
    return value


def namespace(value: str) -> str:
    """A Namespace's name: a DNS label."""
    if len(value) > _MAX_LABEL or not _DNS_LABEL.fullmatch(value):
        raise ValueError("must be a DNS label: a-z, 0-9 and '-', at most 63 characters")
    return value


def pod_uid(value: str) -> str:
    """A Pod's UID, which becomes part of socket names. Empty means not given."""
    if value and not _POD_UID.fullmatch(value):
        raise ValueError("must be the UID of a Pod: letters, digits and '-', at most 63 characters")
    return value


def directory(value: str) -> Path:
    """An absolute path."""
    if not value.startswith("/") or "\0" in value or len(value) > _MAX_PATH:
        raise ValueError("must be an absolute path")
    return Path(value)


def optional_directory(value: str) -> Path | None:
    """An absolute path; empty means not given."""
    return directory(value) if value else None


def optional_path(value: str) -> Path | None:
    """A path; empty means not given."""
    return Path(value) if value else None


def metrics_path(value: str) -> str:
    """A URL path; empty switches metrics off."""
    if value and not re.fullmatch(r"/[!-~]*", value):
        raise ValueError("must begin with '/', or be empty to switch metrics off")
    return value


def healthcheck_port(value: str) -> int:
    """A TCP port; any negative number means off, 0 any free port."""
    number = _integer(value)
    if number is None or number > _MAX_PORT:
        raise ValueError("must be a port from 0 to 65535 (0 picks a free one), or -1 to switch it off")
    return number


def http_endpoint(value: str) -> Endpoint | None:
    """``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``; empty switches the server off."""
    if not value:
        return None
    host, colon, port = value.rpartition(":")
    number = _integer(port)
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    host_fits = (":" in host) == bracketed and not set(host) & set("[]/ ")
    if not colon or not host_fits or number is None or not 0 <= number <= _MAX_PORT:
        raise ValueError("must be HOST:PORT or :PORT with a port from 0 to 65535, or empty to switch it off")
    return Endpoint(host, number)


def consumable_shares(value: str) -> ConsumableShares:
    """``disabled`` or empty, ``memory``, ``unlimited``, or a positive number of shares."""
    return ConsumableShares.parse(value) if value else ConsumableShares()


def xids(value: str) -> frozenset[int]:
    """XID numbers separated by commas; what is no number is left out, as NVIDIA's driver does."""
    numbers = (_integer(item.strip()) for item in value.split(","))
    return frozenset(number for number in numbers if number is not None and number >= 0)


def names(value: str) -> tuple[str, ...]:
    """Names separated by commas or blanks."""
    return tuple(value.replace(",", " ").split())


def pull_policy(value: str) -> str:
    """A container's image pull policy; empty means not given."""
    if value not in ("", "Always", "IfNotPresent", "Never"):
        raise ValueError("must be Always, IfNotPresent or Never")
    return value


def positive_number(value: str) -> float:
    """A finite number above 0."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("must be a number above 0")
    return number


def seconds(value: str) -> float:
    """A number of seconds above 0 and up to an hour; a trailing ``s`` is allowed."""
    number = positive_number(value.removesuffix("s")) if value else math.inf
    if number > 3600:
        raise ValueError("must be a number of seconds above 0, at most 3600")
    return number


def positive_integer(value: str) -> int:
    """A whole number above 0."""
    number = _integer(value)
    if number is None or number < 1:
        raise ValueError("must be a whole number above 0")
    return number


def verbosity(value: str) -> int:
    """A klog verbosity level."""
    number = _integer(value)
    if number is None or number < 0:
        raise ValueError("must be a whole number from 0 (least) up")
    return number


def one_of(kind: type[E]) -> Callable[[str], E]:
    """A parser for the values of an enumeration."""

    def parse(value: str) -> E:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"must be {' or '.join(str(member.value) for member in kind)}") from None

    return parse


def _integer(value: str) -> int | None:
    """A decimal integer, else None. Stricter than ``int()``, which takes blanks, ``_`` and other digits."""
    return int(value) if re.fullmatch(r"[+-]?[0-9]{1,18}", value, re.ASCII) else None
