"""Prepares and unprepares claims: reads top to bottom as the data flows.

prepare    claim from the API -> allocation -> choices -> (locks) already prepared? the stored answer -> conflicts
           -> steps -> CDI spec, all of which may refuse and has changed nothing
           -> record "started" (if there are steps) -> steps -> CDI file -> record "completed" -> answer
unprepare  (locks) the record alone -> CDI file away -> steps undone -> record away

MPS control daemons are started last and ended first, each time with no lock held but the claim's own. One that does not
serve in time leaves the record "started", and the kubelet's next call goes on from there.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dra_driver.claims.allocation import check_uid, read_allocation
from dra_driver.claims.class_demands import with_class_demands
from dra_driver.claims.conflicts import check_against_others, check_clients
from dra_driver.claims.daemons import UP_SECONDS, ClaimDaemons
from dra_driver.claims.gpu_steps import GpuSteps, Undone
from dra_driver.claims.locks import ClaimLocks, Held
from dra_driver.claims.planning import Choice, choose, is_for, needs_state, plan_daemons, plan_steps
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
    LockTimeout,
    MpsError,
    MpsStarting,
    UnknownDevice,
)
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.plan import CardStep, Plan, PreparedDevice, SetTimeSlice, StartMpsDaemon
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.ports import CdiSpecs, ClaimReader, ClassReader, EventSink, PlannedSpec
from dra_driver.sharing.memory_limits import NO_EVEN_PARTS, LimitTerms, limits_to_set
from dra_driver.sharing.strategy import Strategies

log = logging.getLogger(__name__)

Answer = tuple[PreparedDevice, ...]

_NOT_LET_IN = (401, 403)
"""HTTP status of an API server that says nothing about the claim: a token that ran out, rights that were changed."""

_GIVE_UP_SECONDS = 180.0
"""How long the reset of a card, or the end of an MPS control daemon, may fail before its claim is let go without."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """What the lifecycle acts through. watch_memory: told of a claim whose use of memory has to be watched."""

    api: ClaimReader
    cdi: CdiSpecs
    store: Store
    steps: GpuSteps
    daemons: ClaimDaemons
    events: EventSink
    inventory: Callable[[], Inventory]
    classes: ClassReader
    limit_terms: LimitTerms = NO_EVEN_PARTS
    watch_memory: Callable[[], None] = lambda: None


class ClaimLifecycle:
    """Prepares and unprepares claims on one node; safe to call from many threads."""

    def __init__(self, edges: Edges, strategies: Strategies, pool: str, locks: ClaimLocks, max_clients: int) -> None:
        """max_clients: most clients that a physical GPU may have through shares."""
        self._edges = edges
        self._strategies = strategies
        self._pool = pool
        self._locks = locks
        self._max_clients = max_clients
        self._failing_since: dict[str, float] = {}

    def prepare(self, claim: ClaimRef) -> Answer:
        """Make a claim's devices ready. Raises DriverError; then nothing of it is left, or a started record is.

        The same claim again gets the same answer. A claim without devices of this driver gets an empty one.
        """
        check_uid(claim)
        deadline = time.monotonic() + UP_SECONDS
        allocation = self._allocation(claim)
        with self._locks.claim(claim.uid) as turn:
            call = _Call(turn, deadline)
            record = self._edges.store.get(claim.uid)
            if isinstance(allocation, ApiError):
                return self._without_api(record, allocation, call)
            if record is not None:
                if record.state is ClaimState.COMPLETED and is_for(record, allocation):
                    return self._again(record, call)
                if self._is_begun(record, allocation):
                    return self._go_on(record, call)
                log.info(
                    "claim %s was %s for other devices or not to the end: undoing that first",
                    claim,
                    record.state.value,
                )
                self._take_back(record, turn)
            if not allocation.devices:
                return ()
            return self._anew(allocation, call)

    def unprepare(self, claim: ClaimRef) -> None:
        """Give a claim's devices back, from the record alone. Raises DriverError to be asked again.

        A claim that was never prepared is a success.
        """
        check_uid(claim)
        with self._locks.claim(claim.uid) as turn:
            record = self._edges.store.get(claim.uid)
            if record is None:
                self._edges.cdi.remove(claim.uid)
                return
            self._take_back(record, turn)
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

    def _without_api(self, record: ClaimRecord | None, error: ApiError, call: "_Call") -> Answer:
        if record is None or record.state is not ClaimState.COMPLETED:
            raise error
        log.warning("claim %s: answering from the state, the API server does not tell: %s", record.claim, error)
        return self._again(record, call)

    def _again(self, record: ClaimRecord, call: "_Call") -> Answer:
        """The stored answer, after checking that cards are still the same, CDI file and daemons are there."""
        try:
            devices = self._edges.inventory().devices
        except DriverNotReady:
            devices = None
        self._restore_file(record, devices)
        if not self._edges.daemons.serve(record.plan.daemons):
            with call.turn.paused():
                self._edges.daemons.up(record.plan.daemons, call.deadline)
            self._is_ours(record)
        return record.devices

    def _restore_file(self, record: ClaimRecord, devices: Mapping[str, Device] | None) -> None:
        """Write the CDI file again if it is not what it should be."""
        uid, cdi = record.claim.uid, self._edges.cdi
        if devices is None:
            if not cdi.exists(uid):
                raise DriverNotReady(f"the CDI file of claim {record.claim} is gone and the NVIDIA driver is not ready")
            return
        try:
            spec = self._spec(record, devices)
        except CdiError as error:
            if not cdi.exists(uid):
                raise
            log.warning("claim %s keeps its CDI file, which could not be made now: %s", record.claim, error)
            return
        if not cdi.holds(spec):
            log.warning("the CDI file of claim %s is gone or not what it should be: writing it again", record.claim)
            cdi.write(spec)

    def _spec(self, record: ClaimRecord, devices: Mapping[str, Device]) -> PlannedSpec:
        """The claim's CDI spec. Raises CdiError; UnknownDevice for a device that is not there."""
        for prepared in record.devices:
            _check_same_card(record.claim, prepared, devices)
        given = [devices[prepared.device] for prepared in record.devices]
        return self._edges.cdi.plan(
            record.claim.uid,
            given,
            limits_to_set(record.claim, record.devices),
            self._edges.daemons.folders(record.plan.daemons, given),
        )

    def _choose(self, allocation: Allocation) -> tuple[tuple[Choice, ...], tuple[MpsDaemon, ...]]:
        choices = choose(allocation, self._edges.inventory().devices, self._strategies, self._edges.limit_terms)
        return choices, plan_daemons(allocation.claim, choices, self._strategies)

    def _anew(self, allocation: Allocation, call: "_Call") -> Answer:
        choices, daemons = self._choose(allocation)
        self._edges.daemons.check(daemons)
        with self._locks.cards(choice.prepared.gpu_uuid for choice in choices):
            record, epoch = self._plan(allocation, choices, daemons)
            spec = self._spec(record, {choice.device.name: choice.device for choice in choices})
            if record.plan.steps:
                self._edges.store.put(record, forget_time_slices=_sliced(record))
            self._change_cards(record, spec, epoch)
        return self._finish(record, spec, epoch, call)

    def _is_begun(self, record: ClaimRecord, allocation: Allocation) -> bool:
        """Whether a claim only waits for its daemons, and what was begun is what is to be done now."""
        if record.state is not ClaimState.STARTED or not record.plan.daemons or not is_for(record, allocation):
            return False
        try:
            choices, daemons = self._choose(allocation)
        except DriverError:
            return False  # what has changed since is told after this is undone
        return record.devices == tuple(c.prepared for c in choices) and record.plan.daemons == daemons

    def _go_on(self, record: ClaimRecord, call: "_Call") -> Answer:
        spec, epoch = self._spec(record, self._edges.inventory().devices), self._edges.steps.epoch()
        try:
            with self._locks.cards(device.gpu_uuid for device in record.devices):
                self._edges.steps.take(record.plan.card_steps, [])
        except Exception as error:
            self._undo_for(record, error, lambda: self._take_back(record, call.turn))
            raise
        return self._finish(record, spec, epoch, call)

    def _change_cards(self, record: ClaimRecord, spec: PlannedSpec, epoch: str) -> None:
        """Take the steps of cards, with which a claim is complete unless it needs daemons."""
        taken: list[CardStep] = []
        with self._undone_on_failure(record, epoch, taken):
            self._edges.steps.take(record.plan.card_steps, taken)
            if not record.plan.daemons:
                self._complete(record, spec, epoch)

    def _complete(self, record: ClaimRecord, spec: PlannedSpec, epoch: str) -> None:
        self._edges.cdi.write(spec)
        done = replace(record, state=ClaimState.COMPLETED)
        # Without steps the file is the only effect, and recovery finds a file that has no record.
        if record.plan.steps:
            self._edges.store.complete(done, _sliced(record), epoch)
        else:
            self._edges.store.put(done)

    def _finish(self, record: ClaimRecord, spec: PlannedSpec, epoch: str, call: "_Call") -> Answer:
        if record.plan.daemons:
            self._bring_up(record, spec, epoch, call)
        self._failing_since.pop(record.claim.uid, None)
        log.info("claim %s is prepared: %s", record.claim, ", ".join(d.device for d in record.devices))
        if any(device.memory_budget is not None and not device.memory_enforced for device in record.devices):
            self._edges.watch_memory()
        return record.devices

    def _bring_up(self, record: ClaimRecord, spec: PlannedSpec, epoch: str, call: "_Call") -> None:
        """Wait for the claim's daemons, then complete it. Raises MpsStarting, with all that was begun kept."""
        try:
            with call.turn.paused():
                self._edges.daemons.up(record.plan.daemons, call.deadline)
            with self._locks.cards(device.gpu_uuid for device in record.devices):
                if self._is_ours(record):
                    self._complete(record, spec, epoch)
        except (MpsStarting, LockTimeout):
            raise
        except Exception as error:
            if call.turn.held and self._edges.store.get(record.claim.uid) == record:
                self._undo_for(record, error, lambda: self._take_back(record, call.turn))
            raise

    def _is_ours(self, record: ClaimRecord) -> bool:
        """Whether a claim is still as this call left it; False when another instance has completed it.

        Raises LockTimeout when another instance has begun to undo it.
        """
        now = self._edges.store.get(record.claim.uid)
        if now == record:
            return True
        if now is None or now.state is not ClaimState.COMPLETED or now.devices != record.devices:
            raise LockTimeout(f"claim {record.claim} was worked on by another instance of the driver meanwhile")
        return False

    def _plan(
        self, allocation: Allocation, choices: Sequence[Choice], daemons: Iterable[MpsDaemon]
    ) -> tuple[ClaimRecord, str]:
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
            plan=Plan(devices=prepared, steps=(*steps, *(StartMpsDaemon(daemon=daemon) for daemon in daemons))),
            prepared_at=time.time(),
        )
        return record, epoch

    @contextmanager
    def _undone_on_failure(self, record: ClaimRecord, epoch: str, taken: Sequence[CardStep]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._undo_for(record, error, lambda: self._remove(record, epoch, taken))
            raise

    def _undo_for(self, record: ClaimRecord, error: Exception, undo: Callable[[], None]) -> None:
        try:
            undo()
        except DriverError as second:
            # The record stays: the kubelet's next call or the sweep goes on from it.
            log.error("claim %s failed (%s) and undoing it too, to be tried again: %s", record.claim, error, second)

    def _take_back(self, record: ClaimRecord, turn: Held) -> None:
        uid, touched = record.claim.uid, _touched(record)
        if touched and record.state is ClaimState.COMPLETED:
            # From here on the cards are not what the answer promised, also if this call does not come to its end.
            record = replace(record, state=ClaimState.ENDING)
            self._edges.store.put(record)
        try:
            if record.plan.daemons:
                self._end_daemons(record, turn)
            with self._locks.cards(device.gpu_uuid for device in record.devices):
                self._remove(record, self._edges.steps.epoch() if touched else "")
        except (ControlError, MpsError, ApiError) as error:
            since = self._failing_since.setdefault(uid, time.monotonic())
            if time.monotonic() - since < _GIVE_UP_SECONDS:
                raise
            self._give_up(record, error)
        self._failing_since.pop(uid, None)

    def _end_daemons(self, record: ClaimRecord, turn: Held) -> None:
        self._edges.cdi.remove(record.claim.uid)
        with turn.paused():
            self._edges.daemons.down(record.plan.daemons)
        if self._edges.store.get(record.claim.uid) != record:
            raise LockTimeout(f"claim {record.claim} was worked on by another instance of the driver meanwhile")

    def _give_up(self, record: ClaimRecord, error: DriverError) -> None:
        """A card whose tool stays broken, or a daemon that stays, must not keep a pod from ending for ever.

        What watches over daemons tries to end one that is left over again.
        """
        reason = "GPUResetFailed"
        message = f"claim {record.claim} is unprepared without resetting its GPU, which failed again and again: {error}"
        if not isinstance(error, ControlError):
            self._edges.steps.try_open_to_all(uuid for daemon in record.plan.daemons for uuid in daemon.gpus)
            reason = "MPSDaemonLeft"
            message = f"claim {record.claim} is unprepared, and its MPS control daemon could not be ended: {error}"
        log.error("%s", message)
        self._edges.events.warning(reason, message)
        self._edges.store.forget_time_slices(device.gpu_uuid for device in record.devices)
        self._edges.store.remove(record.claim.uid)

    def _remove(self, record: ClaimRecord, epoch: str, taken: Sequence[CardStep] | None = None) -> None:
        self._edges.cdi.remove(record.claim.uid)
        undone: Undone = self._edges.steps.undo(record, epoch, taken)
        self._edges.store.remove(record.claim.uid, undone.time_slices, epoch)


@dataclass(frozen=True, slots=True)
class _Call:
    """One prepare: its turn, and when it has to give up waiting for daemons (``time.monotonic()``)."""

    turn: Held
    deadline: float


def _sliced(record: ClaimRecord) -> dict[str, int]:
    """GPU UUID -> time slice that the claim's steps set."""
    return {step.gpu_uuid: step.interval for step in record.plan.steps if isinstance(step, SetTimeSlice)}


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
