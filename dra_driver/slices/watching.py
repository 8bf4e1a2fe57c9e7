"""Watches this node's ResourceSlices and passes on what happens to them. Writes and judges nothing."""

import logging
import threading
import time
from collections.abc import Callable

from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.ports import Json, SliceStore
from dra_driver.slices.pacing import Retries, Timing, jittered

logger = logging.getLogger(__name__)


class SliceWatch:
    """One thread with one watch after the other.

    changed: called with (event type, object), never for bookmarks. stale: called when only a new list can
    tell what is there; the watch goes on once ``listed`` was called again.
    """

    def __init__(
        self,
        store: SliceStore,
        timing: Timing,
        changed: Callable[[str, Json], None],
        stale: Callable[[], None],
    ) -> None:
        self._store = store
        self._timing = timing
        self._changed = changed
        self._stale = stale
        self._state = threading.Condition()
        self._stopping = threading.Event()
        self._version: str | None = None
        self._thread = threading.Thread(target=self._loop, name="slices-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; it waits for the first list."""
        self._thread.start()

    def listed(self, version: str) -> None:
        """There was a list of this resourceVersion: where to watch from, unless a watch got further."""
        with self._state:
            if self._version is None:
                self._version = version
                self._state.notify_all()

    def stop(self) -> None:
        """Pass nothing on any more. A watch that is open ends with its connection, or with its time."""
        with self._state:
            self._stopping.set()
            self._state.notify_all()

    def _loop(self) -> None:
        retry = Retries(self._timing, self._timing.rewatch_s)
        while (version := self._await_version()) is not None:
            started = time.monotonic()
            try:
                self._watch(version)
            except ApiError as error:
                if time.monotonic() - started > self._timing.retry_most_s:
                    retry.reset()
                self._broken(error, retry.after(error))
            except Exception as error:
                # The thread must live, else nothing that others do would be seen any more.
                logger.exception("ResourceSlices: internal error in the watch")
                self._list_after(retry.after(error))
            else:
                retry.reset()
                self._stopping.wait(max(0.0, started + self._timing.rewatch_s - time.monotonic()))

    def _await_version(self) -> str | None:
        """The version to watch from, once there was a list; None when stopping."""
        with self._state:
            self._state.wait_for(lambda: self._version is not None or self._stopping.is_set())
            return None if self._stopping.is_set() else self._version

    def _watch(self, version: str) -> None:
        """Pass events on until this watch is over. Raises ApiError."""
        for kind, item in self._store.watch(version, jittered(self._timing.watch_s)):
            if self._stopping.is_set():
                return
            if kind != "BOOKMARK":
                self._changed(kind, item)
            with self._state:
                self._version = item["metadata"].get("resourceVersion") or self._version

    def _broken(self, error: ApiError, wait: float) -> None:
        """A connection that broke is taken up where it was; all else (410: too old, 403) needs a new list."""
        if isinstance(error, ApiUnreachable):
            logger.info("ResourceSlices: watch broke off, again in %.1f s: %s", wait, error)
            self._stopping.wait(wait)
            return
        logger.warning("ResourceSlices: watch ended, listing again in %.1f s: %s", wait, error)
        self._list_after(wait)

    def _list_after(self, wait: float) -> None:
        with self._state:
            self._version = None
        if not self._stopping.wait(wait):
            self._stale()
