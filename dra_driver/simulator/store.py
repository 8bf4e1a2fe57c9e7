"""The objects of a simulated cluster, written and watched by the API server's rules. No network here.

What is stored nobody can change from outside: every answer is a fresh copy. Safe for threads.
"""

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dra_driver.simulator import objects, rules
from dra_driver.simulator.kinds import NAMESPACES, PODS, Kind
from dra_driver.simulator.selectors import field_match, label_match
from dra_driver.simulator.statuses import (
    already_exists,
    bad_request,
    conflict,
    expired,
    not_found,
)

Json = dict[str, Any]
T = TypeVar("T")

HISTORY = 20_000
"""Changes of one type that are remembered for watches."""

POD_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object. ``content`` is only for reading; ``text`` is what goes over the wire."""

    content: Json
    text: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One write. ``before`` is None for a creation; for a deletion ``after`` is the last state."""

    version: int
    action: str
    after: Stored
    before: Stored | None


class Store:
    """All objects of the cluster. Refusals are raised as StatusError."""

    def __init__(self, namespaces: tuple[str, ...] = ("default", "kube-system"), history: int = HISTORY) -> None:
        self._objects: dict[Kind, dict[tuple[str, str], Stored]] = {}
        self._changes: dict[Kind, deque[Change]] = {}
        self._forgotten: dict[Kind, int] = {}
        self._history = history
        self._version = 0
        self._written = threading.Condition(threading.RLock())
        self._listeners: list[Callable[[], None]] = []
        for name in namespaces:
            self.create(NAMESPACES, {"metadata": {"name": name}, "status": {"phase": "Active"}})

    @property
    def version(self) -> int:
        """The resourceVersion of the latest write."""
        return self._version

    # Reading.

    def get(self, kind: Kind, name: str, namespace: str = "") -> Json:
        """A copy of one object."""
        return _copy(self.stored(kind, name, namespace))

    def stored(self, kind: Kind, name: str, namespace: str = "") -> Stored:
        """One object as it is kept, for answers without a copy."""
        found = self._objects.get(kind, {}).get((namespace, name))
        if found is None:
            raise not_found(kind, name)
        return found

    def find(self, kind: Kind, namespace: str = "", *, fields: str = "", labels: str = "") -> list[Json]:
        """Copies of the matching objects by namespace and name; an empty namespace means all."""
        return [_copy(stored) for stored in self.snapshot(kind, namespace, fields=fields, labels=labels)[0]]

    def snapshot(
        self, kind: Kind, namespace: str = "", *, fields: str = "", labels: str = ""
    ) -> tuple[list[Stored], int]:
        """The matching objects as they are kept, and the resourceVersion that they belong to."""
        by_field, by_label = field_match(kind, fields), label_match(labels)
        with self._written:
            entries = sorted(self._objects.get(kind, {}).items())
            version = self._version
        chosen = [
            stored
            for (at, _), stored in entries
            if namespace in ("", at) and by_field(stored.content) and by_label(stored.content)
        ]
        return chosen, version

    # Writing.

    def create(self, kind: Kind, obj: Json, namespace: str = "") -> Json:
        """Store a new object; ``metadata.generateName`` is completed when there is no name."""
        new = objects.normal(kind, obj, namespace)
        metadata = new["metadata"]
        if not metadata.get("name"):
            metadata["name"] = objects.generated_name(kind, metadata)
        rules.prepare_new(kind, new)
        rules.check_new(kind, new)
        for owned in objects.SERVER_OWNED:
            metadata.pop(owned, None)
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=objects.now())
        if kind.counted:
            metadata["generation"] = 1
        key = (metadata.get("namespace", ""), metadata["name"])
        with self._written:
            if kind.namespaced and ("", key[0]) not in self._objects.get(NAMESPACES, {}):
                raise not_found(NAMESPACES, key[0])
            if key in self._objects.get(kind, {}):
                raise already_exists(kind, key[1])
            return _copy(self._write(kind, key, new, "ADDED"))

    def replace(self, kind: Kind, obj: Json, namespace: str = "", *, status: bool = False) -> Json:
        """PUT the object, or with ``status`` only its status. A resourceVersion inside must be current."""
        new = objects.normal(kind, obj, namespace)
        metadata = new["metadata"]
        name = metadata.get("name", "")
        with self._written:
            old = self.stored(kind, name, metadata.get("namespace", ""))
            sent = metadata.get("resourceVersion")
            if sent and sent != str(old.version):
                raise conflict(kind, name)
            if metadata.get("uid", (uid := old.content["metadata"]["uid"])) != uid:
                raise conflict(kind, name, _uid_text(metadata["uid"], uid))
            return self._update(kind, new, old, status)

    def patch(self, kind: Kind, name: str, patch: Json, namespace: str = "", *, status: bool = False) -> Json:
        """JSON merge patch (RFC 7386) of the object, or with ``status`` of its status only."""
        with self._written:
            old = self.stored(kind, name, namespace)
            new = objects.merge_patch(_copy(old), patch)
            if new["metadata"].get("name") != name:
                raise bad_request("the name of the object does not match the name on the URL")
            if new["metadata"].get("resourceVersion") != str(old.version):
                raise conflict(kind, name)
            return self._update(kind, new, old, status)

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> Json:
        """Delete, or mark for deletion while finalizers or a running pod hold it. Returns the last state."""
        with self._written:
            old = self.stored(kind, name, namespace)
            found = old.content["metadata"]["uid"]
            if uid is not None and uid != found:
                raise conflict(kind, name, _uid_text(uid, found))
            if resource_version is not None and resource_version != str(old.version):
                raise conflict(
                    kind,
                    name,
                    f"Precondition failed: ResourceVersion in precondition: {resource_version}, "
                    f"ResourceVersion in object meta: {old.version}",
                )
            if objects.held(kind, old.content, grace_seconds):
                return self._mark_deleted(kind, old, grace_seconds)
            return _copy(self._remove(kind, old))

    # Watching.

    def changes_since(self, kind: Kind, version: int) -> list[Change]:
        """Writes after a resourceVersion, oldest first. Raises StatusError 410 when they are forgotten."""
        with self._written:
            if version < self._forgotten.get(kind, 0):
                raise expired(version, self._forgotten[kind])
            found = []
            for change in reversed(self._changes.get(kind, ())):
                if change.version <= version:
                    break
                found.append(change)
        return found[::-1]

    def forget_history(self) -> None:
        """Act as after a compaction: no watch can go on from an older resourceVersion."""
        with self._written:
            for kind in list(self._objects):
                self._forgotten[kind] = self._version
                self._changes.get(kind, deque()).clear()

    def wait_change(self, version: int, timeout: float) -> int:
        """Wait at most ``timeout`` seconds for a write after ``version``; returns the latest version."""
        with self._written:
            self._written.wait_for(lambda: self._version > version, timeout)
            return self._version

    def wait_for(self, look: Callable[[], T], timeout: float) -> T | None:
        """Call ``look`` after each write until it gives something true; None when the time is over."""
        end = time.monotonic() + timeout
        while True:
            version = self._version
            if found := look():
                return found
            left = end - time.monotonic()
            if left <= 0:
                return None
            self.wait_change(version, min(left, 1.0))

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each write, from the writer's thread; returns what ends it."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    # Inside.

    def _update(self, kind: Kind, new: Json, old: Stored, status: bool) -> Json:
        new = objects.merge_parts(kind, new, old.content, status)
        rules.check_update(kind, new, old.content)
        if kind.counted and new.get("spec") != old.content.get("spec"):
            new["metadata"]["generation"] = old.content["metadata"].get("generation", 0) + 1
        if new == old.content:
            return _copy(old)
        key = (new["metadata"].get("namespace", ""), new["metadata"]["name"])
        written = self._write(kind, key, new, "MODIFIED")
        if objects.finished(new):
            written = self._remove(kind, written)
        return _copy(written)

    def _mark_deleted(self, kind: Kind, old: Stored, grace_seconds: int | None) -> Json:
        new = _copy(old)
        metadata = new["metadata"]
        metadata.setdefault("deletionTimestamp", objects.now())
        metadata.setdefault("deletionGracePeriodSeconds", POD_GRACE_SECONDS if kind is PODS else 0)
        if grace_seconds is not None:
            metadata["deletionGracePeriodSeconds"] = min(metadata["deletionGracePeriodSeconds"], grace_seconds)
        if new == old.content:
            return new
        key = (metadata.get("namespace", ""), metadata["name"])
        return _copy(self._write(kind, key, new, "MODIFIED"))

    def _write(self, kind: Kind, key: tuple[str, str], new: Json, action: str) -> Stored:
        before = self._objects.get(kind, {}).get(key)
        stored = self._numbered(new)
        self._objects.setdefault(kind, {})[key] = stored
        self._record(kind, Change(stored.version, action, stored, before))
        return stored

    def _remove(self, kind: Kind, old: Stored) -> Stored:
        metadata = old.content["metadata"]
        del self._objects[kind][(metadata.get("namespace", ""), metadata["name"])]
        last = self._numbered(_copy(old))
        self._record(kind, Change(last.version, "DELETED", last, old))
        return last

    def _numbered(self, content: Json) -> Stored:
        self._version += 1
        content["metadata"]["resourceVersion"] = str(self._version)
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        return Stored(content, text, self._version)

    def _record(self, kind: Kind, change: Change) -> None:
        changes = self._changes.setdefault(kind, deque())
        changes.append(change)
        if len(changes) > self._history:
            self._forgotten[kind] = changes.popleft().version
        self._written.notify_all()
        for callback in tuple(self._listeners):
            callback()


def _copy(stored: Stored) -> Json:
    copied: Json = json.loads(stored.text)
    return copied


def _uid_text(sent: str, found: str) -> str:
    return f"Precondition failed: UID in precondition: {sent}, UID in object meta: {found}"
