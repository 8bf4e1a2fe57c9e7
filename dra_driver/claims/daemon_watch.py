"""Watches over MPS control daemons: those that ended under their claim are started again, those without claim ended."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.claims.daemons import ClaimDaemons
from dra_driver.claims.orphans import Orphans
from dra_driver.model.errors import DriverError
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.ports import EventSink

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0
_MISSED: Final = 2
_CLEAN_LOOKS: Final = 120
"""Looks between two searches for daemons without claim: ten minutes, as claims are swept."""

_CLEAN_AGAIN_LOOKS: Final = 12
"""After a search that could not be made, as without the API server: a minute."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What looks at one claim found. sessions: the last runs of its daemons that served; missed: looks since then.

    told: whether an event says that one of them has ended.
    """

    sessions: Mapping[str, str]
    missed: int = 0
    told: bool = False


class DaemonWatch:
    """Looks after them in the background, from ``begin`` on.

    records: all claims that are known. A daemon that was started anew is told of with an event: its clients
    have failed. Who launched it does that by itself, as a rule; one that is missing at two looks in a row is started
    from here.
    """

    def __init__(
        self,
        records: Callable[[], Iterable[ClaimRecord]],
        daemons: ClaimDaemons,
        orphans: Orphans,
        events: EventSink,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._records = records
        self._daemons = daemons
        self._orphans = orphans
        self._events = events
        self._look_seconds = look_seconds
        self._stop = threading.Event()
        self._begun = threading.Event()
        self._seen: dict[str, _Seen] = {}
        self._looks_to_wait = 0
        self._complaints: set[str] = set()
        self._complained: set[str] = set()
        self._thread = threading.Thread(target=self._loop, name="mps-daemons", daemon=True)

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The thread, for who watches that it lives."""
        return (self._thread,)

    def start(self) -> None:
        """Start the thread, which waits for ``begin``."""
        self._thread.start()

    def begin(self) -> None:
        """Recovery is done: a daemon without a record is nobody's from now on."""
        self._begun.set()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._begun.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        self._begun.wait()
        while not self._stop.is_set():
            try:
                self.look()
            except DriverError as error:
                self._complain(f"watch over MPS control daemons: {error}")
            self._stop.wait(self._look_seconds)

    def look(self) -> None:
        """One look. Raises DriverError when it cannot tell."""
        self._complained, self._complaints = self._complaints, set()
        served = [r for r in self._records() if r.plan.daemons and r.state is ClaimState.COMPLETED]
        self._seen = {record.claim.uid: self._look_at(record) for record in served}
        if self._looks_to_wait > 0:
            self._looks_to_wait -= 1
            return
        self._looks_to_wait = _CLEAN_AGAIN_LOOKS
        self._clean()
        self._looks_to_wait = _CLEAN_LOOKS

    def _complain(self, message: str) -> None:
        """Log what is in the way, once for as long as it stays so."""
        if message not in self._complained:
            log.warning("%s", message)
        self._complaints.add(message)

    def _look_at(self, record: ClaimRecord) -> _Seen:
        now = self._daemons.sessions(record.plan.daemons)
        seen = self._seen.get(record.claim.uid) or _Seen(now)
        if all(now.values()):
            anew = any(seen.sessions.get(each) not in ("", session) for each, session in now.items())
            if anew and not seen.told:
                self._tell(record)
            return _Seen(now)
        missed = seen.missed + 1
        told = seen.told or (missed >= _MISSED and self._restart(record))
        return _Seen(seen.sessions, missed, told)

    def _restart(self, record: ClaimRecord) -> bool:
        """Whether it was missing indeed, and was told of."""
        try:
            if not self._orphans.restart_daemons(record.claim):
                return False
        except DriverError as error:
            self._complain(f"claim {record.claim}: its MPS control daemon ended and is not started again: {error}")
            return False
        self._tell(record)
        return True

    def _tell(self, record: ClaimRecord) -> None:
        message = (
            f"the MPS control daemon of claim {record.claim} ended without being told to, and is started again; its "
            "clients have failed: restart the pods that do not recover by themselves"
        )
        log.warning("%s", message)
        self._events.warning("MPSDaemonRestarted", message)

    def _clean(self) -> None:
        known = {record.claim.uid for record in self._records()}
        left: Sequence[MpsDaemon] = [daemon for daemon in self._daemons.present() if daemon.claim_uid not in known]
        for daemon in left:
            try:
                if self._orphans.end_daemon(daemon):
                    log.warning("ended the MPS control daemon %s, whose claim is not prepared here", daemon.id)
            except DriverError as error:
                log.warning("MPS control daemon %s belongs to no claim and cannot be ended: %s", daemon.id, error)
