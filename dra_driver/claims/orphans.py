"""What belongs to claims and was found apart from the kubelet's calls: CDI files without a record, MPS control daemons
without a claim, or claims without their daemon. Each is settled under the claim's lock.
"""

from collections.abc import Callable

from dra_driver.claims.lifecycle import Edges
from dra_driver.claims.locks import ClaimLocks
from dra_driver.model.claims import ClaimRef
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.records import ClaimRecord, ClaimState


class Orphans:
    """Settles them. locks: those of the lifecycle."""

    def __init__(self, edges: Edges, locks: ClaimLocks) -> None:
        self._edges = edges
        self._locks = locks

    def adopt(self, record: ClaimRecord) -> bool:
        """Take a claim over that has a CDI file and no record, or one without its name.

        False when that is not so (any more).
        """
        return self._settle(record.claim, lambda: self._edges.store.put(record), anew=bool(record.claim.name))

    def discard(self, claim: ClaimRef) -> bool:
        """Remove the CDI file of a claim that has no record; False when that is not so (any more)."""
        return self._settle(claim, lambda: self._edges.cdi.remove(claim.uid))

    def _settle(self, claim: ClaimRef, settle: Callable[[], None], anew: bool = False) -> bool:
        # Another instance may work on the claim while recovery looks at its file: it holds still under turn and lock.
        with self._locks.claim(claim.uid):
            known = self._edges.store.get(claim.uid)
            orphan = (known is None or (anew and not known.claim.name)) and self._edges.cdi.exists(claim.uid)
            if orphan:
                settle()
            return orphan

    def end_daemon(self, daemon: MpsDaemon) -> bool:
        """End a daemon of a claim that has no record, and give its cards back; False when it has one (by now).

        Raises MpsError or ApiError.
        """
        store = self._edges.store
        with self._locks.claim(daemon.claim_uid) as turn:
            if store.get(daemon.claim_uid) is not None:
                return False
            with turn.paused():
                self._edges.daemons.down([daemon])
            if store.get(daemon.claim_uid) is not None:
                return False
            with self._locks.cards(daemon.gpus):
                held = {holder.device.gpu_uuid for holder in store.holders(daemon.gpus)}
                self._edges.steps.try_open_to_all(uuid for uuid in daemon.gpus if uuid not in held)
        return True

    def restart_daemons(self, claim: ClaimRef) -> bool:
        """Start the daemons of a claim that ended without being told to; whether there were such.

        Raises MpsError or ApiError.
        """
        with self._locks.claim(claim.uid) as turn:
            record = self._edges.store.get(claim.uid)
            if record is None or record.state is not ClaimState.COMPLETED:
                return False
            ended = [daemon for daemon in record.plan.daemons if not self._edges.daemons.serve([daemon])]
            with turn.paused():
                for daemon in ended:
                    self._edges.daemons.again(daemon)
            return bool(ended)
