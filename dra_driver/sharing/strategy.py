"""What a sharing strategy is, and what it may know of a card when it decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dra_driver.model.devices import ComputeMode, Device, Gpu
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.plan import CardStep

if TYPE_CHECKING:
    # The config types bring pydantic along, a fifth of the daemon's memory: a node pays for it with the first claim
    # that carries a config, so nothing imports them before ``claims.configs`` does.
    from dra_driver_api.config import MigTimeSlicing, Mps, TimeSlicing

    Sharing = TimeSlicing | MigTimeSlicing | Mps


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """Settings of one card: the compute mode as just read; the time slice as far as it is known."""

    compute_mode: ComputeMode
    time_slice: int | None


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """The ``sharing`` of the config that applies to a device, and its canonical text to compare and store.

    entry: which of the claim's configs it is of. Devices of one entry share an MPS control daemon, devices of two
    entries do not, however alike these are: the indices of their memory limits count within the entry.
    """

    sharing: "Sharing"
    canonical: str
    entry: str = ""

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.sharing.strategy


class Strategy(Protocol):
    """One way of sharing.

    with_shares: whether several claims may share a device in this way.
    """

    @property
    def with_shares(self) -> bool:
        """See above."""

    def time_slice(self, sharing: "Sharing") -> int | None:
        """The interval 0..3 that a config asks for on a full GPU, None when the strategy sets none."""

    def steps(self, gpu: Gpu, sharing: "Sharing", state: GpuState) -> tuple[CardStep, ...]:
        """The steps that bring a card from ``state`` to what ``sharing`` asks for; empty when it is there."""

    def daemon(self, claim_uid: str, devices: Sequence[Device], sharing: "Sharing") -> MpsDaemon | None:
        """The daemon that serves a claim's devices of one entry, None when the strategy needs none.

        Raises ValueError for a config that does not fit the devices.
        """


Strategies = Mapping[str, Strategy]
"""The strategies that are switched on, by the name that a config uses."""
