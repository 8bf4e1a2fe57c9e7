"""``dra-driver demo``: plays the scenes of ``dra_driver.simulator`` and prints them as a story or as JSON."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dra_driver.commands.output import write_json

if TYPE_CHECKING:
    from dra_driver.simulator.stage import Check, Scene

_DESCRIPTION = """\
Watch GPUs being shared, without a GPU or a cluster: an API server on loopback, the driver as a process
of its own, a kubelet that finds it through its registration socket, and a small scheduler. Five scenes
show what pods get and check it. Everything happens in a temporary directory."""

_EPILOG = """\
examples:
  dra-driver demo
  dra-driver demo -o json | jq -r '.scenes[].pods[] | [.name, .container, .gpu_uuid] | @tsv'
  dra-driver demo --simulated-node h200x8 --keep

Exit codes: 0 every scene came out right, 1 one did not, 2 wrong usage."""

_COLUMNS = ("POD", "CONTAINER", "CLAIM", "REQUEST", "GPU", "CDI DEVICES")
_TERMINATED = 128 + signal.SIGTERM
_TIMEOUT = 60.0
_LONGEST = 3600


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the format, the node, and limits."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("-o", "--output", choices=("story", "json"), default="story", help="default: story")
    parser.add_argument(
        "--simulated-node",
        metavar="NAME|FILE",
        default="h200x2",
        help="a scenario with two full GPUs or more (default: h200x2)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=_TIMEOUT,
        help=f"time limit for all scenes together (default: {_TIMEOUT:g})",
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory: driver log, state, driver tree")


def run(options: argparse.Namespace) -> int:
    """Play, print, and say with the exit code whether all was right. Raises SettingError for a bad scenario."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # connections break here on purpose
    from dra_driver.simulator import demo

    began = time.monotonic()
    with _ending_cleanly(), demo.directory(options.keep) as root:
        with closing(demo.play(root, options.simulated_node, options.timeout)) as scenes:
            if options.output == "json":
                played = list(scenes)
                write_json({"scenes": [s.as_json() for s in played], "ok": all(s.ok for s in played)})
                _complain(played)
            else:
                played = _tell(scenes, options.simulated_node)
                _sum_up(played, time.monotonic() - began)
        if options.keep:
            sys.stderr.write(f"kept: {root}\n")
    return 0 if all(scene.ok for scene in played) else 1


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to {_LONGEST}")
    return value


@contextmanager
def _ending_cleanly() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: the driver is stopped and the directory removed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, emoji=False, markup=False)


def _tell(scenes: Iterable["Scene"], simulated_node: str) -> list["Scene"]:
    """Print each scene when it is over."""
    console = _console()
    console.print(f"A node of one's own: simulated GPUs ({simulated_node}), a kubelet, a scheduler, an API server;")
    console.print("the driver runs as a process and is reached through its sockets.")
    told = []
    for scene in scenes:
        told.append(scene)
        letter, _, _ = scene.name.partition("-")
        console.print(f"\n{letter}. {scene.title}", style="bold")
        console.print(f"   {scene.story}")
        console.print(f"   $ kubectl apply -f {_path(scene.example)}\n", style="dim")
        for line in _table(scene.pods) if scene.pods else ():
            console.print(f"   {line}")
        if scene.event:
            console.print(f"   Warning event: {scene.event}", style="yellow")
        console.print()
        for check in scene.checks:
            _print_check(console, check)
        if scene.error:
            console.print(f"   NOT OK  {scene.error}", style="bold red")
    return told


def _complain(scenes: list["Scene"]) -> None:
    """What went wrong, beside the JSON."""
    for scene in scenes:
        wrong = [f"{c.what}: expected {_shown(c.expected)}, found {_shown(c.found)}" for c in scene.checks if not c.ok]
        for line in [*wrong, *filter(None, [scene.error])]:
            sys.stderr.write(f"{scene.name}: {line}\n")


def _print_check(console: Any, check: "Check") -> None:
    if check.ok:
        console.print("   ok", style="green", end="")
        console.print(f"  {check.what}: {_shown(check.found)}")
    else:
        console.print("   NOT OK", style="bold red", end="")
        console.print(f"  {check.what}: expected {_shown(check.expected)}, found {_shown(check.found)}")


def _sum_up(scenes: list["Scene"], seconds: float) -> None:
    wrong = [scene.name for scene in scenes if not scene.ok]
    console = _console()
    if wrong:
        console.print(f"\n{len(wrong)} of {len(scenes)} scenes went wrong: {', '.join(wrong)}", style="bold red")
    else:
        console.print(f"\nAll {len(scenes)} scenes came out right, in {seconds:.1f} s.", style="bold green")


def _path(example: str) -> str:
    """Where an example lies, as a person here would type it."""
    path = Path(str(resources.files("dra_driver.simulator").joinpath("examples", example)))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _table(pods: list[dict[str, Any]]) -> list[str]:
    """What containers got, in columns."""
    keys = ("name", "container", "claim", "request", "gpu_uuid")
    rows = [(*(str(pod[key] or "-") for key in keys), ", ".join(pod["cdi_devices"]) or "-") for pod in pods]
    lines = [_COLUMNS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _shown(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return "; ".join(_shown(item) for item in items) or "none"
    return str(value)
