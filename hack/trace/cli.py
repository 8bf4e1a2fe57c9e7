"""The command line of the recorder."""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.model.errors import DriverError
from hack.cluster.cluster import DIRECTORY, Cluster
from hack.cluster.errors import ClusterError
from hack.trace import events
from hack.trace.events import Event
from hack.trace.files import Files
from hack.trace.relay import Relay
from hack.trace.story import KUBELET_REGISTRY, Story

_DESCRIPTION: Final = "Record how kubelet and driver talk."
_RELAY: Final = """\
Stand between the kubelet of this node and a driver, and print each call until SIGTERM or Ctrl-C. Start the driver with
--kubelet-registrar-directory-path=REGISTRY."""
_STORY: Final = """\
Play the story of docs/kubelet.md on a cluster of hack/cluster without a driver, and print the record. Its API server is
started again, with an audit log."""
_EPILOG: Final = """\
examples:
  python -m hack.trace relay /var/lib/kubelet/trace --files /var/run/cdi
  python -m hack.cluster up && python -m hack.trace story

Exit codes: 0 done, 1 failed, 2 wrong usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except (ClusterError, DriverError, OSError) as error:
        print(f"trace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m hack.trace", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=style
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    relay = commands.add_parser("relay", help="record one node", description=_RELAY, formatter_class=style)
    relay.add_argument("registry", type=Path, metavar="REGISTRY", help="where the driver registers, made when missing")
    relay.add_argument(
        "--kubelet", type=Path, default=Path(KUBELET_REGISTRY), metavar="DIR", help=f"default: {KUBELET_REGISTRY}"
    )
    relay.add_argument(
        "--files", type=Path, action="append", default=[], metavar="DIR", help="tell what happens to files in it, too"
    )
    relay.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    relay.set_defaults(run=_relay)
    story = commands.add_parser("story", help="the story of the page", description=_STORY, formatter_class=style)
    story.add_argument("--dir", type=Path, default=DIRECTORY, metavar="DIR", help=f"default: {DIRECTORY}")
    story.set_defaults(run=_story)
    return parser


def _relay(options: argparse.Namespace) -> int:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    printer = _Printer(options.output)
    relay = Relay(options.registry, options.kubelet, printer.print)
    Files(options.files, printer.print).start(stopping)
    relay.run(stopping)
    return 0


def _story(options: argparse.Namespace) -> int:
    for scene in Story(Cluster.attach(options.dir)).play():
        print(f"\n## {scene.title}\n")
        for event in events.story(scene.events):
            print(events.show(event, scene.began), flush=True)
    return 0


class _Printer:
    """Prints events as they come, from many threads."""

    def __init__(self, output: str) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._start: float | None = None

    def print(self, event: Event) -> None:
        with self._lock:
            if self._start is None:
                self._start = event.at
            print(events.dump(event) if self._output == "json" else events.show(event, self._start), flush=True)
