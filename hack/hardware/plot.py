"""A small plot as SVG, by our own hand: bars in panels that each have a scale of their own. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

SHARED: Final = "One pod alone, and two sharing a GPU by time slices"

_PANEL: Final = 240
_HEIGHT: Final = 260
_TOP: Final = 56
_BASE: Final = 206
_LEFT: Final = 24
_COLOURS: Final = {"alone": "#5b8c00", "one": "#1f6fb2", "two": "#7fb3dc", "sum": "#444444"}


@dataclass(frozen=True, slots=True)
class Bar:
    """label below, text above, value for the height; colour: a key of the palette."""

    label: str
    text: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars of one scale, which begins at 0."""

    title: str
    bars: Sequence[Bar]


def of_throughput(found: Mapping[str, Any]) -> list[Panel]:
    """Panels for compute, copies, and the wait for a short kernel; ``found`` as the scene keeps it, by kind."""
    panels = []
    for kind, title in (("compute", "FP32 multiply-adds, TFLOP/s"), ("copy", "copies on the card, TB/s")):
        each = found[kind]
        values = {
            "alone": each["alone"]["rate"],
            "one": each["first"]["rate"],
            "two": each["second"]["rate"],
            "sum": each["total"],
        }
        labels = {"alone": "alone", "one": "first", "two": "second", "sum": "sum"}
        panels.append(Panel(title, [Bar(labels[key], f"{value:#.3g}", value, key) for key, value in values.items()]))
    launch = found["launch"]
    waits = {"alone": launch["alone"]["p99_s"], "one": launch["first"]["p99_s"]}
    labels = {"alone": "alone", "one": "other computes"}
    bars = [Bar(labels[key], f"{1e3 * value:#.3g}", value, key) for key, value in waits.items()]
    return [*panels, Panel("short kernel, p99, ms", bars)]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """The drawing, on white so that it can be read on any page."""
    width = _LEFT * 2 + _PANEL * len(panels)
    size = f'viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + number * _PANEL)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, x: int) -> list[str]:
    inner = _PANEL - 24
    most = max((bar.value for bar in panel.bars), default=0.0) or 1.0
    step = inner / max(len(panel.bars), 1)
    lines = [
        f'<text x="{x}" y="44">{escape(panel.title)}</text>',
        f'<line x1="{x}" y1="{_BASE}" x2="{x + inner}" y2="{_BASE}" stroke="#888888"/>',
    ]
    for number, bar in enumerate(panel.bars):
        height = (_BASE - _TOP - 16) * bar.value / most
        left, middle = x + number * step + step * 0.15, x + (number + 0.5) * step
        place = f'x="{left:.1f}" y="{_BASE - height:.1f}" width="{step * 0.7:.1f}" height="{height:.1f}"'
        lines += [
            f'<rect {place} fill="{_COLOURS[bar.colour]}"/>',
            f'<text x="{middle:.1f}" y="{_BASE - height - 5:.1f}" text-anchor="middle">{escape(bar.text)}</text>',
            f'<text x="{middle:.1f}" y="{_BASE + 18}" text-anchor="middle">{escape(bar.label)}</text>',
        ]
    return lines
