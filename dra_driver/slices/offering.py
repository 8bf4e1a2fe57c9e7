"""What of this node is offered, and how it is shared: the inventory, the sharing profile and live claims in one.

Looks at all three at each look at the node, and tells people once what they should know.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol

from dra_driver.model.devices import Device, Inventory
from dra_driver.model.errors import StateError
from dra_driver.model.records import ClaimRecord
from dra_driver.model.texts import listed
from dra_driver.ports import EventSink, Readiness
from dra_driver.sharing.profile import Sharing, idle_words
from dra_driver.sharing.shares import ConsumableShares
from dra_driver.sharing.standing import Standing, stand
from dra_driver.slices.build import PoolSlice, build_slices
from dra_driver.slices.profiles import Decision, Profiles

log = logging.getLogger(__name__)

CONDITION: Final = "sharing"
EVENT_REFUSED: Final = "SharingRefused"
EVENT_WITHHELD: Final = "DeviceWithheld"
EVENT_LOST: Final = "DeviceLost"

_SHOWN: Final = 8


class Listener(Protocol):
    """Is told at each look what was decided."""

    def undecided(self, why: str) -> None:
        """Nothing is known of how devices are shared: what is offered stays as it is."""

    def decided(self, decision: Decision, sharing: Sharing, standing: Standing) -> None:
        """What counts now, and what of it waits for claims."""


class Offering:
    """Publishes slices when anything that they depend on has changed. ``show`` and ``refresh`` come from one thread.

    live: the records of this node's claims, raising StateError. shares_dropped: whether the API server knows no shared
    devices, so that claims hold whole what was to be shared. refused: whether nothing may be offered, since another
    offers these GPUs.
    """

    def __init__(
        self,
        node_name: str,
        profiles: Profiles,
        live: Callable[[], Sequence[ClaimRecord]],
        publish: Callable[[Iterable[PoolSlice]], None],
        shares_dropped: Callable[[], bool],
        telling: Listener,
        refused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._refused = refused
        self._node_name = node_name
        self._profiles = profiles
        self._live = live
        self._publish = publish
        self._shares_dropped = shares_dropped
        self._telling = telling
        self._shown = False
        self._inventory: Inventory | None = None
        self._records: Sequence[ClaimRecord] | None = None
        self._published: object = None

    def show(self, inventory: Inventory | None) -> None:
        """Take a new inventory, None where there is no NVIDIA driver to ask for one, and offer what is in it."""
        self._inventory, self._shown = inventory, True
        self.refresh()

    def refresh(self) -> None:
        """Look again at all that the offer depends on; nothing before there was an inventory."""
        if not self._shown:
            return
        if self._inventory is None:
            self._offer((), {})
            return
        devices = list(self._inventory.devices.values())
        decision = self._profiles.decide(devices)
        if decision.sharing is None:
            self._telling.undecided(decision.complaint)
            return
        records, why = self._claims()
        if records is None:
            self._telling.undecided(why)
            return
        shares = decision.sharing.shares
        known = [device for device in devices if device.name in shares]
        others = [device for device in devices if device.name not in shares]
        standing = stand(known, {} if self._shares_dropped() else shares, records, others)
        self._telling.decided(decision, decision.sharing, standing)
        offered = [device for device in known if device.name not in standing.withheld]
        self._offer([] if self._refused() else offered, shares)

    def _claims(self) -> tuple[Sequence[ClaimRecord] | None, str]:
        """Live claims as they were last known; None where they never were, and why."""
        try:
            self._records = self._live()
        except StateError as error:
            log.debug("live claims are taken as they were last known: %s", error)
            return self._records, f"what live claims hold is not known: {error}"
        return self._records, ""

    def _offer(self, devices: Sequence[Device], shares: Mapping[str, ConsumableShares]) -> None:
        driver = self._inventory.driver if self._inventory else None
        wanted = (driver, tuple(devices), dict(shares))
        if wanted == self._published:
            return
        slices = build_slices(devices, driver, self._node_name, shares) if driver else (PoolSlice(),)
        self._publish(slices)
        self._published = wanted


class Telling:
    """Log, events and readiness about sharing; each thing once for as long as it lasts.

    A node on which nothing is shared has no condition of it.
    """

    def __init__(self, readiness: Readiness, events: EventSink) -> None:
        self._readiness = readiness
        self._events = events
        self._stated = False
        self._told: dict[str, set[str]] = {}

    def undecided(self, why: str) -> None:
        """Nothing is known of how devices are shared: what is offered stays as it is."""
        self._state(False, why)

    def decided(self, decision: Decision, sharing: Sharing, standing: Standing) -> None:
        """What counts now, and what of it waits for claims."""
        problems = dict(sharing.problems)
        refusals = list(dict.fromkeys([*filter(None, [decision.complaint]), *problems.values()]))
        for text in self._news(EVENT_REFUSED, {text: text for text in refusals}):
            log.warning("sharing: %s", text)
            self._events.warning(EVENT_REFUSED, text)
        for text in self._news(EVENT_WITHHELD, standing.withheld):
            log.warning("sharing: %s", text)
            self._events.warning(EVENT_WITHHELD, text)
        for text in self._news(EVENT_LOST, standing.lost):
            log.warning("%s", text)
            self._events.warning(EVENT_LOST, text)
        for text in self._news("exceeded", standing.exceeded):
            log.warning("sharing: %s", text)
        if idle := self._news("idle", {f"{rule}": f"{rule}" for rule in sharing.idle}):
            log.info("sharing profile: %s", idle_words(idle))
        if refusals:
            rest = _not_offered(problems) or "; the profile before this one counts on"
            self._state(False, listed(refusals, 3) + rest)
        elif self._stated or standing.withheld or decision.profile.rules or _any_shared(sharing):
            self._state(
                True, _summary(sharing.shares) + _not_offered(standing.withheld, " until live claims have left")
            )

    def _news(self, kind: str, texts: Mapping[str, str]) -> list[str]:
        """The texts whose key was not there the last time."""
        before = self._told.get(kind, set())
        self._told[kind] = set(texts)
        return [text for key, text in texts.items() if key not in before]

    def _state(self, holds: bool, message: str) -> None:
        self._stated = True
        self._readiness.set(CONDITION, holds, message)


def _any_shared(sharing: Sharing) -> bool:
    return any(shares.shared for shares in sharing.shares.values())


def _not_offered(names: Iterable[str], until: str = "") -> str:
    shown = listed(list(names), _SHOWN)
    return f"; not offered{until}: {shown}" if shown else ""


def _summary(shares: Mapping[str, ConsumableShares]) -> str:
    """Such as ``4 shares: gpu-0, gpu-1; whole: gpu-2``."""
    ordered = sorted(shares, key=lambda name: (str(shares[name]), name))
    groups = groupby(ordered, key=lambda name: shares[name])
    return "; ".join(f"{_words(each)}: {listed(list(names), _SHOWN)}" for each, names in groups) or "no device"


def _words(shares: ConsumableShares) -> str:
    if not shares.shared:
        return "whole"
    return f"{shares.count} share{'' if shares.count == 1 else 's'}" if shares.count else f"{shares} shares"
