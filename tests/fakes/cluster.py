"""An API server's ResourceSlices, Node and events in memory, with watches and injected failures."""

import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

from dra_driver.model.errors import ApiError
from dra_driver.ports import Json


class FakeNode:
    """NodeReader of one Node; ``value`` may be changed, as when a Node is deleted and made anew."""

    def __init__(self, value: str = "node-uid-1") -> None:
        self.value = value
        self.error: ApiError | None = None
        self.reads = 0

    def uid(self) -> str:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.value


class FakeEvents:
    """EventSink that keeps (type, reason, message)."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, str]] = []

    def warning(self, reason: str, message: str) -> None:
        self.written.append(("Warning", reason, message))

    def normal(self, reason: str, message: str) -> None:
        self.written.append(("Normal", reason, message))

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.written]


class FakeReadiness:
    """Readiness that keeps the last state of each condition."""

    def __init__(self) -> None:
        self.conditions: dict[str, tuple[bool, str]] = {}

    def set(self, condition: str, ok: bool, message: str = "") -> None:
        self.conditions[condition] = (ok, message)


class FakeSliceStore:
    """SliceStore with the rules of an API server: versions, conflicts, preconditions, watches from a version.

    failures: verb (``list``, ``create``, ``replace``, ``delete``, ``watch``) -> errors of the next calls.
    stored_as: what the server makes of a spec before it is stored (drop fields, fill in defaults).
    calls: every call that got this far, as verbs. oldest: a watch from before this version gets 410.
    """

    def __init__(self) -> None:
        self.failures: dict[str, list[ApiError]] = {}
        self.stored_as: Callable[[Json], Json] = lambda spec: spec
        self.calls: list[str] = []
        self.oldest = 0
        self._objects: dict[str, Json] = {}
        self._log: list[tuple[int, str, Json]] = []
        self._counter = itertools.count(1)
        self._version = 0
        self._changed = threading.Condition()
        self._broken: ApiError | None = None
        self._closed = False

    # The seam.

    def list(self) -> tuple[list[Json], str]:
        with self._changed:
            self._call("list")
            return copy.deepcopy(list(self._objects.values())), str(self._version)

    def watch(self, resource_version: str, timeout_seconds: float) -> Iterator[tuple[str, Json]]:
        with self._changed:
            self._call("watch")
            if int(resource_version) < self.oldest:
                raise ApiError("too old resource version", 410)
        at = int(resource_version)
        while True:
            with self._changed:
                arrived = self._changed.wait_for(lambda at=at: self._news(at), timeout_seconds)  # type: ignore[misc]
                if self._broken is not None:
                    error, self._broken = self._broken, None
                    raise error
                if self._closed or not arrived:
                    return
                news = copy.deepcopy(self._after(at))
            for version, kind, item in news:
                at = version
                yield kind, item

    def create(self, resource_slice: Json) -> Json:
        with self._changed:
            self._call("create")
            number = next(self._counter)
            metadata = copy.deepcopy(resource_slice["metadata"])
            metadata |= {"name": f"{metadata.pop('generateName')}{number:05x}", "uid": f"slice-uid-{number}"}
            return self._store("ADDED", {**resource_slice, "metadata": metadata})

    def replace(self, resource_slice: Json) -> Json:
        with self._changed:
            self._call("replace")
            self._check(resource_slice)
            return self._store("MODIFIED", resource_slice)

    def delete(self, resource_slice: Json) -> None:
        with self._changed:
            self._call("delete")
            if resource_slice["metadata"]["name"] in self._objects:
                self._check(resource_slice)
                self._remove(resource_slice["metadata"]["name"])

    # What tests do behind the driver's back.

    @property
    def objects(self) -> Sequence[Json]:
        """What is stored, in name order."""
        with self._changed:
            return [copy.deepcopy(self._objects[name]) for name in sorted(self._objects)]

    @property
    def writes(self) -> Sequence[str]:
        """The writing calls so far."""
        return [verb for verb in self.calls if verb in ("create", "replace", "delete")]

    def put(self, item: Json) -> None:
        """Store an object as somebody else would."""
        with self._changed:
            self._store("MODIFIED" if item["metadata"]["name"] in self._objects else "ADDED", item)

    def remove_all(self) -> None:
        """What the kubelet does when it starts."""
        with self._changed:
            for name in list(self._objects):
                self._remove(name)

    def break_watch(self, error: ApiError) -> None:
        """End the watch that is open with an error."""
        with self._changed:
            self._broken = error
            self._changed.notify_all()

    def close(self) -> None:
        """End all watches for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _news(self, version: int) -> bool:
        return self._closed or self._broken is not None or bool(self._after(version))

    def _after(self, version: int) -> Sequence[tuple[int, str, Json]]:
        return [entry for entry in self._log if entry[0] > version]

    def _call(self, verb: str) -> None:
        self.calls.append(verb)
        errors = self.failures.get(verb)
        if errors:
            raise errors.pop(0)

    def _check(self, item: Json) -> None:
        name = item["metadata"]["name"]
        if name not in self._objects:
            raise ApiError(f'resourceslices "{name}" not found', 404)
        if item["metadata"]["resourceVersion"] != self._objects[name]["metadata"]["resourceVersion"]:
            raise ApiError(f'Operation cannot be fulfilled on "{name}": modified', 409)

    def _store(self, kind: str, item: Json) -> Json:
        self._version += 1
        stored = copy.deepcopy(item)
        stored["metadata"]["resourceVersion"] = str(self._version)
        stored["spec"] = self.stored_as(stored["spec"])
        if not stored["spec"].get("devices"):
            stored["spec"].pop("devices", None)
        self._objects[stored["metadata"]["name"]] = stored
        self._announce(kind, stored)
        return copy.deepcopy(stored)

    def _remove(self, name: str) -> None:
        self._version += 1
        item = self._objects.pop(name)
        item["metadata"]["resourceVersion"] = str(self._version)
        self._announce("DELETED", item)

    def _announce(self, kind: str, item: Json) -> None:
        self._log.append((self._version, kind, copy.deepcopy(item)))
        self._changed.notify_all()
