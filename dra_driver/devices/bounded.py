"""A time limit for calls into a C library that has none: daemon threads do them, the caller stops waiting.

A call that never returns keeps its thread; when all threads are stuck, further calls fail at once instead of
piling up. Knows nothing of NVML.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class Bounded:
    """Runs calls on at most ``threads`` daemon threads, started when they are first needed."""

    def __init__(self, name: str, threads: int = 8) -> None:
        self._name = name
        self._limit = threads
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0

    def run(self, call: Callable[[], _T], seconds: float) -> _T:
        """The call's result or exception.

        Raises TimeoutError after ``seconds``, and at once when every thread hangs in an earlier call.
        """
        future: Future[_T] = Future()
        with self._lock:
            if self._busy >= self._limit:
                raise TimeoutError(f"{self._busy} earlier calls have not returned")
            self._busy += 1
            if self._busy > self._threads:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._jobs.put((future, call))
        try:
            return future.result(timeout=seconds)
        except TimeoutError:
            # The call's own TimeoutError must not be mistaken for ours.
            if future.done():
                raise
            raise TimeoutError(f"no answer within {seconds:g} s") from None

    def close(self) -> None:
        """Let idle threads end. Calls in flight finish; the object can be used again."""
        with self._lock:
            idle = self._threads - self._busy
            self._threads -= idle
        for _ in range(idle):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
                self._free()
                future.set_exception(error)
            else:
                self._free()
                future.set_result(result)
            # An idle thread must not keep the last answer alive.
            del future, call, job

    def _free(self) -> None:
        with self._lock:
            self._busy -= 1
