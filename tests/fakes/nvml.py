"""A function table like pynvml's, over cards that a test describes. Handles are what NVML's are: opaque."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from dra_driver.devices import vocabulary
from dra_driver.model.devices import ComputeMode, DriverInfo, Gpu, Inventory, MigDevice


@dataclass
class FakeProfile:
    """GPU instance profile ``number`` of a card; ``name`` empty for drivers that know only version 1."""

    number: int
    id: int
    slices: int
    memory_mib: int
    multiprocessors: int
    name: str = ""


@dataclass
class FakeMig:
    """A MIG device in slot ``slot`` of its card."""

    slot: int
    device: MigDevice
    compute_slices: int = 1
    instance_slices: int = 1


@dataclass
class FakeCard:
    """One GPU. ``facts`` hold its values, ``fail`` NVML error codes by function name.

    processes: (pid, bytes) of those that compute on it.
    """

    gpu: Gpu
    profiles: list[FakeProfile] = field(default_factory=list)
    migs: list[FakeMig] = field(default_factory=list)
    fail: dict[str, int] = field(default_factory=dict)
    compute_mode: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)


class FakeNvml:
    """Implements the pynvml functions that the driver uses; ``fail`` are codes by function name for all cards.

    ``calls`` counts calls by name; ``sessions`` is NVML's reference count.
    limits_asked: cgroups whose memory limits were read.
    """

    NVMLError = pynvml.NVMLError
    NVML_INIT_FLAG_NO_GPUS = pynvml.NVML_INIT_FLAG_NO_GPUS
    c_nvmlGetMemoryLimits_v1_t = pynvml.c_nvmlGetMemoryLimits_v1_t  # noqa: N815

    def __init__(self, cards: Iterable[FakeCard], driver: DriverInfo) -> None:
        self.cards = list(cards)
        self.driver = driver
        self.fail: dict[str, int] = {}
        self.missing: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.sessions = 0
        self.limits_asked: list[str] = []

    @classmethod
    def of(cls, inventory: Inventory) -> "FakeNvml":
        """The cards of an inventory, as NVML would describe them."""
        cards = []
        for gpu in inventory.gpus:
            mine = [mig for mig in inventory.mig_devices if mig.parent.uuid == gpu.uuid]
            profiles = {
                mig.profile_id: FakeProfile(
                    number=0,
                    id=mig.profile_id,
                    slices=1,
                    memory_mib=mig.memory_bytes // 1024**2,
                    multiprocessors=mig.multiprocessors,
                    name=f"MIG {mig.profile}",
                )
                for mig in mine
            }
            card = FakeCard(gpu, list(profiles.values()), [FakeMig(i, mig) for i, mig in enumerate(mine)])
            card.compute_mode = (gpu.compute_mode or ComputeMode.DEFAULT).value
            cards.append(card)
        return cls(cards, inventory.driver)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return object.__getattribute__(self, name)
        if name in self.missing:
            raise AttributeError(name)
        function = object.__getattribute__(self, name)

        def call(*args: Any) -> Any:
            self.calls[name] += 1
            if not self.sessions and name not in ("nvmlInitWithFlags", "nvmlShutdown"):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            code = self.fail.get(name)
            if code is None and args and isinstance(args[0], FakeCard):
                code = args[0].fail.get(name)
            if code is not None:
                raise pynvml.NVMLError(code)
            return function(*args)

        return call

    # Session and system.

    def nvmlInitWithFlags(self, flags: int) -> None:  # noqa: N802
        assert flags == self.NVML_INIT_FLAG_NO_GPUS
        self.sessions += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        if not self.sessions:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return self.driver.driver_version.encode()

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int | None:  # noqa: N802
        return self.driver.cuda_driver_version

    def nvmlSystemGetNVMLVersion(self) -> str | None:  # noqa: N802
        return self.driver.nvml_version

    # Handles.

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:  # noqa: N802
        card = self.cards[index]
        if "nvmlDeviceGetHandleByIndex" in card.fail:
            raise pynvml.NVMLError(card.fail["nvmlDeviceGetHandleByIndex"])
        return card

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeCard:  # noqa: N802
        for card in self.cards:
            if card.gpu.uuid == uuid:
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMemoryLimits_v1(self, card: FakeCard, limits: Any) -> None:  # noqa: N802
        self.limits_asked.append(str(limits.nameSpace))
        limits.hardLimit = card.gpu.memory_bytes or 0

    def nvmlDeviceGetComputeRunningProcesses(self, card: FakeCard) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes]

    # Facts of a card.

    def nvmlDeviceGetUUID(self, handle: FakeCard | FakeMig) -> bytes:  # noqa: N802
        found = handle.gpu.uuid if isinstance(handle, FakeCard) else handle.device.uuid
        return found.encode()

    def nvmlDeviceGetMinorNumber(self, card: FakeCard) -> int:  # noqa: N802
        return card.gpu.minor

    def nvmlDeviceGetPciInfo_v3(self, card: FakeCard) -> Any:  # noqa: N802
        return SimpleNamespace(busId=f"0000{card.gpu.pci_bus_id}".upper().encode())

    def nvmlDeviceGetName(self, card: FakeCard) -> str:  # noqa: N802
        return card.gpu.product_name

    def nvmlDeviceGetBrand(self, card: FakeCard) -> int:  # noqa: N802
        return _number(vocabulary.BRANDS, card.gpu.brand)

    def nvmlDeviceGetArchitecture(self, card: FakeCard) -> int:  # noqa: N802
        return _number(vocabulary.ARCHITECTURES, card.gpu.architecture)

    def nvmlDeviceGetCudaComputeCapability(self, card: FakeCard) -> tuple[int, int]:  # noqa: N802
        major, minor = card.gpu.cuda_compute_capability.split(".")
        return int(major), int(minor)

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard) -> Any:  # noqa: N802
        return SimpleNamespace(total=card.gpu.memory_bytes)

    def nvmlDeviceGetAddressingMode(self, card: FakeCard) -> int:  # noqa: N802
        return _number(vocabulary.ADDRESSING_MODES, card.gpu.addressing_mode)

    def nvmlDeviceGetMigMode(self, card: FakeCard) -> list[int]:  # noqa: N802
        return [int(card.gpu.mig_enabled), int(card.gpu.mig_enabled)]

    def nvmlDeviceGetPersistenceMode(self, card: FakeCard) -> int:  # noqa: N802
        return int(bool(card.gpu.persistence))

    def nvmlDeviceGetComputeMode(self, card: FakeCard) -> int:  # noqa: N802
        return card.compute_mode

    def nvmlDeviceSetComputeMode(self, card: FakeCard, mode: int) -> None:  # noqa: N802
        card.compute_mode = mode

    # MIG.

    def nvmlDeviceGetMaxMigDeviceCount(self, card: FakeCard) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: FakeCard, slot: int) -> FakeMig:  # noqa: N802
        for mig in card.migs:
            if mig.slot == slot:
                return mig
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetAttributes_v2(self, mig: FakeMig) -> Any:  # noqa: N802
        return SimpleNamespace(gpuInstanceSliceCount=mig.instance_slices, computeInstanceSliceCount=mig.compute_slices)

    def nvmlDeviceGetGpuInstanceId(self, mig: FakeMig) -> int:  # noqa: N802
        return mig.device.gpu_instance_id

    def nvmlDeviceGetComputeInstanceId(self, mig: FakeMig) -> int:  # noqa: N802
        return mig.device.compute_instance_id

    def nvmlDeviceGetGpuInstanceById(self, card: FakeCard, instance: int) -> MigDevice:  # noqa: N802
        return next(mig.device for mig in card.migs if mig.device.gpu_instance_id == instance)

    def nvmlGpuInstanceGetInfo(self, device: MigDevice) -> Any:  # noqa: N802
        return SimpleNamespace(
            profileId=device.profile_id,
            placement=SimpleNamespace(start=device.placement_start, size=device.placement_size),
        )

    def nvmlDeviceGetGpuInstanceProfileInfo(self, card: FakeCard, number: int, version: int = 2) -> Any:  # noqa: N802
        for profile in card.profiles:
            if profile.number == number:
                return _profile_info(profile, version)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _number(words: Any, word: str | None) -> int:
    return next(number for number, known in words.items() if known == word)


def _profile_info(profile: FakeProfile, version: int) -> Any:
    if version == 2 and not profile.name:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    info = SimpleNamespace(
        id=profile.id,
        sliceCount=profile.slices,
        memorySizeMB=profile.memory_mib,
        multiprocessorCount=profile.multiprocessors,
        copyEngineCount=1,
        decoderCount=0,
        encoderCount=0,
        jpegCount=0,
        ofaCount=0,
    )
    if version == 2:
        info.name = profile.name.encode()
    return info
