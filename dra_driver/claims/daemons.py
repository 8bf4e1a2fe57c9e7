"""The MPS control daemons of claims, as the lifecycle needs them: brought up within one call of the kubelet, ended.

Both take seconds, so they are done without the lock of a card and without the turn between processes: the claim's own
lock is enough, since the record names who holds the card.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_driver.model.devices import Device
from dra_driver.model.errors import DriverError, MpsStarting
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.ports import MpsDaemons

log = logging.getLogger(__name__)

UP_SECONDS: Final = 30.0
"""From the begin of a prepare to the answer that a daemon does not serve yet: under the kubelet's limit of 45 s."""

DOWN_SECONDS: Final = 25.0
"""For all daemons of a claim to be gone, likewise."""

_WAITING: Final = 8
"""Calls that wait for a daemon at a time; fewer than there are places for claims, so that others find one."""


class ClaimDaemons:
    """Starts, awaits and ends the daemons that serve one claim."""

    def __init__(self, daemons: MpsDaemons, waiting: int = _WAITING) -> None:
        self._daemons = daemons
        self._places = threading.BoundedSemaphore(waiting)

    def check(self, wanted: Sequence[MpsDaemon]) -> None:
        """Raises MpsError when this node lacks what a daemon needs."""
        if wanted:
            self._daemons.check()

    def up(self, wanted: Sequence[MpsDaemon], deadline: float) -> None:
        """Have all of them serve. deadline: ``time.monotonic()`` at which the wait ends.

        Raises MpsStarting when one does not serve by then and may later, MpsError or ApiError when it will not.
        """
        for daemon in wanted:
            self._daemons.start(daemon)
        if self.serve(wanted):
            return
        if not self._places.acquire(blocking=False):
            raise MpsStarting("the MPS control daemon is being started, as are many others; the kubelet asks again")
        try:
            for daemon in wanted:
                self._daemons.wait(daemon.id, max(0.0, deadline - time.monotonic()))
        finally:
            self._places.release()

    def serve(self, wanted: Iterable[MpsDaemon]) -> bool:
        """Whether all of them serve now."""
        return all(self._daemons.serves(daemon.id) for daemon in wanted)

    def sessions(self, wanted: Iterable[MpsDaemon]) -> dict[str, str]:
        """Daemon's id -> which run of it serves, as in ports.MpsDaemons."""
        return {daemon.id: self._daemons.session(daemon.id) for daemon in wanted}

    def again(self, daemon: MpsDaemon) -> None:
        """Start one that ended without being told to. Does not wait. Raises MpsError or ApiError."""
        self._daemons.start(daemon)

    def down(self, ended: Iterable[MpsDaemon]) -> None:
        """End them. Raises MpsError or ApiError for the first that could not be ended; the others are."""
        deadline = time.monotonic() + DOWN_SECONDS
        failure: DriverError | None = None
        for daemon in ended:
            try:
                self._daemons.stop(daemon.id, max(1.0, deadline - time.monotonic()))
            except DriverError as error:
                log.warning("MPS control daemon %s: %s", daemon.id, error)
                failure = failure or error
        if failure:
            raise failure

    def folders(self, daemons: Iterable[MpsDaemon], devices: Iterable[Device]) -> Mapping[str, MpsFolders]:
        """Device name -> where its containers meet the daemon that serves it."""
        serving = {uuid: daemon.id for daemon in daemons for uuid in daemon.devices}
        return {d.name: self._daemons.folders(serving[d.uuid]) for d in devices if d.uuid in serving}

    def present(self) -> Sequence[MpsDaemon]:
        """As in ports.MpsDaemons."""
        return self._daemons.present()
