"""The commands of a guide with what they must print: blocks of ``console``, a command after each ``$``."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster.driver import ROOT

_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DIFFERS: Final = re.compile(r"<(\.\*|(?!none>)[a-z]+)>")
"""``<none>`` is what kubectl prints."""
_RUN_S: Final = 330.0


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and the lines that it must print: ``<name>`` is a word that differs, ``<.*>`` any text."""

    command: str
    lines: tuple[str, ...]

    def check(self, printed: str, known: dict[str, str]) -> None:
        """Fails with both texts unless they agree; ``known`` keeps what a name has stood for, and is added to."""
        found = [_one_space(line) for line in printed.splitlines()]
        assert len(found) == len(self.lines), f"{self.command}\nmust print {self.lines}\nprinted {found}"
        for line, text in zip(self.lines, found, strict=True):
            match = re.fullmatch(_pattern(line, known), text)
            assert match, f"{self.command}\nmust print {line!r}, with {known}\nprinted {text!r}"
            known |= match.groupdict()


def steps(page: str) -> list[Step]:
    """All commands of a page of ``docs``, in order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [step for block in _BLOCK.findall(text) for step in _steps(block)]


def run(command: str, environment: Mapping[str, str], folder: Path) -> str:
    """What a command prints on both streams, whatever its exit code: a guide shows what people see."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    return done.stdout


def _steps(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield Step(command, tuple(map(_one_space, lines)))


def _one_space(line: str) -> str:
    """Columns are as wide as their longest entry."""
    return " ".join(line.split())


def _pattern(line: str, known: Mapping[str, str]) -> str:
    parts, at, seen = [], 0, set(known)
    for found in _DIFFERS.finditer(line):
        name = found[1]
        parts.append(re.escape(line[at : found.start()]))
        if name == ".*":
            parts.append(".*")
        elif name in known:
            parts.append(re.escape(known[name]))
        else:
            parts.append(f"(?P={name})" if name in seen else rf"(?P<{name}>\S+?)")
            seen.add(name)
        at = found.end()
    return "".join([*parts, re.escape(line[at:])])
