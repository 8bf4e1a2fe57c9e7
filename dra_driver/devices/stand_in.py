"""Makes the text of a simulated node's programs: ``stand_in_smi`` and ``stand_in_mps``, run as its scenario says.

Python scripts, since a container image of the driver has this interpreter and need not have a shell.
"""

import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.devices import stand_in_mps, stand_in_smi
from dra_driver.devices.scenario import Mps, Tool, ToolBehaviour

_FLAGS: Final = "-IS"
"""No environment, no user's files, no site-packages: half of the time that an interpreter takes to start."""

_MAX_LINE: Final = 127
"""Of a script's first line, older kernels (before 5.1) read no more."""


def script(tool: Tool, uuids: Sequence[str], python: str = "") -> str:
    """The script for a scenario's tool; ``uuids`` by position, to name the GPUs that misbehave.

    python: path of the interpreter, '' for the one that runs this.
    """
    program = Path(stand_in_smi.__file__).read_text(encoding="utf-8")
    behaviours = [_behaviour(behaviour, uuids) for behaviour in tool.behaviours]
    start = _start(python or str(Path(sys.executable).resolve()))
    return f"{start}{program}\n\nmain({tool.delay_ms / 1000!r}, {behaviours!r})\n"


def mps_script(mps: Mps, python: str = "") -> str:
    """The script for a scenario's nvidia-cuda-mps-control, and -server: it does what it is called by."""
    program = Path(stand_in_mps.__file__).read_text(encoding="utf-8")
    start = _start(python or str(Path(sys.executable).resolve()))
    return f"{start}{program}\n\nmain({mps.model_dump(exclude={'missing'})!r})\n"


def _start(python: str) -> str:
    line = f"#!{python} {_FLAGS}\n"
    if len(line.encode()) <= _MAX_LINE and not any(character.isspace() for character in python):
        return line
    # Such a path needs a shell, and is of a machine that has one. To Python these lines are a string.
    return f"#!/bin/sh\n'''exec' {shlex.quote(python)} {_FLAGS} \"$0\" \"$@\"\n' '''\n"


def _behaviour(behaviour: ToolBehaviour, uuids: Sequence[str]) -> dict[str, Any]:
    """A ``stand_in_smi.Behaviour``."""
    return behaviour.model_dump(exclude={"gpu"}) | {
        "uuid": "" if behaviour.gpu is None else uuids[behaviour.gpu],
        "calls": behaviour.calls or [],
        "signal": signal.Signals[f"SIG{behaviour.signal}"].value if behaviour.signal else 0,
    }
