"""Runs a program to its end, with a time limit, and makes one line of what went wrong."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hack.cluster.errors import ClusterError

_SHOWN: Final = 1500


def run(
    argv: Sequence[str],
    seconds: float,
    *,
    text: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run and return its output. text: its input; env: on top of this process's own.

    Raises ClusterError when it cannot be started, takes longer, or ends with another code than 0.
    """
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv,
            input=text,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join([name, *argv[1:]])}: not done within {seconds:g} s") from error
    except OSError as error:
        raise ClusterError(f"{argv[0]}: {error.strerror or error}") from error
    if done.returncode != 0:
        said = " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines())[-_SHOWN:]
        raise ClusterError(f"{' '.join([name, *argv[1:]])}: exit code {done.returncode}: {said or 'no output'}")
    return done.stdout
