"""Runs the programs that a build needs, with a time limit and their own last words in the error."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.image.errors import ImageError

_SHOWN_LINES = 6


def find(name: str, remedy: str) -> Path:
    """Path of a program. Raises ImageError with the remedy when there is none."""
    found = shutil.which(name)
    if found is None:
        raise ImageError(f"{name} is not on PATH: {remedy}")
    return Path(found)


def run(command: Sequence[str | Path], seconds: float, environ: Mapping[str, str] | None = None) -> str:
    """Standard output. environ: the whole environment, ours when None. Raises ImageError."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environ, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"{name} did not end within {seconds:.0f} s") from error
    except OSError as error:
        raise ImageError(f"{name} cannot be run: {error}") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-_SHOWN_LINES:]
        raise ImageError(f"{name} ended with {done.returncode}: {' | '.join(words)}")
    return done.stdout
