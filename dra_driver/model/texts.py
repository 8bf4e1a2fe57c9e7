"""Words that messages of several packages are made of. Pure."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``: the first ``most`` names, '' for none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
