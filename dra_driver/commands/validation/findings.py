"""What a check found, and where. Values only."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from dra_driver.commands.validation.documents import Document, Path, dotted


class Severity(Enum):
    """ERROR: it will not work. NOTE: it may not do what was meant, or needs something else too."""

    ERROR = "error"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. line: from 1; path: field path inside the document, '' for all of it."""

    line: int
    path: str
    severity: Severity
    message: str


@dataclass(slots=True)
class Findings:
    """Collects what is found in one document. checked: how many configs of this driver were decoded."""

    document: Document
    found: list[Finding] = field(default_factory=list)
    checked: int = 0

    def error(self, path: Path, message: str) -> None:
        """It will not work."""
        self._add(path, Severity.ERROR, message)

    def note(self, path: Path, message: str) -> None:
        """Worth knowing."""
        self._add(path, Severity.NOTE, message)

    def add_duplicates(self) -> None:
        """Keys written twice, which YAML tools resolve in different ways."""
        for path, line in self.document.duplicates:
            message = f'the key "{path[-1]}" is written twice'
            self.found.append(Finding(line, dotted(path), Severity.ERROR, message))

    def _add(self, path: Path, severity: Severity, message: str) -> None:
        self.found.append(Finding(self.document.line(path), dotted(path), severity, message))

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self.found, key=lambda finding: finding.line))
