"""Locks by name inside the process, and turns between two processes that share a plugin directory.

Inside: one lock a claim UID, then one a physical GPU, always taken in sorted order. Between: during a rolling update
the old and the new instance are alive together; only one of them works on claims at a time.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from dra_driver.hostfs import try_lock
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
    """A turn between processes: taken with the first call in flight here, given back with the last.

    A process that waits says so with a second lock, and the one that has the turn then lets no further call join, so
    that a busy instance cannot keep another from its turn.
    """

    def __init__(self, path: Path, wait_seconds: float = WAIT_SECONDS) -> None:
        self._path = path
        self._wait_seconds = wait_seconds
        self.files = (path, path.with_name(path.name + ".wish"))
        self._turn, self._wish = map(_lock_file, self.files)
        self._state = threading.Condition()
        self._users = 0
        self._waiting = 0
        self._calls = 0

    @property
    def taken(self) -> bool:
        """Whether this process has it."""
        return self._users > 0

    @property
    def in_use(self) -> bool:
        """Whether a call is in flight here, be it without the turn for a while: it comes back for it."""
        return self._calls > 0

    @contextmanager
    def take(self) -> Iterator["Held"]:
        """Work on claims. Raises LockTimeout when another process does not give the turn back."""
        held = Held(self)
        self._count(1)
        try:
            held.enter()
            yield held
        finally:
            held.leave()
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._state:
            self._calls += more

    def enter(self) -> None:
        """Join, or wait for the turn. Raises LockTimeout. For ``Held``, which balances it."""
        with self._state:
            if not self._join():
                self._wait()
            self._users += 1

    def leave(self) -> None:
        """The opposite of a successful ``enter``."""
        with self._state:
            self._users -= 1
            if self._users == 0:
                fcntl.flock(self._turn, fcntl.LOCK_UN)
                self._state.notify_all()

    def _join(self) -> bool:
        """Under the condition: whether this process has the turn, or has it now."""
        if self._waiting or self._wished_elsewhere():
            return False
        return self._users > 0 or try_lock(self._turn)

    def _wished_elsewhere(self) -> bool:
        if not try_lock(self._wish):
            return True
        fcntl.flock(self._wish, fcntl.LOCK_UN)
        return False

    def _wait(self) -> None:
        deadline = time.monotonic() + self._wait_seconds
        self._waiting += 1
        try:
            if not self._users and self._wished_elsewhere():
                self._state.wait(2 * _POLL_SECONDS)  # the other side looks this often, and was first
            while True:
                # Shared, since both sides may wait; with users here, the wish is the other side's.
                if not self._users:
                    try_lock(self._wish, shared=True)
                    if try_lock(self._turn):
                        return
                if time.monotonic() > deadline:
                    raise LockTimeout(
                        f"another instance of the driver held {self._path} for more than {self._wait_seconds:g} s"
                    )
                self._state.wait(_POLL_SECONDS)
                if self._users and not self._wished_elsewhere():
                    return
        finally:
            self._waiting -= 1
            if not self._waiting:
                fcntl.flock(self._wish, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the files. The turn must not be taken."""
        os.close(self._turn)
        os.close(self._wish)


class ClaimLocks:
    """The locks of one node's claims, in the order in which they are taken: the claim's, the turn, its cards'."""

    def __init__(self, turn: "ProcessTurn") -> None:
        self._turn = turn
        self._claims = KeyedLocks("claim")
        self._cards = KeyedLocks("GPU")

    @contextmanager
    def claim(self, uid: str) -> Iterator["Held"]:
        """Work on a claim, with the turn. Raises LockTimeout."""
        with self._claims.hold([uid]), self._turn.take() as turn:
            yield turn

    def cards(self, uuids: Iterable[str]) -> AbstractContextManager[None]:
        """Change these physical GPUs. Raises LockTimeout."""
        return self._cards.hold(uuids)


class Held:
    """The turn as one call has it."""

    def __init__(self, turn: ProcessTurn) -> None:
        self._turn = turn
        self._held = False

    @property
    def held(self) -> bool:
        """Whether the call has it now."""
        return self._held

    def enter(self) -> None:
        """Take it. Raises LockTimeout."""
        self._turn.enter()
        self._held = True

    def leave(self) -> None:
        """Give it back if it is held."""
        if self._held:
            self._held = False
            self._turn.leave()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Be without the turn for what takes long and needs no lock of others.

        Another process may have worked on the same claim in the meantime. Raises LockTimeout when the turn is not to
        be had again; the call must end then.
        """
        self.leave()
        try:
            yield
        finally:
            self.enter()


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
