"""Keeps the inventory current: looks until there are GPUs, then looks again now and then, and tells who asked.

Knows no NVML and no Kubernetes object: a DeviceSource is looked at, listeners get an Inventory.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.model.devices import Inventory
from dra_driver.model.errors import DriverError
from dra_driver.ports import DeviceSource, EventSink, Readiness

log = logging.getLogger(__name__)

CONDITION: Final = "devices"
EVENT_REPLACED: Final = "GPUReplaced"

Listener = Callable[[Inventory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between looks: ``interval`` once there are GPUs, else from ``first`` doubling up to ``longest``."""

    interval: float = 30.0
    first: float = 0.5
    longest: float = 30.0


class Discovery:
    """Looks at the node in a thread of its own; ``look`` does it once in the caller's.

    on_change is called with each inventory whose devices differ from the last one that it took; when it raises,
    that inventory is offered again at the next look. Nothing is offered before the first GPU was seen.
    """

    def __init__(
        self,
        source: DeviceSource,
        readiness: Readiness,
        on_change: Listener,
        events: EventSink | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._source = source
        self._readiness = readiness
        self._on_change = on_change
        self._events = events
        self._pace = pace or Pace()
        self._inventory: Inventory | None = None
        self._taken: Inventory | None = None
        self._complaint: str | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def inventory(self) -> Inventory | None:
        """What the last look that succeeded found; None until a GPU was seen."""
        return self._inventory

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that must live for as long as the driver does; none before ``start``."""
        return () if self._thread is None else (self._thread,)

    def look(self) -> bool:
        """Look once; whether there are GPUs and on_change took them.

        A failure is told in the log and in readiness, never raised, and the last inventory stays.
        """
        with self._lock:
            found = self._scan()
            if found is None:
                return False
            if not found.gpus:
                self._complain("no GPU is bound to the NVIDIA driver; looking again")
                if self._inventory is None:
                    # The driver was loaded a moment ago and its cards come later: an empty answer is no news.
                    return False
            before, self._inventory = self._inventory, found
            self._report(before, found)
            return self._offer(found) and bool(found.gpus)

    def start(self) -> None:
        """Look in a thread: at once when nothing is known yet, else after the interval."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
            self._thread.start()

    def look_soon(self) -> None:
        """Have the thread look now, e.g. since a GPU turned out to be lost."""
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; waits at most ``timeout_s`` for a look in progress. Idempotent."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        delay = self._pace.first
        good = bool(self._inventory and self._inventory.gpus)
        wait = self._pace.interval if good else 0.0
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            if self._stopping:
                return
            if self.look():
                delay, wait = self._pace.first, self._pace.interval
            else:
                wait, delay = delay, min(2 * delay, self._pace.longest)

    def _scan(self) -> Inventory | None:
        try:
            return self._source.scan()
        except DriverError as error:
            self._complain(f"{error}; looking again{self._kept()}")
        except Exception:
            log.exception("looking for GPUs failed")
            self._complain(f"looking for GPUs failed, see the log; looking again{self._kept()}")
        return None

    def _kept(self) -> str:
        return " (the last inventory is kept)" if self._inventory is not None else ""

    def _complain(self, message: str) -> None:
        """Say once per change why there are no GPUs, or why the last known ones may be out of date."""
        self._readiness.set(CONDITION, False, message)
        if message != self._complaint:
            self._complaint = message
            log.warning("GPUs: %s", message)

    def _report(self, before: Inventory | None, now: Inventory) -> None:
        """Log what came, went and was replaced; state the condition."""
        old = {} if before is None else {name: device.uuid for name, device in before.devices.items()}
        new = {name: device.uuid for name, device in now.devices.items()}
        if before is None or old != new or (now.gpus and self._complaint is not None):
            log.info(
                "%d GPUs, %d MIG devices with driver %s; on offer: %s",
                len(now.gpus),
                len(now.mig_devices),
                now.driver.driver_version,
                ", ".join(new) or "nothing",
            )
        if gone := sorted(old.keys() - new.keys()):
            log.warning("no longer on offer: %s", ", ".join(gone))
        for name in sorted(old.keys() & new.keys()):
            if old[name] != new[name]:
                self._replaced(name, old[name], new[name])
        if not now.gpus:
            return
        self._complaint = None
        if new:
            self._readiness.set(CONDITION, True)
        else:
            self._readiness.set(CONDITION, False, "every GPU is in MIG mode and none has a MIG device")

    def _replaced(self, name: str, old: str, new: str) -> None:
        text = (
            f"device {name} is now {new}, it was {old}: claims prepared on {old} are not moved to the other card, "
            "delete their pods"
        )
        log.warning("%s", text)
        if self._events is not None:
            self._events.warning(EVENT_REPLACED, text)

    def _offer(self, found: Inventory) -> bool:
        """Hand on an inventory that is news; whether the listener has what was found."""
        if self._taken is not None and _settings_aside(found) == _settings_aside(self._taken):
            return True
        try:
            self._on_change(found)
        except Exception:
            log.exception("the new inventory was not taken; offering it again at the next look")
            return False
        self._taken = found
        return True


def _settings_aside(inventory: Inventory) -> Inventory:
    """Without what prepared claims and admins change on a card: it is no other device for that."""
    gpus = {gpu.uuid: replace(gpu, compute_mode=None, persistence=None) for gpu in inventory.gpus}
    migs = tuple(replace(mig, parent=gpus.get(mig.parent.uuid, mig.parent)) for mig in inventory.mig_devices)
    return replace(inventory, gpus=tuple(gpus.values()), mig_devices=migs)
