"""Keeps the API server's ResourceSlices of this node equal to what the driver wants published.

The thread here compares and writes, that of ``watching`` tells it when. Nothing here knows HTTP (``cluster``)
or what a device is (``build``); what must change is decided in ``reconcile``.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum

from dra_driver.model.errors import ApiError
from dra_driver.ports import EventSink, Json, NodeReader, Readiness, SliceStore
from dra_driver.slices.build import SHARED_FIELD, PoolSlice
from dra_driver.slices.pacing import Contest, Retries, Timing
from dra_driver.slices.reconcile import Answers, Changes, Pool, dropped_gates, plan
from dra_driver.slices.reporting import Reporter
from dra_driver.slices.watching import SliceWatch

logger = logging.getLogger(__name__)


class Role(Enum):
    """Whose the slices of this node and driver are."""

    WRITES = "this instance writes them"
    STANDS_BY = "another instance of this driver writes them (rolling update)"
    STANDS_ASIDE = "another driver of this name is here"


class SlicePublisher:
    """Our own slice controller.

    ``publish`` says what shall be there; it is listed, compared and written at once. From then on foreign
    changes are undone after ``timing.debounce_s``, later when somebody else keeps rewriting. A restart with
    unchanged devices writes nothing. Stopping leaves the slices alone: a restart must not chase pods away.

    role: asked before each writing. One that stands aside first deletes what this process has published and nobody has
    changed since.
    """

    def __init__(
        self,
        store: SliceStore,
        node: NodeReader,
        node_name: str,
        events: EventSink,
        readiness: Readiness,
        *,
        role: Callable[[], Role] = lambda: Role.WRITES,
        timing: Timing | None = None,
    ) -> None:
        self._store = store
        self._node = node
        self._node_name = node_name
        self._role = role
        self._timing = timing or Timing()
        self._report = Reporter(events, readiness)
        self._retry = Retries(self._timing, self._timing.retry_first_s)
        self._contest = Contest(self._timing)
        self._answers = Answers()
        self._generation = 0
        self._node_uid = ""
        self._known: dict[str, str] = {}
        self._own: dict[str, str] = {}
        self._shares_dropped = False
        # Shared between the threads, guarded by the condition.
        self._state = threading.Condition()
        self._stopping = threading.Event()
        self._published = threading.Event()
        self._wanted: tuple[PoolSlice, ...] | None = None
        self._due: float | None = None
        self._must_list = False
        self._changed: dict[str, tuple[str, Json]] = {}
        self._thread = threading.Thread(target=self._sync_loop, name="slices-sync", daemon=True)
        self._watch = SliceWatch(store, self._timing, self._note, self._list_again)

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that must live for as long as the driver does."""
        return (self._thread,)

    @property
    def shares_dropped(self) -> bool:
        """Whether the API server took devices that are shared for whole ones, as last seen."""
        return self._shares_dropped

    def start(self) -> None:
        """Start the threads; ``publish`` may come before or after."""
        if not self._published.is_set():
            self._report.waiting()
        self._thread.start()
        self._watch.start()

    def publish(self, pool_slices: Iterable[PoolSlice]) -> None:
        """Set what shall be in the API server. Returns at once; what was wanted before changes nothing."""
        wanted = tuple(pool_slices)
        for note in (note for pool_slice in wanted for note in pool_slice.notes):
            logger.warning("ResourceSlices: %s", note)
        with self._state:
            if self._wanted is not None and [s.devices for s in wanted] == [s.devices for s in self._wanted]:
                return
            self._wanted = wanted
            self._published.clear()
            self._schedule(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Whether the API server held what was last wanted, or this instance stood by, within the time."""
        return self._published.wait(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop writing. An open watch only reads, and ends when its connection is closed. Idempotent."""
        with self._state:
            self._stopping.set()
            self._state.notify_all()
        self._watch.stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # The thread that writes.

    def _sync_loop(self) -> None:
        while self._await_due():
            try:
                self._turn()
            except ApiError as error:
                wait = self._retry.after(error)
                self._report.failed(error, wait)
                self._again(wait)
            except Exception as error:
                # The thread must live: a slice nobody repairs is worse than an error in the log.
                wait = self._retry.after(error)
                logger.exception("ResourceSlices: internal error, again in %.1f s", wait)
                self._again(wait)

    def _await_due(self) -> bool:
        """Sleep until there is something to do; False when stopping."""
        with self._state:
            while not self._stopping.is_set():
                now = time.monotonic()
                if self._wanted is not None and self._due is not None and self._due <= now:
                    self._due = None
                    return True
                self._state.wait(None if self._due is None or self._wanted is None else self._due - now)
        return False

    def _turn(self) -> None:
        """Leave it to another, or look whether there is reason to compare, and compare."""
        role = self._role()
        if role is Role.STANDS_ASIDE:
            self._withdraw()
            self._wait_for(self._report.standing_aside)
            return
        if role is Role.STANDS_BY:
            self._wait_for(self._report.standing_by)
            return
        with self._state:
            wanted = self._wanted or ()
            must_list, self._must_list = self._must_list, False
            changed, self._changed = self._changed, {}
        foreign = [event for event in changed.values() if self._is_foreign(event)]
        if not must_list and not foreign:
            return
        if foreign or self._retry.failures:
            # The Node may have been deleted and made anew; slices owned by the old one would be collected.
            self._node_uid = ""
        writes = self._sync(wanted)
        self._retry.reset()
        if foreign and writes:
            self._report.contested(self._contest.repaired(time.monotonic()), _writer(foreign[-1]))

    def _wait_for(self, report: Callable[[], None]) -> None:
        """It is another's turn to write: ask again in a while, and compare then."""
        report()
        self._published.set()
        with self._state:
            self._changed = {}
            self._schedule(self._timing.hold_poll_s)

    def _withdraw(self) -> None:
        """Delete the slices that are as this process wanted them; others are not its own. Raises ApiError."""
        if self._own:
            for item in self._store.list()[0]:
                if self._is_own(item):
                    self._store.delete(item)
        self._known, self._own = {}, {}

    def _sync(self, wanted: tuple[PoolSlice, ...]) -> int:
        """List, compare, write; the number of writes. Raises ApiError."""
        if not self._node_uid:
            self._node_uid = self._node.uid()
        stored, version = self._store.list()
        self._known = {item["metadata"]["name"]: _version(item) for item in stored}
        self._answers.retain(stored)
        pool = Pool(node_name=self._node_name, node_uid=self._node_uid, slices=wanted)
        changes = plan(pool, stored, self._answers, self._generation)
        unwanted = {item["metadata"]["name"] for item in (*changes.delete, *changes.replace)}
        # What an earlier turn wrote stays its own until it is written anew, should this turn fail on the way.
        self._own = {
            item["metadata"]["name"]: _version(item)
            for item in stored
            if item["metadata"]["name"] not in unwanted or self._is_own(item)
        }
        try:
            self._write(changes)
        finally:
            # The watch is opened after the writes, which are what a starting node waits for.
            self._watch.listed(version)
        self._generation = changes.generation
        writes = len(changes.delete) + len(changes.replace) + len(changes.create)
        devices = sum(len(pool_slice.devices) for pool_slice in wanted)
        with self._state:
            if self._wanted is wanted:
                self._published.set()
        self._report.published(len(wanted), devices, changes.generation, writes)
        return writes

    def _write(self, changes: Changes) -> None:
        """Obsolete slices go first, so that consumers never see two truths of one generation."""
        for item in changes.delete:
            self._store.delete(item)
            self._known.pop(item["metadata"]["name"], None)
        for item in changes.replace:
            self._keep(item, self._store.replace(item))
        for item in changes.create:
            self._keep(item, self._store.create(item))

    def _keep(self, wanted: Json, stored: Json) -> None:
        name = stored["metadata"]["name"]
        self._known[name] = self._own[name] = _version(stored)
        self._answers.keep(wanted, stored)
        gates = dropped_gates(wanted, stored)
        if any(device.get(SHARED_FIELD) for device in wanted["spec"]["devices"]):
            self._shares_dropped = SHARED_FIELD in gates
        if gates:
            self._report.dropped(gates)

    def _is_own(self, item: Json) -> bool:
        """Whether a slice is as this process has written or wanted it."""
        return self._own.get(item["metadata"]["name"]) == _version(item)

    def _is_foreign(self, event: tuple[str, Json]) -> bool:
        """Whether a watch event tells of a change that this thread did not make or has not seen."""
        kind, item = event
        known = self._known.get(item["metadata"]["name"])
        return known is not None if kind == "DELETED" else known != _version(item)

    # Called by the watch.

    def _note(self, kind: str, item: Json) -> None:
        """A slice changed: have it looked at soon. What waits for a retry already is not hurried."""
        with self._state:
            self._changed[item["metadata"]["name"]] = (kind, item)
            if self._due is None:
                self._due = time.monotonic() + self._contest.wait(time.monotonic())
                self._state.notify_all()

    def _list_again(self) -> None:
        with self._state:
            self._must_list = True
            if self._due is None:
                self._due = time.monotonic()
                self._state.notify_all()

    def _again(self, wait: float) -> None:
        """Compare anew after ``wait`` seconds, unless something more urgent was wanted meanwhile."""
        with self._state:
            self._schedule(wait)

    def _schedule(self, wait: float) -> None:
        """With the condition held: list and compare in ``wait`` seconds."""
        self._must_list = True
        self._due = time.monotonic() + wait
        self._state.notify_all()


def _version(item: Json) -> str:
    return str(item["metadata"].get("resourceVersion", ""))


def _writer(event: tuple[str, Json]) -> str:
    """Who made a change, as far as the API server tells."""
    kind, item = event
    if kind == "DELETED":
        return "somebody who deleted it"
    managers = [entry.get("manager") for entry in item["metadata"].get("managedFields") or []]
    return next((str(manager) for manager in reversed(managers) if manager), "an unknown writer")
