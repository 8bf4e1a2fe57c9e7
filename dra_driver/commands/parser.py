"""The parser of the whole command line. Command modules are imported here, and only those asked for."""

import argparse
import importlib
import json
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from dra_driver import __version__
from dra_driver.features import closest
from dra_driver.model.errors import SettingError

PROGRAM: Final = "dra-driver"

_DESCRIPTION = """\
Share NVIDIA GPUs on Kubernetes: a Dynamic Resource Allocation kubelet plugin for gpu.nvidia.com,
and the tools to look at a node, check manifests and see the driver at work."""

_EPILOG = """\
examples:
  dra-driver demo                                  watch GPUs being shared on a simulated node
  dra-driver validate claim.yaml                   check claims and their GpuConfig before they are applied
  dra-driver inventory -o slices                   the ResourceSlices that this node would publish
  dra-driver doctor                                what is amiss on this node, and what to do
  dra-driver run --node-name "$NODE_NAME" --feature-gates TimeSlicingSettings=true

'dra-driver COMMAND --help' tells more. Exit codes: 0 done, 1 failed, 2 wrong usage or settings."""


class CommandModule(Protocol):
    """What a module in this package offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments, description and epilog."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it, and return the exit code."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its module and its line in the overview."""

    module: str
    summary: str

    def load(self) -> CommandModule:
        """Import the module."""
        module: Any = importlib.import_module(self.module)
        return module  # type: ignore[no-any-return]


COMMANDS: Final = {
    "run": Command("dra_driver.commands.run", "serve the kubelet of this node"),
    "inventory": Command("dra_driver.commands.inventory", "show the GPUs of this node, or of a simulated one"),
    "validate": Command("dra_driver.commands.validate", "check claims, templates, DeviceClasses and GpuConfigs"),
    "explain": Command("dra_driver.commands.explain", "say why a pod waits for its GPU, or why it has this one"),
    "migrate": Command("dra_driver.commands.migrate", "write what device plugin and platform settings are with DRA"),
    "doctor": Command("dra_driver.commands.doctor", "examine a node: what is amiss, and what to do"),
    "webhook": Command(
        "dra_driver.commands.webhook", "serve the API server: refuse wrong configs when claims are made"
    ),
    "status": Command("dra_driver.commands.status", "show the claims prepared on this node"),
    "demo": Command("dra_driver.commands.demo", "watch GPUs being shared, without a GPU or a cluster"),
    "mps-daemon": Command("dra_driver.commands.mps_daemon", "run one MPS control daemon; the driver does that"),
    "completion": Command("dra_driver.commands.completion", "print a completion script for a shell"),
}


class Parser(argparse.ArgumentParser):
    """Raises SettingError where argparse would print usage and exit, and takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """argparse's own findings: a flag without its value, a missing argument."""
        raise SettingError(f"{message}; see '{self.prog} --help'")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, and name the nearest flag for one that is unknown. Raises SettingError."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            command = commands_of(self).get(getattr(options, "command", None) or "", self)
            raise SettingError(_unknown_argument(unknown[0], command))
        return options


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps descriptions as written and the line breaks of help texts, and gives flags a wide column."""

    def __init__(self, prog: str, **options: Any) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, **{"max_help_position": 32, "width": min(columns, 100)} | options)

    def add_argument(self, action: argparse.Action) -> None:
        """Commands are indented one step more than argparse counts when it lays the columns out."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [line for part in text.splitlines() for line in super(_HelpFormatter, self)._split_lines(part, width)]


def build_parser(load: Collection[str] | None = None) -> Parser:
    """The whole tree. load: commands whose modules are imported for their arguments; None means all."""
    parser = Parser(prog=PROGRAM, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.summary, description=_sentence(command.summary))
        if load is None or name in load:
            command.load().configure(subparser)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, importing the module of its command only. Raises SettingError, or exits after help."""
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        near = closest(name, COMMANDS)
        hint = f", did you mean {near}?" if near else ","
        raise SettingError(f"unknown command {json.dumps(name)}{hint} commands: {', '.join(COMMANDS)}")
    parser = build_parser(load=() if name is None else (name,))
    options = parser.parse(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        raise SettingError(f"a command is required: {', '.join(COMMANDS)}")
    return options


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands by name."""
    return {name: choice for action in _subparsers(parser) for name, choice in action.choices.items()}


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """All flags a parser takes."""
    return list(parser._option_string_actions)


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[Any]:
    return (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def _unknown_argument(word: str, parser: argparse.ArgumentParser) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {json.dumps(word)}; see '{parser.prog} --help'"
    flag = word.partition("=")[0]
    near = closest(flag, flags_of(parser))
    return f"unknown flag {flag}{f', did you mean {near}?' if near else ';'} see '{parser.prog} --help'"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
