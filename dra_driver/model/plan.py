"""What will be done for a claim, decided before anything is done: ordered frozen steps and prepared devices."""

from dataclasses import dataclass

from dra_driver.model.devices import ComputeMode
from dra_driver.model.mps import MpsDaemon


@dataclass(frozen=True, slots=True, kw_only=True)
class SetComputeMode:
    """Set the compute mode of a GPU; ``previous`` is what it had, and what undoing a failed prepare sets."""

    gpu_uuid: str
    device: str
    mode: ComputeMode
    previous: ComputeMode


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimeSlice:
    """Set the time slice of a GPU (0 Default, 1 Short, 2 Medium, 3 Long).

    ``previous`` is the slice it is known to have, None when nobody knows; undoing sets ``previous`` or 0.
    """

    gpu_uuid: str
    device: str
    interval: int
    previous: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMpsDaemon:
    """Have an MPS control daemon serve; undoing ends it. Taken last, without the cards' locks: it needs none."""

    daemon: MpsDaemon


CardStep = SetComputeMode | SetTimeSlice
Step = CardStep | StartMpsDaemon


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of a prepared claim, enough to answer the kubelet, rebuild the CDI file and unprepare.

    requests: request names without sub-request. gpu_uuid: the physical card; uuid: of the device itself.
    sharing: the normalised sharing config as canonical JSON text, '' when the claim asked for none.
    time_slice: the interval the claim asked for on this card, None when it asked for none.
    consumed_capacity: as in the allocation, empty unless the device is shared by capacity.
    memory_budget: bytes of the GPU's memory that the claim may have by this, None for no limit.
    memory_enforced: whether the claim's CDI file has the budget enforced; else it is observed.
    """

    requests: tuple[str, ...]
    pool: str
    device: str
    uuid: str
    gpu_uuid: str
    cdi_ids: tuple[str, ...]
    admin_access: bool = False
    share_id: str | None = None
    sharing: str = ""
    time_slice: int | None = None
    consumed_capacity: tuple[tuple[str, str], ...] = ()
    memory_budget: int | None = None
    memory_enforced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Devices to hand out and the steps that make the GPUs ready, in the order they are taken."""

    devices: tuple[PreparedDevice, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def card_steps(self) -> tuple[CardStep, ...]:
        """Those that change a card."""
        return tuple(step for step in self.steps if not isinstance(step, StartMpsDaemon))

    @property
    def daemons(self) -> tuple[MpsDaemon, ...]:
        """The MPS control daemons that serve the claim."""
        return tuple(step.daemon for step in self.steps if isinstance(step, StartMpsDaemon))
