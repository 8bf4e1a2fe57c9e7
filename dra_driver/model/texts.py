"""What messages of several packages are made of. Pure."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``: the first ``most`` names, '' for none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def printable(text: str) -> str:
    """A foreign text fit for a message: what cannot be printed, line ends too, are spaces."""
    return "".join(c if c.isprintable() else " " for c in text)


def in_one_line(text: str) -> str:
    """The same, with one space between words."""
    return " ".join(printable(text).split())
