"""Locks by name inside the process, and turns between two processes that share a plugin directory.

Inside: one lock a claim UID, then one a physical GPU, always taken in sorted order. Between: during a rolling update
the old and the new instance are alive together; only one of them works on claims at a time.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dra_driver.model.errors import LockTimeout

# Under the kubelet's limit of 45 s for one call, so that the pod's event carries our reason and not a time-out.
WAIT_SECONDS = 40.0
_POLL_SECONDS = 0.02


class KeyedLocks:
    """Mutexes that exist while someone holds or awaits them."""

    def __init__(self, what: str, wait_seconds: float = WAIT_SECONDS) -> None:
        self._what = what
        self._wait_seconds = wait_seconds
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, keys: Iterable[str]) -> Iterator[None]:
        """Hold all of ``keys``. Raises LockTimeout naming the key that was not to be had."""
        with ExitStack() as stack:
            for key in sorted(set(keys)):
                stack.enter_context(self._one(key))
            yield

    @contextmanager
    def _one(self, key: str) -> Iterator[None]:
        with self._guard:
            lock, users = self._locks.get(key) or (threading.Lock(), 0)
            self._locks[key] = (lock, users + 1)
        try:
            if not lock.acquire(timeout=self._wait_seconds):
                raise LockTimeout(
                    f"{self._what} {key} is still being worked on by another call after {self._wait_seconds:g} s"
                )
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)


class ProcessTurn:
    """A turn between processes: taken with the first call in flight here, given back with the last."""

    def __init__(self, path: Path, wait_seconds: float = WAIT_SECONDS) -> None:
        self._path = path
        self._wait_seconds = wait_seconds
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._guard = threading.Lock()
        self._users = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Work on claims. Raises LockTimeout when another process does not give the turn back."""
        with self._guard:
            if self._users == 0:
                self._lock()
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                if self._users == 0:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _lock(self) -> None:
        if not try_lock(self._descriptor):
            deadline = time.monotonic() + self._wait_seconds
            while not try_lock(self._descriptor):
                if time.monotonic() > deadline:
                    raise LockTimeout(
                        f"another instance of the driver held {self._path} for more than {self._wait_seconds:g} s"
                    )
                time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Let go of the file. The turn must not be taken."""
        os.close(self._descriptor)


def try_lock(descriptor: int, shared: bool = False) -> bool:
    """Take a file lock if it is free; it goes with the descriptor, so also with a killed process."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
