"""MPS: clients run side by side through a control daemon, which has the card to itself.

A full GPU is in compute mode EXCLUSIVE_PROCESS for as long as a claim has it in this way, so that no process gets past
the daemon; hence no other way of sharing can be on the same card. A MIG device has no compute mode of its own, and its
card's is left alone.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.model.devices import ComputeMode, Device, Gpu
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.plan import CardStep, SetComputeMode
from dra_driver.sharing.strategy import GpuState

if TYPE_CHECKING:
    from dra_driver.sharing.strategy import Sharing

STRATEGY: Final = "MPS"

_MULTI_USER_FROM: Final = 7
"""Major compute capability (Volta) from which one MPS server takes clients of several users."""


class MpsStrategy:
    """Strategy ``MPS``."""

    with_shares = False

    def time_slice(self, sharing: "Sharing") -> int | None:
        """None: the slice is left as it is."""
        return None

    def steps(self, gpu: Gpu, sharing: "Sharing", state: GpuState) -> tuple[CardStep, ...]:
        """Compute mode EXCLUSIVE_PROCESS, where the card differs."""
        wanted = ComputeMode.EXCLUSIVE_PROCESS
        if state.compute_mode is wanted:
            return ()
        return (SetComputeMode(gpu_uuid=gpu.uuid, device=gpu.name, mode=wanted, previous=state.compute_mode),)

    def daemon(self, claim_uid: str, devices: Sequence[Device], sharing: "Sharing") -> MpsDaemon:
        """The daemon for these devices. Raises ValueError for limits and users that they do not allow."""
        from dra_driver_api.config import Mps, pinned_memory_limits  # loaded already: see ``strategy``

        if not isinstance(sharing, Mps):
            raise TypeError(f"{sharing!r} is no MPS config")
        config = sharing.mps_config
        if config.multi_user:
            _check_multi_user(devices)
        uuids = sorted({device.uuid for device in devices})
        return MpsDaemon(
            id=daemon_id(claim_uid, uuids),
            devices=tuple(uuids),
            gpus=tuple(sorted({device.uuid for device in devices if isinstance(device, Gpu)})),
            # The daemon reads 0 as no limit at all, which is what it starts with.
            thread_percentage=config.default_active_thread_percentage or None,
            memory_limits=tuple(pinned_memory_limits(config, uuids).items()),
            multi_user=config.multi_user,
        )


def daemon_id(claim_uid: str, uuids: Iterable[str]) -> str:
    """``<claim uid>-<5 hex digits>``, as NVIDIA's driver has it: the digits are of the devices' UUIDs, sorted."""
    return f"{claim_uid}-{hashlib.sha256(','.join(sorted(uuids)).encode()).hexdigest()[:5]}"


def _check_multi_user(devices: Sequence[Device]) -> None:
    for device in devices:
        if not isinstance(device, Gpu):
            continue
        capability = device.cuda_compute_capability
        major = capability.partition(".")[0]
        if not major.isdecimal() or int(major) < _MULTI_USER_FROM:
            raise ValueError(
                f"error validating GPU config: multiUser is true, and device {device.name} ({device.product_name}) has "
                f"compute capability {capability or 'unknown'}: one MPS server takes clients of several users from "
                f"{_MULTI_USER_FROM}.0 on; take multiUser out, or ask for another GPU"
            )
