"""Stand-ins for programs of NVIDIA's container toolkit: scripts that say what a test wants them to say."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dra_driver.cdi.hook_program import HOOKS
from tests.driver_tree import VERSION, DriverTree

_HELP = """\
NAME:
   NVIDIA CDI Hook - Command to structure files for usage inside a container

USAGE:
   NVIDIA CDI Hook [global options] [command [command options]]

COMMANDS:
{commands}
   help, h              Shows a list of commands or help for one command

GLOBAL OPTIONS:
   --quiet        Suppress all output except for errors
"""

_GENERATOR = """\
#!{python}
import sys
with open({log!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
if {old} and "--device-id=none" in sys.argv:
    sys.exit("flag provided but not defined: -device-id")
output = next(a for a in sys.argv if a.startswith("--output=")).removeprefix("--output=")
with open(output, "w") as file:
    file.write({content!r})
print({saying!r})
sys.exit({code})
"""


def program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def hook(path: Path, subcommands: Iterable[str] = (*HOOKS, "chmod")) -> Path:
    """An nvidia-cdi-hook with these hooks; ``calls`` tells how often it was asked."""
    commands = "\n".join(f"   {name:<20}  What this hook does, at length" for name in subcommands)
    said = _HELP.format(commands=commands)
    return program(path, f'#!/bin/sh\necho "$@" >> "{_log(path)}"\ncat <<"END"\n{said}END\n')


def ctk(path: Path, document: Any, code: int = 0, saying: str = "", old: bool = False) -> Path:
    """An nvidia-ctk that gives this document (a text as it is); ``old``: of before the flag ``--device-id``."""
    content = document if isinstance(document, str) else json.dumps(document)
    text = _GENERATOR.format(
        python=sys.executable, old=old, content=content, saying=saying, code=code, log=str(_log(path))
    )
    return program(path, text)


def generated(tree: DriverTree, version: str = VERSION, hook_path: str = "/usr/bin/nvidia-cdi-hook") -> dict[str, Any]:
    """What nvidia-ctk might say of a tree: two libraries, a program, two hooks."""
    directory = tree.path(tree.layout.libraries)
    files = [directory / f"{name}.so.{version}" for name in ("libcuda", "libnvidia-ml")]
    files.append(tree.path(f"{tree.layout.binaries}/nvidia-smi"))
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    mounts = [
        {"hostPath": str(file), "containerPath": f"/{file.relative_to(tree.root)}", "options": options}
        for file in files
    ]
    void = {"hostPath": "/dev/null", "containerPath": "/var/run/nvidia-container-devices/void", "options": ["ro"]}
    name = Path(hook_path).name
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "none", "containerEdits": {"env": ["NVCT_EMPTY_DEVICE="]}}],
        "containerEdits": {
            "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": str(tree.node("nvidiactl"))}],
            "mounts": [*mounts, void],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": hook_path,
                    "args": [name, "update-ldcache", "--folder", "/usr/lib64"],
                    "env": ["NVIDIA_CTK_DEBUG=false"],
                },
                {"hookName": "createContainer", "path": hook_path, "args": [name, "hook-of-tomorrow"]},
            ],
        },
    }


def calls(path: Path) -> list[str]:
    """How a stand-in was called, a line a call."""
    log = _log(path)
    return log.read_text().splitlines() if log.exists() else []


def _log(path: Path) -> Path:
    """Not beside the program: its directory would look changed after each call."""
    return path.parent.parent / f"{path.name}.calls"
