"""The sweep of claims whose object is gone, now and then."""

import logging
import threading
from collections.abc import Callable, Mapping

from dra_driver.claims.allocation import read_allocation
from dra_driver.claims.lifecycle import Edges
from dra_driver.claims.planning import is_for
from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import Device
from dra_driver.model.errors import (
    BadConfig,
    ClaimNotFound,
    DriverError,
    DriverNotReady,
    NotAllocated,
    UnknownDevice,
)
from dra_driver.model.records import ClaimRecord, ClaimState

log = logging.getLogger(__name__)


class Sweep:
    """Unprepares claims whose object is gone from the API server, or allocated anew, now and then.

    The kubelet unprepares what it knows of; this is for what it forgot. A started claim goes at once. A completed
    one goes when two sweeps in a row found it gone, since its containers may still be ending.

    rebuild: given the devices, takes claims over that recovery could not ask the API server about.
    """

    def __init__(
        self,
        edges: Edges,
        pool: str,
        unprepare: Callable[[ClaimRef], None],
        rebuild: Callable[[Mapping[str, Device]], None],
        interval_seconds: float = 600.0,
    ) -> None:
        self._store = edges.store
        self._api = edges.api
        self._pool = pool
        self._unprepare = unprepare
        self._rebuild = rebuild
        self._inventory = edges.inventory
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._gone: set[str] = set()
        self._thread = threading.Thread(target=self._loop, name="claim-sweep", daemon=True)

    def start(self) -> None:
        """Sweep in the background, first at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while True:
            try:
                self.run()
            except DriverError as error:
                log.warning("sweep of claims whose object is gone: %s", error)
            if self._stop.wait(self._interval_seconds):
                return

    def run(self) -> None:
        """One sweep. Raises ApiError or StateError when it cannot tell."""
        self._ask_again()
        gone = set()
        for record in list(self._store.records()):
            if self._stop.is_set():
                return
            if self._belongs_here(record):
                continue
            if record.state is not ClaimState.COMPLETED or record.claim.uid in self._gone:
                self._take_back(record)
            else:
                gone.add(record.claim.uid)
        self._gone = gone

    def _ask_again(self) -> None:
        """A claim that is known by its UID alone holds its devices whole, whatever it has of them."""
        if all(record.claim.name for record in self._store.records()):
            return
        try:
            self._rebuild(self._inventory().devices)
        except DriverNotReady as error:
            log.debug("claims that are known by UID alone stay so: %s", error)

    def _belongs_here(self, record: ClaimRecord) -> bool:
        """Whether the claim is still there and allocated to the devices that it holds."""
        claim = record.claim
        if not claim.name:
            return any(found["metadata"]["uid"] == claim.uid for found in self._api.list_allocated())
        try:
            allocation = read_allocation(claim, self._api.get(claim), self._pool)
        except (ClaimNotFound, NotAllocated, UnknownDevice):
            return False
        except BadConfig:
            return True
        return is_for(record, allocation)

    def _take_back(self, record: ClaimRecord) -> None:
        log.warning("claim %s is gone, or its allocation is not this any more: unpreparing it", record.claim)
        try:
            self._unprepare(record.claim)
        except DriverError as error:
            log.warning("claim %s: %s", record.claim, error)
