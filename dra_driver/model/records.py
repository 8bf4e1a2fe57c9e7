"""What the state store keeps of a claim. One record a claim, from the first step until it is unprepared."""

from dataclasses import dataclass
from enum import Enum

from dra_driver.model.claims import ClaimRef
from dra_driver.model.plan import Plan, PreparedDevice


class ClaimState(Enum):
    """STARTED: steps may have been taken. COMPLETED: the kubelet may be given the answer. ENDING: being undone."""

    STARTED = "started"
    COMPLETED = "completed"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim that holds devices on this node. ``prepared_at`` is Unix seconds."""

    claim: ClaimRef
    state: ClaimState
    plan: Plan
    prepared_at: float

    @property
    def devices(self) -> tuple[PreparedDevice, ...]:
        """The devices the claim holds."""
        return self.plan.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One claim's hold on one device, as conflict checks see it."""

    claim: ClaimRef
    state: ClaimState
    device: PreparedDevice
