"""Opaque parameters to one JSON object, whatever they came as. Knows JSON, not the config types."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from dra_driver_api.config.errors import DECODING, ConfigError, dotted, shorten, shown

MAX_BYTES: Final = 10 * 1024
"""The API server's limit on ``opaque.parameters``."""

_MAX_DEPTH: Final = 32
"""Far more than any config has; a fixed number, as what the json module bears depends on the Python version."""

_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[]}]')
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class _Repeated(dict[str, Any]):
    """An object in which ``key`` was written twice."""

    key: str


def parse(raw: Mapping[str, Any] | str | bytes | None, *, refuse_repeated_keys: bool) -> dict[str, Any]:
    """The object in ``raw``. Raises ConfigError for all that is not one JSON object of at most MAX_BYTES."""
    if raw is None:
        raise ConfigError(f"{DECODING}there are no parameters, want a JSON object with apiVersion and kind")
    try:
        text = _text(raw)
        _refuse_depth(text)
        found = json.loads(
            text,
            object_pairs_hook=_pairs if refuse_repeated_keys else None,
            parse_constant=_refuse_constant,
        )
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
        if refuse_repeated_keys:
            _refuse_repeated(found)
    except ConfigError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{DECODING}not valid JSON: {shorten(str(error), 120)}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{DECODING}want a JSON object with apiVersion and kind, found {shown(found)}")
    return found


def _text(raw: Mapping[str, Any] | str | bytes) -> str:
    """JSON text of a checked size and of Unicode characters only."""
    if isinstance(raw, Mapping):
        text = json.dumps(dict(raw), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    elif isinstance(raw, str):
        text, size = raw, len(raw.encode())
    elif isinstance(raw, bytes):
        text, size = "", len(raw)
    else:
        raise ConfigError(f"{DECODING}want a JSON object with apiVersion and kind, found {shown(raw)}")
    if size > MAX_BYTES:
        raise ConfigError(f"{DECODING}the parameters are {size} bytes long, the limit is {MAX_BYTES}")
    if isinstance(raw, bytes):
        text = raw.decode()
    return text


def _refuse_depth(text: str) -> None:
    """Refuse what would nest deeper than _MAX_DEPTH, before a parser has to bear it."""
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth = 0
    for token in _BRACKETS.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
        if depth > _MAX_DEPTH:
            raise _too_deep()


def _too_deep() -> ConfigError:
    return ConfigError(f"{DECODING}the JSON is nested too deeply, the limit is {_MAX_DEPTH} levels")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    marked = _Repeated(found)
    marked.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return marked


def _refuse_repeated(found: Any) -> None:
    for path in _repeated(found, ()):
        raise ConfigError(f'{DECODING}strict decoding error: duplicate field "{dotted(path)}"', path)


def _repeated(found: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(found, _Repeated):
        yield (*path, found.key)
    if isinstance(found, dict):
        for key, value in found.items():
            yield from _repeated(value, (*path, key))
    elif isinstance(found, list):
        for index, value in enumerate(found):
            yield from _repeated(value, (*path, str(index)))
