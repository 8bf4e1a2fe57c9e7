"""Events on the Node and on pods, written in the background.

Telling people must neither stop nor fail what it tells of.
"""

import datetime
import logging
import queue
import secrets
import threading
import time
from dataclasses import dataclass
from urllib.parse import quote

from dra_driver.cluster.connection import Connection
from dra_driver.cluster.pace import Pace
from dra_driver.model.claims import PodRef
from dra_driver.model.errors import ApiError
from dra_driver.ports import Json
from dra_driver_api.names import EVENT_COMPONENT

logger = logging.getLogger(__name__)

NAMESPACE = "default"
"""Where events about objects without a namespace live."""

MESSAGE_LIMIT = 1024
"""Most bytes of an event's message."""

_PATH = "/api/v1/namespaces/{}/events"
_TIMEOUT_S = 5.0
_WAITING = 64
_KNOWN = 256
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class _About:
    """The object that an event is about. namespace: where the event is, the object's own if it has one."""

    kind: str
    namespace: str
    name: str
    uid: str

    def reference(self) -> Json:
        """``involvedObject``."""
        own = {"namespace": self.namespace} if self.kind != "Node" else {}
        return {"apiVersion": "v1", "kind": self.kind, **own, "name": self.name, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class _Event:
    """What is told; equal ones are one event that is counted."""

    about: _About
    kind: str
    reason: str
    message: str

    @property
    def path(self) -> str:
        return _PATH.format(quote(self.about.namespace, safe=""))


@dataclass(slots=True)
class _Written:
    """An event in the API server: its name, how often it happened, when that was last written."""

    name: str
    count: int
    at: float


class ApiEvents:
    """EventSink and PodEventSink on an API server.

    The same event again within ``repeat_s`` is only counted; after it the stored event gets the new count. All
    events together are limited to a burst of 25, then one in ten seconds.
    """

    def __init__(self, connection: Connection, node_name: str, *, repeat_s: float = 60.0) -> None:
        self._connection = connection
        self._node_name = node_name
        self._repeat = repeat_s
        self._pace = Pace(0.1, 25)
        # The kubelet uses the name as UID for events about its Node; kubectl describe looks for both.
        self._node = _About("Node", NAMESPACE, node_name, node_name)
        self._known: dict[_Event, _Written] = {}
        self._queue: queue.Queue[_Event | None] = queue.Queue(_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def warning(self, reason: str, message: str) -> None:
        """Warning event on the Node. Returns at once and never raises."""
        self._put(_Event(self._node, "Warning", reason, cut(message)))

    def normal(self, reason: str, message: str) -> None:
        """Normal event on the Node. Returns at once and never raises."""
        self._put(_Event(self._node, "Normal", reason, cut(message)))

    def pod_warning(self, pod: PodRef, reason: str, message: str) -> None:
        """Warning event on a pod, in its namespace. Returns at once and never raises."""
        self._put(_Event(_About("Pod", pod.namespace, pod.name, pod.uid), "Warning", reason, cut(message)))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is waiting, as far as the time allows."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            try:
                self._queue.put(None, timeout=timeout_s)
            except queue.Full:
                return
            thread.join(timeout_s)

    def _put(self, event: _Event) -> None:
        about = event.about
        whom = "" if about == self._node else f" on {about.kind} {about.namespace}/{about.name}"
        logger.info("event %s %s%s: %s", event.kind, event.reason, whom, event.message)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="events", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            logger.warning("event %s not written: %d are waiting already", event.reason, _WAITING)

    def _loop(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._write(event)
            except ApiError as error:
                logger.warning("event %s not written: %s", event.reason, error)
            except Exception:
                logger.exception("event %s not written", event.reason)

    def _write(self, event: _Event) -> None:
        """Create the event, or raise the count of the stored one. Raises ApiError."""
        known = self._known.get(event)
        if known is not None:
            known.count += 1
            if time.monotonic() - known.at < self._repeat:
                return
        if not self._pace.try_take():
            logger.warning("event %s not written: too many events", event.reason)
            return
        if known is not None and self._count(event, known):
            return
        name = f"{event.about.name[:230].rstrip('-.')}.{secrets.token_hex(8)}"
        self._connection.request("POST", event.path, body=self._object(name, event), timeout_s=_TIMEOUT_S)
        if len(self._known) >= _KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[event] = _Written(name, 1, time.monotonic())

    def _count(self, event: _Event, known: _Written) -> bool:
        """Write the new count; False when the event has expired in the API server."""
        change = {"count": known.count, "lastTimestamp": _now()}
        try:
            self._connection.request("PATCH", f"{event.path}/{known.name}", body=change, timeout_s=_TIMEOUT_S)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        known.at = time.monotonic()
        return True

    def _object(self, name: str, event: _Event) -> Json:
        now = _now()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.about.namespace},
            "involvedObject": event.about.reference(),
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": EVENT_COMPONENT, "host": self._node_name},
            "reportingComponent": EVENT_COMPONENT,
            "reportingInstance": self._node_name[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def cut(message: str) -> str:
    """One line of at most 1,024 bytes, without half a character."""
    line = " ".join(message.split())
    return line.encode("utf-8", errors="replace")[:MESSAGE_LIMIT].decode("utf-8", errors="ignore")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
