"""The one error of this package, and how values found in a config are shown in its text. No decoding here."""

from collections.abc import Sequence
from typing import Any, Final

DECODING: Final = "error decoding config parameters: "
"""Before every error about the shape of the parameters."""

VALIDATING: Final = "error validating GPU config: "
"""Before every error about a value; the text that users are told to look for in a pod's events."""

_MAX_MESSAGE: Final = 400
_MAX_VALUE: Final = 60


class ConfigError(ValueError):
    """Opaque parameters that cannot be used: one line of at most 400 characters.

    path: the keys that lead to the place, outermost first; empty when it is the whole.
    """

    def __init__(self, message: str, path: Sequence[str] = ()) -> None:
        super().__init__(shorten(message, _MAX_MESSAGE))
        self.path = tuple(path)


def shorten(text: str, limit: int = _MAX_VALUE) -> str:
    """The text on one line, of printable characters only, cut to the limit."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def shown(value: Any) -> str:
    """A value as JSON would have it, shortened; lists and objects by their kind only."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{shorten(value)}"'
        case int() | float():
            return shorten(repr(value))
        case list():
            return "a list"
        case _:
            return "an object"


def dotted(path: Sequence[str]) -> str:
    """A JSON path as Kubernetes writes field paths."""
    return ".".join(shorten(key) for key in path)
