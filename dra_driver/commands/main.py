"""Entry point of ``dra-driver``: picks the command, turns errors into one line and an exit code."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from dra_driver.commands.parser import COMMANDS, PROGRAM, parse
from dra_driver.model.errors import DriverError, SettingError

FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""128 + SIGPIPE, what a shell shows for a program that the closed pipe ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code: 0 done, 1 failed, 2 wrong usage or settings.

    argv: without the program's name; the process's own when None. Never raises a DriverError.
    """
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except DriverError as error:
        print(f"{PROGRAM}: {_one_line(error)}", file=sys.stderr)  # noqa: T201
        return WRONG_USAGE if isinstance(error, SettingError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    try:
        options = parse(arguments)
    except SystemExit as done:  # argparse ends this way after --help and --version
        return done.code if isinstance(done.code, int) else 0
    return COMMANDS[options.command].load().run(options)


def _one_line(error: DriverError) -> str:
    return " ".join(str(error).split())


def _abandon_stdout() -> None:
    """Let the interpreter flush into nothing at exit, or it would complain about the pipe once more."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
