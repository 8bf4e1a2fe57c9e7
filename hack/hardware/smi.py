"""What ``nvidia-smi`` says of the cards: facts, settings, and the processes that compute. Nothing is ever set."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hack.hardware.errors import HardwareError

SECONDS: Final = 120.0

_SETTINGS: Final = (
    "Accounting Mode",
    "Addressing Mode",
    "Applications Clocks/",
    "Capabilities/",
    "Clock Policy/",
    "Compute Mode",
    "DRAM Encryption Mode/",
    "Default Applications Clocks/",
    "Deferred Clocks/",
    "Display Mode",
    "Driver Model/",
    "ECC Mode/",
    "GPU Operation Mode/",
    "GPU Power Readings/Default Power Limit",
    "GPU Power Readings/Max Power Limit",
    "GPU Power Readings/Min Power Limit",
    "GPU Power Readings/Requested Power Limit",
    "GPU Virtualization Mode/",
    "MIG Mode/",
    "Max Clocks/",
    "Max Customer Boost Clocks/",
    "Persistence Mode",
    "Power Smoothing",
    "Sparse Operation Mode",
    "Workload Power Profiles/",
)
"""Facts that somebody has set, and those below a section; readings such as temperatures change by themselves."""
TIME_SLICE: Final = "Time Slice"
UUID: Final = "GPU UUID"
_LEVELS: Final = re.compile(r"\b(?:default|short|medium|long)\b", re.IGNORECASE)


class SmiReport(NamedTuple):
    """``nvidia-smi -q``: facts of the driver, and of each card by path (``MIG Mode/Current``)."""

    head: Mapping[str, str]
    cards: Sequence[Mapping[str, str]]


def parse(text: str) -> SmiReport:
    """Read the indented ``name : value`` lines; a line without a value opens a section."""
    head: dict[str, str] = {}
    cards: list[dict[str, str]] = []
    sections: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.startswith("GPU "):
            cards.append({"": line.removeprefix("GPU ").strip()})
            sections.clear()
            continue
        name, colon, value = line.partition(" :")
        indent = len(name) - len(name.lstrip())
        while sections and sections[-1][0] >= indent:
            sections.pop()
        if not colon:
            if name.strip() and indent:
                sections.append((indent, name.strip()))
            continue
        path = "/".join([*(section for _, section in sections), name.strip()])
        (cards[-1] if cards else head).setdefault(path, value.strip())
    return SmiReport(head, cards)


def settings(card: Mapping[str, str]) -> dict[str, str]:
    """The facts of a card that are settings."""
    exact = {name for name in _SETTINGS if not name.endswith("/")}
    sections = tuple(name for name in _SETTINGS if name.endswith("/"))
    return {path: value for path, value in card.items() if path in exact or path.startswith(sections)}


def changed(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each setting that differs, of cards by UUID; a card that is gone or new is a line too."""
    lines = [f"{uuid}: {'gone' if uuid in before else 'new'}" for uuid in sorted(before.keys() ^ after.keys())]
    for uuid in sorted(before.keys() & after.keys()):
        was, is_now = before[uuid], after[uuid]
        lines += [
            f"{uuid}: {path}: was {was.get(path, 'not told')}, is {is_now.get(path, 'not told')}"
            for path in sorted(was.keys() | is_now.keys())
            if was.get(path) != is_now.get(path)
        ]
    return lines


def level(text: str) -> str:
    """The time slice that ``compute-policy --list`` shows for one card, ``not told`` when it is not one word."""
    words = {word.capitalize() for word in _LEVELS.findall(text)}
    return words.pop() if len(words) == 1 else "not told"


def processes(text: str) -> dict[str, list[int]]:
    """UUID -> process ids, from ``--query-compute-apps=gpu_uuid,pid --format=csv,noheader``."""
    found: dict[str, list[int]] = {}
    for line in text.splitlines():
        uuid, _, pid = line.partition(",")
        if pid.strip().isdigit():
            found.setdefault(uuid.strip(), []).append(int(pid))
    return found


def read_report() -> SmiReport:
    """All facts. Raises HardwareError."""
    return parse(_output("-q"))


def read_settings() -> dict[str, dict[str, str]]:
    """Settings of all cards by UUID, the time slice among them. Raises HardwareError."""
    found = {card[UUID]: settings(card) for card in read_report().cards}
    for uuid, facts in found.items():
        facts[TIME_SLICE] = level(_output("compute-policy", "-i", uuid, "--list"))
    return found


def read_processes() -> dict[str, list[int]]:
    """Processes that compute, by UUID of the card. Raises HardwareError."""
    return processes(_output("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"))


def _output(*arguments: str) -> str:
    shown = " ".join(("nvidia-smi", *arguments))
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise HardwareError(f"{shown}: {error}") from error
    if done.returncode:
        raise HardwareError(f"{shown}: exit code {done.returncode}: {' '.join((done.stderr or done.stdout).split())}")
    return done.stdout
