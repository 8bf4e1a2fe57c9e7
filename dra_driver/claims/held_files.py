"""Notices that files which this process has open were taken away: it would go on in what no successor finds.

Locks on a file that is gone keep nobody out, and records in it end with the process.
"""

from collections.abc import Iterable
from pathlib import Path

from dra_driver.hostfs import identity


class HeldFiles:
    """Files of the state directory that this process keeps open until it ends."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """They are open already; of one that is not there, it is noticed when it comes."""
        self._known = {path: identity(path) for path in paths}

    def lost(self) -> Path | None:
        """One that was removed or replaced, if any."""
        return next((path for path, known in self._known.items() if identity(path) != known), None)
