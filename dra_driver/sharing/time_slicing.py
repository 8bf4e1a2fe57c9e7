"""Time slicing: clients take turns on a card, in turns as long as the interval says.

The card must be in compute mode DEFAULT, or a second client is turned away whatever the time slice is.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dra_driver.model.devices import ComputeMode, Device, Gpu
from dra_driver.model.plan import CardStep, SetComputeMode, SetTimeSlice
from dra_driver.sharing.strategy import GpuState

if TYPE_CHECKING:
    from dra_driver.sharing.strategy import Sharing

DEFAULT_INTERVAL = 0


class TimeSlicingStrategy:
    """Strategy ``TimeSlicing``."""

    with_shares = True

    def time_slice(self, sharing: "Sharing") -> int | None:
        """The interval's number; MIG's TimeSlicing has no interval and sets nothing."""
        from dra_driver_api.config import TimeSlicing  # loaded already: see ``strategy``

        return sharing.time_slicing_config.interval.level if isinstance(sharing, TimeSlicing) else None

    def steps(self, gpu: Gpu, sharing: "Sharing", state: GpuState) -> tuple[CardStep, ...]:
        """Compute mode first, then the slice; each only where the card differs."""
        interval = self.time_slice(sharing)
        if interval is None:
            return ()
        steps: list[CardStep] = []
        if state.compute_mode is not ComputeMode.DEFAULT:
            steps.append(
                SetComputeMode(
                    gpu_uuid=gpu.uuid, device=gpu.name, mode=ComputeMode.DEFAULT, previous=state.compute_mode
                )
            )
        if state.time_slice != interval:
            steps.append(SetTimeSlice(gpu_uuid=gpu.uuid, device=gpu.name, interval=interval, previous=state.time_slice))
        return tuple(steps)

    def daemon(self, claim_uid: str, devices: Sequence[Device], sharing: "Sharing") -> None:
        """None: processes take turns by themselves."""
