"""What a check found, and where. Values only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

Path = tuple[str | int, ...]
"""Keys and list indexes from the document's root."""


class Severity(Enum):
    """ERROR: it will not work. NOTE: it may not do what was meant, or needs something else too."""

    ERROR = "error"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. line: from 1, 0 where there are none; path: field path inside the document, '' for all of it."""

    line: int
    path: str
    severity: Severity
    message: str


def _nowhere(path: Path) -> int:
    return 0


@dataclass(slots=True)
class Findings:
    """Collects what is found in one document. line: where a path stands in its text, for documents that are text.
    checked: how many configs of this driver were decoded.
    """

    line: Callable[[Path], int] = _nowhere
    found: list[Finding] = field(default_factory=list)
    checked: int = 0

    def error(self, path: Path, message: str, line: int | None = None) -> None:
        """It will not work. line: where that is known better than by the path."""
        self._add(path, Severity.ERROR, message, line)

    def note(self, path: Path, message: str) -> None:
        """Worth knowing."""
        self._add(path, Severity.NOTE, message)

    def of(self, severity: Severity) -> list[Finding]:
        """Those of one severity, in the order of their lines."""
        return [finding for finding in self if finding.severity is severity]

    def _add(self, path: Path, severity: Severity, message: str, line: int | None = None) -> None:
        self.found.append(Finding(self.line(path) if line is None else line, dotted(path), severity, message))

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self.found, key=lambda finding: finding.line))


def dotted(path: Path) -> str:
    """A path as Kubernetes writes field paths: ``spec.devices.config[0].opaque``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
