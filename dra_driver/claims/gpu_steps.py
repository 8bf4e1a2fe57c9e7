"""Takes the steps of a plan on the cards, and undoes them. What a card has is read here, what it needs is not decided.

A step may have been taken or not when it is undone (the process may have been killed in between), so undoing is
repeatable, and it leaves alone what another live claim on the same card relies on.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from dra_driver.claims.store import Store
from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import ControlError, ControlGone, ControlRefused, ControlTimeout, ControlUnsupported
from dra_driver.model.plan import CardStep, SetComputeMode, SetTimeSlice
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.ports import GpuControl
from dra_driver.sharing.strategy import GpuState
from dra_driver.sharing.time_slicing import DEFAULT_INTERVAL

log = logging.getLogger(__name__)

# After these nothing is left to undo: no such setting, no driver, or not ours to change.
_NOTHING_LEFT = (ControlUnsupported, ControlGone, ControlRefused)


@dataclass(slots=True)
class Undone:
    """What undoing left behind: the slices that cards are now known to have."""

    time_slices: dict[str, int] = field(default_factory=dict)


class GpuSteps:
    """Reads, sets and resets cards for claims."""

    def __init__(self, control: GpuControl, store: Store, observe_only: bool = False) -> None:
        self._control = control
        self._store = store
        self._observe_only = observe_only

    def epoch(self) -> str:
        """The driver epoch under which beliefs count; '' when the driver is gone."""
        try:
            return self._control.epoch()
        except ControlError as error:
            log.warning("cannot tell whether the NVIDIA driver was reloaded: %s", error)
            return ""

    def states(self, gpu_uuids: Iterable[str], epoch: str) -> dict[str, GpuState]:
        """What the cards have now. Raises ControlError."""
        return {uuid: self._state(uuid, epoch) for uuid in gpu_uuids}

    def _state(self, uuid: str, epoch: str) -> GpuState:
        known = self._store.time_slice(uuid, epoch)
        if known is None and self._observe_only:
            # The tool is run only here: where nothing may be set, reading is the only way to know. A card that the
            # tool cannot tell about has what the driver starts with.
            read = self._control.time_slice(uuid)
            known = DEFAULT_INTERVAL if read is None else read
        return GpuState(compute_mode=self._control.compute_mode(uuid), time_slice=known)

    def check_allowed(self, steps: Iterable[CardStep]) -> None:
        """Raises ControlRefused when something would have to be set and the driver only observes."""
        if not self._observe_only:
            return
        for step in steps:
            raise ControlRefused(
                f"{describe(step)} is needed, and the driver runs with --gpu-control=observe, which never changes a "
                "GPU; start it with --gpu-control=set, or have the administrator set the GPU"
            )

    def take(self, steps: Iterable[CardStep], taken: list[CardStep]) -> None:
        """Take the steps in order; each is put on ``taken`` as it begins. Raises ControlError at the first failure."""
        for step in steps:
            log.info("%s", describe(step))
            taken.append(step)
            match step:
                case SetComputeMode():
                    self._control.set_compute_mode(step.gpu_uuid, step.mode)
                case SetTimeSlice():
                    self._control.set_time_slice(step.gpu_uuid, step.interval)

    def undo(self, record: ClaimRecord, epoch: str, taken: Sequence[CardStep] | None = None) -> Undone:
        """Undo a claim's steps on its cards, on all that can be undone. Raises ControlError to be asked again.

        A started claim's steps are undone in reverse; ``taken`` are those that were begun where that is known, the
        last of which failed. Any other claim leaves a card's slice at Default when it was the last that had asked
        for one. The compute mode is DEFAULT then, which is also what a reset would set: time slicing had it so, and
        after MPS it is set.
        """
        undone = Undone()
        if self._observe_only:
            if record.plan.card_steps:
                log.warning("claim %s had changed its GPU; --gpu-control=observe leaves it as it is", record.claim)
            return undone
        actions = self._actions(record, epoch, taken, undone)
        failures = [error for error in (self._attempt(record.claim, *action) for action in actions) if error]
        if failures:
            raise failures[0]
        return undone

    def _actions(
        self, record: ClaimRecord, epoch: str, taken: Sequence[CardStep] | None, undone: Undone
    ) -> list[tuple[Callable[[], None], bool]]:
        """What to do, each with whether it may fail: a step that failed cannot be undone by a tool that is broken."""
        if record.state is not ClaimState.STARTED:
            users = [(u, d) for u, d in _slice_users(record).items() if not self._others_slice(record, u)]
            resets = [(partial(self._reset, uuid, device, epoch, undone), False) for uuid, device in users]
            cards = [uuid for daemon in record.plan.daemons for uuid in daemon.gpus]
            return [*resets, *((partial(self.open_to_all, uuid), False) for uuid in cards)]
        steps = record.plan.card_steps if taken is None else taken
        return [
            (partial(self._undo_step, record, step, undone), taken is not None and step is steps[-1])
            for step in reversed(steps)
        ]

    def _attempt(self, claim: ClaimRef, action: Callable[[], None], may_fail: bool) -> ControlError | None:
        try:
            action()
        except _NOTHING_LEFT as error:
            log.warning("claim %s leaves its GPU as it is: %s", claim, error)
        except ControlError as error:
            if not may_fail or isinstance(error, ControlTimeout):
                return error
            log.warning("claim %s: the step that failed cannot be undone either: %s", claim, error)
        return None

    def open_to_all(self, uuid: str) -> None:
        """Compute mode DEFAULT on a card that an MPS control daemon had to itself. Raises ControlError."""
        mode = self._control.compute_mode(uuid)
        if mode is not ComputeMode.DEFAULT:
            log.info("MPS leaves: compute mode %s on %s, which has %s", ComputeMode.DEFAULT.name, uuid, mode.name)
            self._control.set_compute_mode(uuid, ComputeMode.DEFAULT)

    def try_open_to_all(self, uuids: Iterable[str]) -> None:
        """As ``open_to_all`` for each, where there is nobody to tell of what fails but the log."""
        for uuid in uuids:
            try:
                self.open_to_all(uuid)
            except ControlError as error:
                log.warning("GPU %s is not set back to compute mode DEFAULT: %s", uuid, error)

    def _undo_step(self, record: ClaimRecord, step: CardStep, undone: Undone) -> None:
        if self._others_slice(record, step.gpu_uuid):
            return
        match step:
            case SetComputeMode():
                log.info("back to compute mode %s on %s (%s)", step.previous.name, step.device, step.gpu_uuid)
                self._control.set_compute_mode(step.gpu_uuid, step.previous)
            case SetTimeSlice():
                log.info("back to time slice 0 on %s (%s)", step.device, step.gpu_uuid)
                self._control.set_time_slice(step.gpu_uuid, DEFAULT_INTERVAL)
                undone.time_slices[step.gpu_uuid] = DEFAULT_INTERVAL

    def _reset(self, uuid: str, device: str, epoch: str, undone: Undone) -> None:
        if self._store.time_slice(uuid, epoch) == DEFAULT_INTERVAL:
            return
        self._store.forget_time_slices([uuid])
        log.info("last user of the time slice leaves: back to time slice 0 on %s (%s)", device, uuid)
        self._control.set_time_slice(uuid, DEFAULT_INTERVAL)
        undone.time_slices[uuid] = DEFAULT_INTERVAL

    def _others_slice(self, record: ClaimRecord, uuid: str) -> bool:
        return any(
            holder.claim.uid != record.claim.uid and holder.device.time_slice is not None
            for holder in self._store.holders([uuid])
        )


def _slice_users(record: ClaimRecord) -> Mapping[str, str]:
    return {d.gpu_uuid: d.device for d in record.devices if d.time_slice is not None}


def describe(step: CardStep) -> str:
    """A step in words, for logs and errors."""
    match step:
        case SetComputeMode():
            return f"compute mode {step.mode.name} on {step.device} ({step.gpu_uuid}), which has {step.previous.name}"
        case SetTimeSlice():
            before = "an unknown one" if step.previous is None else str(step.previous)
            return f"time slice {step.interval} on {step.device} ({step.gpu_uuid}), which has {before}"
