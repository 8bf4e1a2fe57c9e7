"""Watches of the simulated API server: changes of a store as JSON lines, in one event loop. No HTTP here."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.routes import Target
from dra_driver.simulator.statuses import StatusError
from dra_driver.simulator.store import Change, Store, Stored

Json = dict[str, Any]

BOOKMARK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What one client wants to see: changes after ``since``, for ``seconds``."""

    target: Target
    since: int
    seconds: int
    bookmarks: bool
    by_field: Callable[[Json], bool]
    by_label: Callable[[Json], bool]

    def wants(self, stored: Stored | None) -> bool:
        """Whether an object lies inside the selectors."""
        if stored is None:
            return False
        namespace = stored.content["metadata"].get("namespace")
        if self.target.namespace and namespace != self.target.namespace:
            return False
        return self.by_field(stored.content) and self.by_label(stored.content)


class Watches:
    """All open watches of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._closing = False
        self._waiting: set[asyncio.Event] = set()

    def close(self) -> None:
        """End all watches. To be called in the event loop's thread."""
        self._closing = True
        for news in self._waiting:
            news.set()

    async def lines(self, watch: Watch) -> AsyncIterator[bytes]:
        """Events until the time is over or the server stops; a forgotten past is an ERROR event (410)."""
        end, since, target = time.monotonic() + watch.seconds, watch.since, watch.target
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        stop_listening = self._store.listen(wake)
        self._waiting.add(news)
        try:
            if since == 0:
                everything, since = self._store.snapshot(target.kind, target.namespace)
                for stored in filter(watch.wants, everything):
                    yield _line("ADDED", stored.text)
            while True:
                news.clear()
                for change in self._store.changes_since(target.kind, since):
                    since = change.version
                    if event := _event(change, watch):
                        yield event
                left = end - time.monotonic()
                if left <= 0 or self._closing:
                    break
                if not await _happens(news, min(left, BOOKMARK_SECONDS)) and watch.bookmarks:
                    yield _bookmark(target, max(since, self._store.version))
        except StatusError as error:
            yield _line("ERROR", json.dumps(error.body).encode())
        finally:
            self._waiting.discard(news)
            stop_listening()


async def _happens(news: asyncio.Event, timeout: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), timeout)
    except TimeoutError:
        return False
    return True


def _event(change: Change, watch: Watch) -> bytes | None:
    """A change as a watch with selectors sees it: objects come and go as they start and stop to match."""
    before = watch.wants(change.before)
    after = change.action != "DELETED" and watch.wants(change.after)
    if after:
        return _line("MODIFIED" if before else "ADDED", change.after.text)
    if not before or change.before is None:
        return None
    gone = {**change.before.content, "metadata": {**change.before.content["metadata"]}}
    gone["metadata"]["resourceVersion"] = str(change.version)
    return _line("DELETED", json.dumps(gone, separators=(",", ":"), ensure_ascii=False).encode())


def _line(action: str, text: bytes) -> bytes:
    return b'{"type":"' + action.encode() + b'","object":' + text + b"}\n"


def _bookmark(target: Target, version: int) -> bytes:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    obj = {"kind": target.kind.kind, "apiVersion": target.kind.api_version, "metadata": metadata}
    return _line("BOOKMARK", json.dumps(obj).encode())
