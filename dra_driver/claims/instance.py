"""Keeps two instances of the driver apart that share a plugin directory.

One instance is the rule. During a rolling update, with sockets of their own, two may be alive: then both serve
claims in turns (``locks.ProcessTurn``), and only one writes ResourceSlices, until it ends.
"""

import contextlib
import os
from pathlib import Path

from dra_driver.hostfs import try_lock
from dra_driver.model.errors import StateError

_INSTANCE = "instance.lock"
_PUBLISHER = "publisher.lock"


class Instance:
    """This process's place in the plugin directory; all of it goes with the process, also when it is killed."""

    def __init__(self, directory: Path, shared: bool) -> None:
        """shared: another instance that is shared as well may be there (rolling update).

        Raises StateError naming the directory, and the process that is in it.
        """
        self.files = (directory / _INSTANCE, directory / _PUBLISHER)
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._instance, self._publisher = map(_open, self.files)
        except OSError as error:
            raise StateError(f"plugin directory {directory} cannot be used: {error.strerror}") from error
        if not try_lock(self._instance, shared=shared):
            holder = os.pread(self._instance, 64, 0).decode("ascii", "replace").strip() or "unknown"
            raise StateError(
                f"another instance of the driver (pid {holder}) uses {directory}; stop it, give this one another "
                "directory, or give each instance its --pod-uid for a rolling update"
            )
        os.truncate(self._instance, 0)
        os.pwrite(self._instance, f"{os.getpid()}\n".encode(), 0)

    def may_publish(self) -> bool:
        """Whether this instance is the one that writes ResourceSlices; once true it stays true."""
        return try_lock(self._publisher)

    def close(self) -> None:
        """Make room for another instance. Idempotent."""
        for descriptor in (self._publisher, self._instance):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
