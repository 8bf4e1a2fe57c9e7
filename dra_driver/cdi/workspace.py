"""A directory for what is still in the making, beside the place where it will be, so that a rename finishes it."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def workspace(directory: Path, name: str) -> Iterator[Path]:
    """A fresh directory ``.<name>.<random>`` below ``directory``, removed at the end with all that is in it.

    What earlier runs left under such a name is removed first, as long as nobody else is at work: containers may share
    the directory, and each of them has the same process id. Raises OSError.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in directory.glob(f".{name}.*"):
                _remove(left)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=directory))
        try:
            yield fresh
        finally:
            _remove(fresh)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """As far as that is possible: what stays is swept another time, and must not hide why the work failed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
