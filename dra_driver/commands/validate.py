"""``dra-driver validate``: what is wrong in manifests, and on which line. Reads files only; no cluster, no GPU."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.commands import files
from dra_driver.commands.output import plural, write, write_json
from dra_driver.features import Gates, parse_gates

_DESCRIPTION = """\
Check ResourceClaims, ResourceClaimTemplates, DeviceClasses and bare GpuConfigs before they are
applied: every config for gpu.nvidia.com is decoded as the driver will decode it, and compared with
the requests that it names. Nothing is sent anywhere."""

_EPILOG = """\
examples:
  dra-driver validate claim.yaml deployment.yaml
  dra-driver validate --feature-gates TimeSlicingSettings=true claim.yaml
  helm template my-app | dra-driver validate -

Exit codes: 0 nothing wrong, 1 problems found, 2 a file cannot be read."""

PROBLEMS: Final = 1
UNREADABLE: Final = 2


@dataclass(slots=True)
class Report:
    """Findings of all files, as they are printed in JSON."""

    findings: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0
    configs: int = 0
    unreadable: bool = False

    def count(self, severity: str) -> int:
        """How many findings are of a severity."""
        return sum(finding["severity"] == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0, 1 or 2, as the help says."""
        return UNREADABLE if self.unreadable else PROBLEMS if self.count("error") else 0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add files, format and gates."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON, many documents a file; - is stdin")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument(
        "--feature-gates", metavar="GATES", help="gates of the driver that will serve the claims; checks against them"
    )


def run(options: argparse.Namespace) -> int:
    """Check all files, print what was found, return the exit code."""
    gates = None if options.feature_gates is None else parse_gates(options.feature_gates)
    report = Report()
    for name in options.files:
        _check_file(name, gates, report)
    if options.output == "json":
        write_json({"ok": report.exit_code == 0, "files": report.files, "configs": report.configs,
                    "findings": report.findings})  # fmt: skip
    else:
        for line in _lines(report):
            write(line)
    return report.exit_code


def _check_file(name: str, gates: Gates | None, report: Report) -> None:
    from dra_driver.validation.documents import Unreadable, read_documents
    from dra_driver.validation.objects import check_document

    report.files += 1
    shown = files.shown(name)
    try:
        text = files.read_text(name)
    except (OSError, ValueError) as error:
        report.unreadable = True
        _add(report, shown, 0, f"cannot be read: {files.reason(error)}")
        return
    try:
        for document in read_documents(text):
            found = check_document(document, gates)
            report.configs += found.checked
            for finding in found:
                _add(report, shown, finding.line, finding.message, finding.path, finding.severity.value)
    except Unreadable as error:
        _add(report, shown, error.line, str(error))


def _add(report: Report, file: str, line: int, message: str, path: str = "", severity: str = "error") -> None:
    report.findings.append(
        {"file": file, "line": line, "path": path, "severity": severity, "message": " ".join(message.split())}
    )


def _lines(report: Report) -> Iterator[str]:
    for finding in report.findings:
        where = f"{finding['file']}:{finding['line']}" if finding["line"] else finding["file"]
        note = "note: " if finding["severity"] == "note" else ""
        path = f"{finding['path']}: " if finding["path"] else ""
        yield f"{where}: {note}{path}{finding['message']}"
    counts = (
        plural(report.files, "file"),
        f"{plural(report.configs, 'config')} of gpu.nvidia.com",
        plural(report.count("error"), "problem"),
        plural(report.count("note"), "note"),
    )
    yield ", ".join(counts)
