"""``dra-driver completion``: completion scripts for shells, made by shtab from the parser itself."""

import argparse

from dra_driver.commands.output import write

SHELLS = ("bash", "zsh", "tcsh")

_EPILOG = """\
examples:
  dra-driver completion bash > /etc/bash_completion.d/dra-driver
  dra-driver completion zsh > "${fpath[1]}/_dra-driver"
  source <(dra-driver completion bash)"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the shell's name."""
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete for")


def run(options: argparse.Namespace) -> int:
    """Print the script. Needs every command's arguments, so it loads all command modules."""
    import shtab

    from dra_driver.commands.parser import build_parser, commands_of

    parser = build_parser()
    for command in commands_of(parser).values():
        for action in command._actions:
            if action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in ("FILE", "NAME|FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    write(shtab.complete(parser, shell=options.shell))
    return 0
