"""Reference pages, written from the code that they describe, so that they cannot be wrong.

Devices are those that ``dra-driver inventory -o slices`` prints for scenarios that come with the driver.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import yaml

from dra_driver.commands.parser import COMMANDS, build_parser, commands_of
from dra_driver.features import EXCLUSIONS, GATES, REQUIREMENTS, Scope
from dra_driver.observe.metrics import PrometheusRecorder
from dra_driver.settings.table import TABLE

Json = dict[str, Any]

_SCENARIOS: Final = {"a GPU": "h200x2", "a MIG device": "a100x8-mig"}
_SCOPES: Final = {
    Scope.BUILT: "works here",
    Scope.PLANNED: "known, without effect in this version",
    Scope.FOREIGN: "of other programs, accepted",
}
_COLUMNS: Final = "100"
_LONGEST: Final = 60


def pages() -> dict[str, str]:
    """File below ``docs/reference`` -> Markdown."""
    return {
        "flags.md": _page("Flags of `dra-driver run`", _flags()),
        "gates.md": _page("Feature gates", _gates()),
        "metrics.md": _page("Metrics", _metrics()),
        "devices.md": _page("Attributes and capacities of devices", _devices()),
        "commands.md": _page("Commands", _commands()),
    }


def _page(title: str, lines: Iterable[str]) -> str:
    written = "<!-- Written by `python -m hack.docs` from the code; do not edit. -->"
    return "\n".join([f"# {title}", "", written, "", *lines]).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in row)} |"
    yield ""


def _flags() -> Iterator[str]:
    yield "A flag beats its environment variable, and that the default. Those of NVIDIA's driver mean the same here."
    yield ""
    for group in dict.fromkeys(setting.group for setting in TABLE):
        yield f"## {group[0].upper()}{group[1:]}"
        yield ""
        rows = (
            (
                ", ".join(f"`{flag}`" for flag in setting.flags),
                ", ".join(f"`{name}`" for name in setting.env),
                "required" if setting.required else _code(setting.shown_default or setting.default),
                setting.help,
            )
            for setting in TABLE
            if setting.group == group
        )
        yield from _table(("flag", "environment", "default", "what it is"), rows)


def _gates() -> Iterator[str]:
    yield "`--feature-gates Name=true,Other=false`, or `FEATURE_GATES`. `AllAlpha` and `AllBeta` switch all of a stage."
    yield ""
    rows = ((f"`{g.name}`", "on" if g.default else "off", g.stage.value, g.summary, _SCOPES[g.scope]) for g in GATES)
    yield from _table(("gate", "default", "stage", "what it is", "here"), rows)
    yield from (f"- `{one}` and `{other}` cannot both be on." for one, other in EXCLUSIONS)
    yield from (f"- `{gate}` needs `{needed}`." for gate, needed in REQUIREMENTS)


def _metrics() -> Iterator[str]:
    yield "At the path `/metrics` of `--http-endpoint`. No label names a claim, a pod or a namespace."
    yield ""
    recorder = PrometheusRecorder("node")
    families = sorted(recorder.registry.collect(), key=lambda family: family.name)
    rows = []
    for family in families:
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    yield from _table(("metric", "type", "labels", "what it counts"), rows)


def _devices() -> Iterator[str]:
    yield "Names and types are those of NVIDIA's driver. Select on them in CEL:"
    yield "`device.attributes['gpu.nvidia.com'].productName`, `device.capacity['gpu.nvidia.com'].memory`; a name with a"
    yield "domain belongs to that domain."
    yield ""
    for title, scenario in _SCENARIOS.items():
        device = _published(scenario)
        yield f"## Of {title}"
        yield ""
        attributes = ((f"`{name}`", *_typed(value)) for name, value in device["attributes"].items())
        yield from _table(("attribute", "type", "example"), attributes)
        capacities = ((f"`{name}`", _code(value["value"])) for name, value in device["capacity"].items())
        yield from _table(("capacity", "example"), capacities)


def _published(scenario: str) -> Json:
    command = [sys.executable, "-m", "dra_driver", "inventory", "-o", "slices", "--node-name=node-1"]
    command += [f"--simulated-node={scenario}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    (found, *_) = yaml.safe_load(done.stdout)["items"]
    device: Json = found["spec"]["devices"][0]
    return device


def _typed(value: Json) -> tuple[str, str]:
    ((kind, content),) = value.items()
    return kind, _code(content)


def _commands() -> Iterator[str]:
    os.environ["COLUMNS"] = _COLUMNS
    parsers = commands_of(build_parser())
    yield from (f"- [`dra-driver {name}`](#dra-driver-{name}): {command.summary}" for name, command in COMMANDS.items())
    for name, parser in parsers.items():
        yield from ("", f"## dra-driver {name}", "", "```text")
        # The flags of the driver itself have a page.
        text = parser.format_help() if name != "run" else parser.format_usage() + "\nSee flags.md."
        yield from text.rstrip().splitlines()
        yield "```"


def _code(value: object) -> str:
    text = str(value)
    return f"`{text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}`" if text else ""
