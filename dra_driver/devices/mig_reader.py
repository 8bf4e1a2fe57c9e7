"""Reads the MIG devices that someone else made on a GPU (static MIG). Creates and destroys nothing.

No pynvml here: ``call`` comes from ``devices.nvml``.
"""

import logging
from dataclasses import dataclass
from typing import Any

from dra_driver.devices import vocabulary
from dra_driver.devices.gpu_reader import OnceLog
from dra_driver.devices.nvml_calls import Call, FunctionMissing, NotFound
from dra_driver.model.devices import Gpu, MigDevice
from dra_driver.model.errors import ControlError, ControlGone, ControlUnsupported

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class _Profile:
    name: str
    info: Any


class MigReader:
    """MIG devices of a GPU by NVML handle."""

    def __init__(self, call: Call, once: OnceLog) -> None:
        self._call = call
        self._once = once
        self._known: dict[str, dict[int, _Profile]] = {}

    def forget(self) -> None:
        """The NVML session is over: what was kept of cards may be of others."""
        self._known.clear()

    def read(self, gpu: Gpu, handle: Any) -> tuple[MigDevice, ...]:
        """All whole MIG devices of a GPU in MIG mode, by placement.

        One that cannot be read is left out and logged.

        A compute instance that covers only part of its GPU instance is left out as well: names and capacities
        are those of GPU instances, so two of them would be one device.
        """
        profiles = self._known.get(gpu.uuid)
        if profiles is None:
            # A card's profiles do not change, and asking for them takes longer than all the rest of a scan.
            profiles = self._known[gpu.uuid] = self._profiles(gpu, handle)
        found: list[MigDevice] = []
        for index in range(self._slots(gpu, handle)):
            try:
                device = self._device(gpu, handle, index, profiles)
            except ControlGone:
                raise
            except ControlError as error:
                self._once.say(logging.ERROR, f"MIG device {index} of GPU {gpu.uuid} is left out: {error}")
                continue
            if device is not None:
                found.append(device)
        return tuple(sorted(found, key=lambda device: (device.placement_start, device.profile_id)))

    def _slots(self, gpu: Gpu, handle: Any) -> int:
        try:
            return int(self._call("nvmlDeviceGetMaxMigDeviceCount", handle))
        except ControlUnsupported as error:
            self._once.say(logging.WARNING, f"GPU {gpu.uuid}: its MIG devices cannot be listed: {error}")
            return 0

    def _device(self, gpu: Gpu, parent: Any, index: int, profiles: dict[int, _Profile]) -> MigDevice | None:
        handle = self._slot(parent, index)
        if handle is None:
            return None
        uuid = str(self._call("nvmlDeviceGetUUID", handle))
        if not self._whole(uuid, handle):
            return None
        instance_id = int(self._call("nvmlDeviceGetGpuInstanceId", handle))
        compute_id = int(self._call("nvmlDeviceGetComputeInstanceId", handle))
        instance = self._call("nvmlDeviceGetGpuInstanceById", parent, instance_id)
        instance_info = self._call("nvmlGpuInstanceGetInfo", instance)
        profile = profiles.get(int(instance_info.profileId))
        if profile is None:
            self._known.pop(gpu.uuid, None)
            raise ControlError(f"NVML describes no GPU instance profile with id {instance_info.profileId}")
        info = profile.info
        return MigDevice(
            parent=gpu,
            uuid=uuid,
            profile=profile.name,
            profile_id=int(info.id),
            gpu_instance_id=instance_id,
            compute_instance_id=compute_id,
            placement_start=int(instance_info.placement.start),
            placement_size=int(instance_info.placement.size),
            memory_bytes=int(info.memorySizeMB) * _MIB,
            multiprocessors=int(info.multiprocessorCount),
            copy_engines=int(info.copyEngineCount),
            decoders=int(info.decoderCount),
            encoders=int(info.encoderCount),
            jpeg_engines=int(info.jpegCount),
            ofa_engines=int(info.ofaCount),
        )

    def _slot(self, parent: Any, index: int) -> Any | None:
        """Handle of the MIG device in a slot; slots may be empty, also between used ones."""
        try:
            return self._call("nvmlDeviceGetMigDeviceHandleByIndex", parent, index)
        except NotFound:
            return None

    def _whole(self, uuid: str, handle: Any) -> bool:
        try:
            slices = self._call("nvmlDeviceGetAttributes_v2", handle)
        except ControlUnsupported:
            return True
        part, all_of_it = int(slices.computeInstanceSliceCount), int(slices.gpuInstanceSliceCount)
        if part == all_of_it:
            return True
        self._once.say(
            logging.WARNING,
            f"MIG device {uuid} is not offered: its compute instance covers {part} of {all_of_it} slices",
        )
        return False

    def _profiles(self, gpu: Gpu, handle: Any) -> dict[int, _Profile]:
        """The card's GPU instance profiles by the id that ``nvidia-smi mig -lgip`` shows."""
        profiles: dict[int, _Profile] = {}
        for number in range(vocabulary.PROFILE_NUMBERS):
            try:
                info = self._profile(handle, number)
                profiles[int(info.id)] = _Profile(self._profile_name(gpu, number, info), info)
            except ControlGone:
                raise
            except ControlError:
                # Each kind of card has its own set of profiles; there is no call that lists them.
                continue
        return profiles

    def _profile(self, handle: Any, number: int) -> Any:
        try:
            return self._call("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        except FunctionMissing:
            # Drivers before 510 know only the first version, which has no name in it.
            return self._call("nvmlDeviceGetGpuInstanceProfileInfo", handle, number, 1)

    def _profile_name(self, gpu: Gpu, number: int, info: Any) -> str:
        given = getattr(info, "name", b"")
        name = given.decode("ascii", "replace") if isinstance(given, bytes) else str(given)
        if name:
            return name.removeprefix("MIG").strip()
        if not gpu.memory_bytes:
            raise ControlError("a profile without a name cannot be named while the card's memory is unknown")
        return vocabulary.profile_name(number, int(info.sliceCount), int(info.memorySizeMB), gpu.memory_bytes)
