"""What a run has found: facts by name, and checks that hold or do not. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_UUID: Final = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_CLAIM: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass(frozen=True, slots=True)
class Check:
    """Whether something was as it must be. seen: in words, for who reads the table."""

    scene: str
    what: str
    holds: bool
    seen: str


@dataclass
class Findings:
    """Filled while the scenes play."""

    facts: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def check(self, scene: str, what: str, holds: bool, seen: object = "") -> None:
        """Keep a check."""
        self.checks.append(Check(scene, what, bool(holds), str(seen)))

    @property
    def broken(self) -> list[Check]:
        """Those that do not hold."""
        return [check for check in self.checks if not check.holds]

    def document(self, known: Sequence[str]) -> dict[str, Any]:
        """As JSON: facts and checks, ids replaced. known: the cards' UUIDs, in order."""
        checks = [
            {"scene": each.scene, "what": each.what, "holds": each.holds, "seen": each.seen} for each in self.checks
        ]
        text = json.dumps({**self.facts, "checks": checks})
        found: dict[str, Any] = json.loads(anonymous(text, known))
        return found


def anonymous(text: str, known: Sequence[str] = ()) -> str:
    """UUIDs of cards, then of claims and pods, replaced by numbered ones; the same is replaced by the same."""
    cards = _numbered([*known, *(found.group() for found in _UUID.finditer(text))])
    text = _UUID.sub(lambda found: f"{found[1]}-00000000-0000-4000-8000-{cards[found.group()]:012d}", text)
    others = _numbered([found for found in _CLAIM.findall(text) if not found.startswith("00000000-0000-4000-8000-")])
    for uuid, number in others.items():
        text = text.replace(uuid, f"00000000-0000-4000-9000-{number:012d}")
    return text


def table(checks: Sequence[Check]) -> str:
    """A line for each check."""
    rows = [("", "scene", "check", "seen")]
    rows += [("ok" if each.holds else "BROKEN", each.scene, each.what, each.seen) for each in checks]
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lines of equal columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def shares_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Throughput alone and shared, and the wait for a short kernel; ``found`` as the scene keeps it, by kind."""
    rows = [("", "alone", "first of two", "second of two", "sum", "of alone")]
    for kind in ("compute", "copy"):
        if kind in found:
            each = found[kind]
            figures = [each["alone"]["rate"], each["first"]["rate"], each["second"]["rate"], each["total"]]
            shown = [f"{figure:#.3g} {each['unit']}" for figure in figures]
            rows.append((kind, shown[0], shown[1], shown[2], shown[3], f"{100 * each['of_alone']:.0f} %"))
    if "launch" in found:
        for name in ("p50_s", "p99_s", "longest_s"):
            alone, shared = found["launch"]["alone"][name], found["launch"]["first"][name]
            label = f"short kernel {name.removesuffix('_s')}"
            rows.append((label, f"{1e6 * alone:.0f} us", f"{1e6 * shared:.0f} us", "computes", "", ""))
    return columns(rows)


def _numbered(found: Sequence[str]) -> dict[str, int]:
    return {each: number for number, each in enumerate(dict.fromkeys(found), 1)}
