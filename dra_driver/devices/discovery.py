"""Keeps the inventory current: looks until there are GPUs, then looks again now and then, and tells who asked.

Decides what a node without GPUs is: one that never had any, one whose NVIDIA driver is being loaded, or one that lost
them. Knows no NVML and no Kubernetes object: a DeviceSource is looked at, listeners get an Inventory.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.model.devices import Inventory
from dra_driver.model.errors import DriverAbsent, DriverError
from dra_driver.model.texts import listed
from dra_driver.ports import DeviceSource, EventSink, Readiness

log = logging.getLogger(__name__)

CONDITION: Final = "devices"
EVENT_REPLACED: Final = "GPUReplaced"
EVENT_WITHDRAWN: Final = "GPUsWithdrawn"

Listener = Callable[[Inventory | None], None]

_NEVER_ANY: Final = "this node has no NVIDIA GPU"
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between looks: ``interval`` once there are GPUs, else from ``first`` doubling up to ``longest``.

    grace: how long a machine that has GPUs may show none, in at least ``grace_looks`` looks, before they are withdrawn:
    a driver that is being loaded shows its cards some seconds later.
    """

    interval: float = 5.0
    first: float = 0.5
    longest: float = 10.0
    grace: float = 30.0
    grace_looks: int = 3


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A look that found no GPU: why, and whether that proves that none can be used (a look that hangs does not)."""

    why: str
    proved: bool
    answer: Inventory | None = None


class Discovery:
    """Looks at the node in a thread of its own; ``look`` does it once in the caller's.

    on_change is called with each inventory whose devices differ from the last one that it took; when it raises,
    that inventory is offered again at the next look. GPUs are withdrawn by an inventory without any, or by None where
    no NVIDIA driver answers: at once when the machine has no GPU on its bus, else after the grace. on_look is called at
    the end of each look, whatever it found.
    """

    def __init__(
        self,
        source: DeviceSource,
        readiness: Readiness,
        on_change: Listener,
        events: EventSink | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._readiness = readiness
        self._on_change = on_change
        self._events = events
        self._pace = pace or Pace()
        self._clock = clock
        self._on_look = on_look
        self._inventory: Inventory | None = None
        self._taken: Inventory | None = None
        self._withdrawn = False
        self._looks_in_vain = 0
        self._in_vain_since = 0.0
        self._complaint: str | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def inventory(self) -> Inventory | None:
        """What the last look that found GPUs has found; None until there was one."""
        return self._inventory

    @property
    def complaint(self) -> str | None:
        """Why there are no GPUs, or why the last known ones may be out of date; None while all is well."""
        return self._complaint

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that must live for as long as the driver does; none before ``start``."""
        return () if self._thread is None else (self._thread,)

    def look(self) -> bool:
        """Look once; whether there are GPUs and on_change took them.

        A failure is told in the log and in readiness, never raised.
        """
        with self._lock:
            good = self._look()
            if self._on_look is not None:
                try:
                    self._on_look()
                except Exception:
                    log.exception("what depends on a look at the GPUs failed; doing it again at the next one")
            return good

    def _look(self) -> bool:
        found = self._scan()
        if isinstance(found, _Nothing):
            self._miss(found)
            return False
        self._looks_in_vain = 0
        before, self._inventory = self._inventory, found
        self._report(before, found)
        return self._offer(found)

    def start(self) -> None:
        """Look in a thread: at once when nothing is known yet, else after the interval."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
            self._thread.start()

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

    def _scan(self) -> Inventory | _Nothing:
        try:
            found = self._source.scan()
        except DriverError as error:
            return _Nothing(str(error), isinstance(error, DriverAbsent))
        except Exception:
            log.exception("looking for GPUs failed")
            return _Nothing("looking for GPUs failed, see the log", proved=False)
        return found if found.gpus else _Nothing("no GPU is bound to the NVIDIA driver", proved=True, answer=found)

    def _miss(self, nothing: _Nothing) -> None:
        """A look in vain: withdraw what slices promise when the time has come, and say why there is nothing."""
        on_bus = self._source.on_bus()
        if self._looks_in_vain == 0:
            self._in_vain_since = self._clock()
        self._looks_in_vain += 1
        if self._inventory is None and on_bus == ():
            self._withdraw(nothing.answer)
            self._complain(f"{_NEVER_ANY} ({nothing.why})")
            self._readiness.set(CONDITION, True, f"{_NEVER_ANY}: nothing is offered; looking again now and then")
            return
        why = nothing.why + _seen_on(on_bus)
        if self._is_over(nothing, on_bus) and self._withdraw(nothing.answer) and self._events is not None:
            self._events.warning(EVENT_WITHDRAWN, f"{why}: no GPU can be offered on this node until that is mended")
        kept = "; nothing is offered" if self._withdrawn else " (the last inventory is kept)" if self._taken else ""
        self._complain(f"{why}; looking again{kept}")
        self._readiness.set(CONDITION, False, f"{why}; looking again{kept}")

    def _is_over(self, nothing: _Nothing, on_bus: tuple[str, ...] | None) -> bool:
        """Whether slices must promise GPUs no longer: nothing could be prepared, and not only for the moment."""
        if on_bus == ():
            return True
        if self._taken is not None and not nothing.proved:
            return False
        waited = self._clock() - self._in_vain_since
        return waited >= self._pace.grace and self._looks_in_vain >= self._pace.grace_looks

    def _withdraw(self, answer: Inventory | None) -> bool:
        """Hand on that there is nothing, once; whether that was done by this call."""
        if self._withdrawn:
            return False
        try:
            self._on_change(answer)
        except Exception:
            log.exception("that there is no GPU was not taken; offering it again at the next look")
            return False
        self._withdrawn, self._taken = True, None
        return True

    def _complain(self, message: str) -> None:
        """Say once per change why there are no GPUs, or why the last known ones may be out of date."""
        if message != self._complaint:
            self._complaint = message
            log.warning("GPUs: %s", message)

    def _report(self, before: Inventory | None, now: Inventory) -> None:
        """Log what came, went and was replaced; state the condition."""
        old = {} if before is None else {name: device.uuid for name, device in before.devices.items()}
        new = {name: device.uuid for name, device in now.devices.items()}
        if before is None or old != new or self._complaint is not None:
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
        self._complaint = None
        if new:
            self._readiness.set(CONDITION, True)
        else:
            self._readiness.set(CONDITION, False, "every GPU is in MIG mode and none has a MIG device")

    def _replaced(self, name: str, old: str, new: str) -> None:
        text = (
            f"device {name} is now {new}, it was {old}: claims prepared on {old} are not moved to it, delete their pods"
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
        self._taken, self._withdrawn = found, False
        return True


def _settings_aside(inventory: Inventory) -> Inventory:
    """Without what prepared claims and admins change on a card: it is no other device for that."""
    gpus = {gpu.uuid: replace(gpu, compute_mode=None, persistence=None) for gpu in inventory.gpus}
    migs = tuple(replace(mig, parent=gpus.get(mig.parent.uuid, mig.parent)) for mig in inventory.mig_devices)
    return replace(inventory, gpus=tuple(gpus.values()), mig_devices=migs)


def _seen_on(on_bus: tuple[str, ...] | None) -> str:
    """What the bus says of GPUs that the NVIDIA driver does not show."""
    if on_bus is None:
        return ""
    if not on_bus:
        return " (and there is none on the PCI bus any more)"
    return f" (on the PCI bus: {listed(on_bus, _SHOWN)})"
