"""How many claims are worked on at a time: a lane for each operation, so that neither waits for the other.

Knows neither gRPC nor what the work is.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from dra_driver.model.errors import LockTimeout

CALLS: Final = 128
"""Calls that may wait in a lane; the kubelet makes one a pod and runs 110 pods unless told otherwise."""

WAIT_SECONDS: Final = 30.0
"""Longest wait for a place; with the work itself it has to end before the kubelet's 45 s for a call."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Lane:
    """``operation``: what is done here, ``prepare`` or ``unprepare``."""

    def __init__(
        self,
        operation: str,
        count_error: Callable[[str], None],
        places: int,
        *,
        calls: int = CALLS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """places: claims worked on at a time. calls: calls inside at a time. count_error: takes an error's kind."""
        self.operation = operation
        self.count_error = count_error
        self._places = places
        self._calls = threading.Semaphore(calls)
        self._calls_most = calls
        self._wait_seconds = wait_seconds
        self._busy = 0
        self._closed = False
        self._changed = threading.Condition()
        # Apart from the pool that takes calls: a call waits for its claims, else it might block itself.
        self._pool = ThreadPoolExecutor(places, thread_name_prefix=f"{operation}-claim")

    @contextmanager
    def call(self) -> Iterator[bool]:
        """Whether the call may come in: refused at once when too many wait, so that the server's threads last."""
        admitted = self._calls.acquire(blocking=False)
        try:
            yield admitted
        finally:
            if admitted:
                self._calls.release()

    @property
    def full(self) -> LockTimeout:
        """What a claim of a refused call is told."""
        return LockTimeout(f"{self._calls_most} calls to {self.operation} are waiting already; the kubelet asks again")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places. Raises LockTimeout when none gets free in time, or the lane closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._busy < self._places, self._wait_seconds)
            if self._closed:
                raise LockTimeout(f"the driver is stopping and begins to {self.operation} nothing more")
            if self._busy >= self._places:
                raise LockTimeout(
                    f"{self._places} claims took longer than {self._wait_seconds:g} s to {self.operation} and kept "
                    "this one waiting; the kubelet asks again"
                )
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify()

    def map(self, work: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """Results in the items' order, worked out side by side."""
        return self._pool.map(work, items)

    def close(self) -> None:
        """Let nothing more begin; what runs goes on. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.shutdown(wait=False)
