"""Prepares and unprepares claims: reads top to bottom as the data flows.

prepare    claim from the API -> allocation -> choices -> (locks) already prepared? the stored answer -> conflicts
           -> steps -> CDI spec, all of which may refuse and has changed nothing
           -> record "started" (if there are steps) -> steps -> CDI file -> record "completed" -> answer
unprepare  (locks) the record alone -> CDI file away -> steps undone -> record away
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dra_driver.claims.allocation import check_uid, read_allocation
from dra_driver.claims.class_demands import with_class_demands
from dra_driver.claims.conflicts import check_against_others, check_clients
from dra_driver.claims.gpu_steps import GpuSteps, Undone
from dra_driver.claims.locks import KeyedLocks, ProcessTurn
from dra_driver.claims.planning import Choice, choose, is_for, needs_state, plan_steps
from dra_driver.claims.store import Store
from dra_driver.model.claims import Allocation, ClaimRef
from dra_driver.model.devices import Device, Inventory
from dra_driver.model.errors import (
    ApiError,
    ApiUnreachable,
    CdiError,
    ControlError,
    DriverError,
    DriverNotReady,
    UnknownDevice,
)
from dra_driver.model.plan import Plan, PreparedDevice, SetTimeSlice, Step
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.ports import CdiSpecs, ClaimReader, ClassReader, EventSink
from dra_driver.sharing.memory_limits import NO_EVEN_PARTS, LimitTerms, limits_to_set
from dra_driver.sharing.strategy import Strategies

log = logging.getLogger(__name__)

Answer = tuple[PreparedDevice, ...]

_NOT_LET_IN = (401, 403)
"""HTTP status of an API server that says nothing about the claim: a token that ran out, rights that were changed."""

_GIVE_UP_SECONDS = 180.0
"""How long the reset of a card may fail before its claim is let go without."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """What the lifecycle acts through. watch_memory: told of a claim whose use of memory has to be watched."""

    api: ClaimReader
    cdi: CdiSpecs
    store: Store
    steps: GpuSteps
    events: EventSink
    inventory: Callable[[], Inventory]
    classes: ClassReader
    limit_terms: LimitTerms = NO_EVEN_PARTS
    watch_memory: Callable[[], None] = lambda: None


class ClaimLifecycle:
    """Prepares and unprepares claims on one node; safe to call from many threads."""

    def __init__(self, edges: Edges, strategies: Strategies, pool: str, turn: ProcessTurn, max_clients: int) -> None:
        """max_clients: most clients that a physical GPU may have through shares."""
        self._edges = edges
        self._strategies = strategies
        self._pool = pool
        self._turn = turn
        self._max_clients = max_clients
        self._failing_since: dict[str, float] = {}
        self._claim_locks = KeyedLocks("claim")
        self._gpu_locks = KeyedLocks("GPU")

    def prepare(self, claim: ClaimRef) -> Answer:
        """Make a claim's devices ready. Raises DriverError; then nothing of it is left, or a started record is.

        The same claim again gets the same answer. A claim without devices of this driver gets an empty one.
        """
        check_uid(claim)
        allocation = self._allocation(claim)
        with self._turn.take(), self._claim_locks.hold([claim.uid]):
            record = self._edges.store.get(claim.uid)
            if isinstance(allocation, ApiError):
                return self._without_api(record, allocation)
            if record is not None:
                if record.state is ClaimState.COMPLETED and is_for(record, allocation):
                    return self._again(record)
                log.info(
                    "claim %s was %s for other devices or not to the end: undoing that first",
                    claim,
                    record.state.value,
                )
                self._take_back(record)
            if not allocation.devices:
                return ()
            return self._anew(allocation)

    def unprepare(self, claim: ClaimRef) -> None:
        """Give a claim's devices back, from the record alone. Raises DriverError to be asked again.

        A claim that was never prepared is a success.
        """
        check_uid(claim)
        with self._turn.take(), self._claim_locks.hold([claim.uid]):
            record = self._edges.store.get(claim.uid)
            if record is None:
                self._edges.cdi.remove(claim.uid)
                return
            self._take_back(record)
            log.info("claim %s is unprepared", claim)

    def _allocation(self, claim: ClaimRef) -> Allocation | ApiError:
        """The allocation, or why the API server tells nothing about a claim that has a record."""
        try:
            allocation = read_allocation(claim, self._edges.api.get(claim), self._pool)
            return with_class_demands(allocation, self._edges.inventory, self._edges.classes)
        except ApiError as error:
            told = not isinstance(error, ApiUnreachable) and error.status not in _NOT_LET_IN
            if told or self._edges.store.get(claim.uid) is None:
                raise
            return error

    def _without_api(self, record: ClaimRecord | None, error: ApiError) -> Answer:
        if record is None or record.state is not ClaimState.COMPLETED:
            raise error
        log.warning("claim %s: answering from the state, the API server does not tell: %s", record.claim, error)
        return self._again(record)

    def _again(self, record: ClaimRecord) -> Answer:
        """The stored answer, after checking that the cards are still the same and the CDI file is there."""
        try:
            devices = self._edges.inventory().devices
        except DriverNotReady:
            devices = None
        if devices is not None:
            for prepared in record.devices:
                _check_same_card(record.claim, prepared, devices)
        self._restore_file(record, devices)
        return record.devices

    def _restore_file(self, record: ClaimRecord, devices: Mapping[str, Device] | None) -> None:
        """Write the CDI file again if it is not what it should be."""
        uid, cdi = record.claim.uid, self._edges.cdi
        if devices is None:
            if not cdi.exists(uid):
                raise DriverNotReady(f"the CDI file of claim {record.claim} is gone and the NVIDIA driver is not ready")
            return
        try:
            limits = limits_to_set(record.claim, record.devices)
            spec = cdi.plan(uid, [devices[prepared.device] for prepared in record.devices], limits)
        except CdiError as error:
            if not cdi.exists(uid):
                raise
            log.warning("claim %s keeps its CDI file, which could not be made now: %s", record.claim, error)
            return
        if not cdi.holds(spec):
            log.warning("the CDI file of claim %s is gone or not what it should be: writing it again", record.claim)
            cdi.write(spec)

    def _anew(self, allocation: Allocation) -> Answer:
        choices = choose(allocation, self._edges.inventory().devices, self._strategies, self._edges.limit_terms)
        with self._gpu_locks.hold(choice.prepared.gpu_uuid for choice in choices):
            record, epoch = self._plan(allocation, choices)
            limits = limits_to_set(allocation.claim, record.devices)
            spec = self._edges.cdi.plan(allocation.claim.uid, [choice.device for choice in choices], limits)
            sliced = {s.gpu_uuid: s.interval for s in record.plan.steps if isinstance(s, SetTimeSlice)}
            done = replace(record, state=ClaimState.COMPLETED)
            if record.plan.steps:
                self._edges.store.put(record, forget_time_slices=sliced)
            taken: list[Step] = []
            with self._undone_on_failure(record, epoch, taken):
                self._edges.steps.take(record.plan.steps, taken)
                self._edges.cdi.write(spec)
                # Without steps the file is the only effect, and recovery finds a file that has no record.
                if record.plan.steps:
                    self._edges.store.complete(done, sliced, epoch)
                else:
                    self._edges.store.put(done)
        log.info("claim %s is prepared: %s", allocation.claim, ", ".join(d.device for d in record.devices))
        if any(device.memory_budget is not None and not device.memory_enforced for device in record.devices):
            self._edges.watch_memory()
        return record.devices

    def _plan(self, allocation: Allocation, choices: Sequence[Choice]) -> tuple[ClaimRecord, str]:
        prepared = tuple(choice.prepared for choice in choices)
        holders = self._edges.store.holders({device.gpu_uuid for device in prepared})
        check_against_others(allocation.claim, prepared, holders)
        check_clients(allocation.claim, prepared, holders, self._max_clients)
        wanted = needs_state(choices)
        epoch = self._edges.steps.epoch() if wanted else ""
        steps = plan_steps(choices, self._edges.steps.states(wanted, epoch), self._strategies)
        self._edges.steps.check_allowed(steps)
        record = ClaimRecord(
            claim=allocation.claim,
            state=ClaimState.STARTED,
            plan=Plan(devices=prepared, steps=steps),
            prepared_at=time.time(),
        )
        return record, epoch

    @contextmanager
    def _undone_on_failure(self, record: ClaimRecord, epoch: str, taken: Sequence[Step]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            try:
                self._remove(record, epoch, taken)
            except DriverError as second:
                # The record stays: the kubelet's next call or the sweep goes on from it.
                log.error(
                    "claim %s failed (%s) and undoing it too, to be tried again: %s",
                    record.claim,
                    error,
                    second,
                )
            raise

    def _take_back(self, record: ClaimRecord) -> None:
        uid = record.claim.uid
        with self._gpu_locks.hold(device.gpu_uuid for device in record.devices):
            touched = _touched(record)
            if touched and record.state is ClaimState.COMPLETED:
                # From here on the cards are not what the answer promised, also if this call does not come to its end.
                record = replace(record, state=ClaimState.ENDING)
                self._edges.store.put(record)
            try:
                self._remove(record, self._edges.steps.epoch() if touched else "")
            except ControlError as error:
                since = self._failing_since.setdefault(uid, time.monotonic())
                if time.monotonic() - since < _GIVE_UP_SECONDS:
                    raise
                self._give_up(record, error)
        self._failing_since.pop(uid, None)

    def _give_up(self, record: ClaimRecord, error: ControlError) -> None:
        """A card whose tool stays broken must not keep a pod from ending for ever."""
        message = f"claim {record.claim} is unprepared without resetting its GPU, which failed again and again: {error}"
        log.error("%s", message)
        self._edges.events.warning("GPUResetFailed", message)
        self._edges.store.forget_time_slices(device.gpu_uuid for device in record.devices)
        self._edges.store.remove(record.claim.uid)

    def _remove(self, record: ClaimRecord, epoch: str, taken: Sequence[Step] | None = None) -> None:
        self._edges.cdi.remove(record.claim.uid)
        undone: Undone = self._edges.steps.undo(record, epoch, taken)
        self._edges.store.remove(record.claim.uid, undone.time_slices, epoch)

    # For recovery, which finds CDI files that have no record.

    def adopt(self, record: ClaimRecord) -> bool:
        """Take a claim over that has a CDI file and no record, or one without its name.

        False when that is not so (any more).
        """
        return self._settle_orphan(record.claim, lambda: self._edges.store.put(record), anew=bool(record.claim.name))

    def discard(self, claim: ClaimRef) -> bool:
        """Remove the CDI file of a claim that has no record; False when that is not so (any more)."""
        return self._settle_orphan(claim, lambda: self._edges.cdi.remove(claim.uid))

    def _settle_orphan(self, claim: ClaimRef, settle: Callable[[], None], anew: bool = False) -> bool:
        # Another instance may work on the claim while recovery looks at its file: it holds still under turn and lock.
        with self._turn.take(), self._claim_locks.hold([claim.uid]):
            known = self._edges.store.get(claim.uid)
            orphan = (known is None or (anew and not known.claim.name)) and self._edges.cdi.exists(claim.uid)
            if orphan:
                settle()
            return orphan


def _touched(record: ClaimRecord) -> bool:
    return bool(record.plan.steps) or any(device.time_slice is not None for device in record.devices)


def _check_same_card(claim: ClaimRef, prepared: PreparedDevice, devices: Mapping[str, Device]) -> None:
    found = devices.get(prepared.device)
    if found is None or found.uuid != prepared.uuid:
        now = f"is {found.uuid} now" if found else "is not on this node now"
        raise UnknownDevice(
            f"device {prepared.device} of claim {claim} was {prepared.uuid} when it was prepared and {now}: "
            "delete the claim's pods so that it is unprepared and allocated again"
        )
