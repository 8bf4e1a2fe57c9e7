"""A terminal with some lines in it, as a small SVG of text alone, which fetches no font. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

MOST_COLUMNS: Final = 132
PROMPT: Final = "$ "

_SIZE: Final = 14
_WIDE: Final = 8.43
"""Of one character, in the fonts named below at this size: 0.602 em."""
_HIGH: Final = 19
_MARGIN: Final = 12


def svg(lines: Sequence[str]) -> str:
    """The lines, folded where they are too long; those that begin with a prompt are what was typed."""
    rows = [(line.startswith(PROMPT), part) for line in lines for part in _folded(line)]
    columns = max(len(part) for _, part in rows)
    width, height = round(columns * _WIDE) + 2 * _MARGIN, len(rows) * _HIGH + 2 * _MARGIN
    return "\n".join([*_head(width, height), *_texts(rows), "</svg>", ""])


def _folded(line: str) -> list[str]:
    """As a terminal of so many columns shows it."""
    return [line[at : at + MOST_COLUMNS].rstrip() for at in range(0, max(1, len(line.rstrip())), MOST_COLUMNS)]


def _head(width: int, height: int) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    fonts = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
    yield f"<style>text {{ font: {_SIZE}px {fonts}; fill: #d6dbe2; white-space: pre }}"
    yield ".typed { fill: #76b900; font-weight: bold }</style>"
    yield '<rect width="100%" height="100%" rx="6" fill="#181c22"/>'


def _texts(rows: Iterable[tuple[bool, str]]) -> Iterator[str]:
    for number, (typed, part) in enumerate(rows):
        if part:
            kind = ' class="typed"' if typed else ""
            y = _MARGIN + number * _HIGH + _SIZE
            yield f'<text x="{_MARGIN}" y="{y}" xml:space="preserve"{kind}>{escape(part, quote=False)}</text>'
