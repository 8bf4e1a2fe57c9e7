"""What a node has: full GPUs, MIG devices and the NVIDIA driver under them. Frozen values, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property
from types import MappingProxyType


class ComputeMode(Enum):
    """NVML's nvmlComputeMode_t, with its numbers."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class MemoryLimits(StrEnum):
    """What becomes of the memory limit of a claim that shares a GPU; the words are those of the device attribute.

    ENFORCED: NVIDIA's driver refuses what goes beyond it. OBSERVED: use is looked at and told.
    """

    ENFORCED = "enforced"
    OBSERVED = "observed"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU. memory_bytes: what it has of the GPU's memory, None where NVML cannot tell."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverInfo:
    """The NVIDIA driver of a node.

    driver_version: as NVML writes it, e.g. ``580.159.04``.
    cuda_driver_version: NVML's integer, 1000 * major + 10 * minor, e.g. 13000; None when it gave none.
    """

    driver_version: str
    cuda_driver_version: int | None = None
    nvml_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU. Optional facts are None where the driver does not give them.

    minor: NVML minor number, the N of /dev/nvidiaN; it makes the device name ``gpu-<minor>``.
    pci_bus_id: lower case ``dddd:bb:dd.f``. cuda_compute_capability: ``major.minor``.
    memory_bytes: NVML's total, None where memory is not reported (vGPU, unified memory).
    addressing_mode: ``HMM``, ``ATS`` or ``None`` as upstream publishes it.
    memory_limits: what becomes of limits here, None where nobody has looked: GPUs cannot be shared, or MIG mode is on.
    """

    index: int
    minor: int
    uuid: str
    pci_bus_id: str
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: str
    memory_bytes: int | None = None
    addressing_mode: str | None = None
    numa_node: int | None = None
    pcie_root: str | None = None
    mig_enabled: bool = False
    compute_mode: ComputeMode | None = None
    persistence: bool | None = None
    memory_limits: MemoryLimits | None = None

    @property
    def name(self) -> str:
        """The device name in ResourceSlices."""
        return f"gpu-{self.minor}"

    @property
    def physical(self) -> "Gpu":
        """The card whose settings a claim on this device would change."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """One MIG device made outside the driver (static MIG).

    profile: e.g. ``1g.5gb``; profile_id: the GPU instance profile's id as ``nvidia-smi mig -lgip`` shows it;
    placement: start and size in memory slices; capacities as NVML's GPU instance profile gives them.
    """

    parent: Gpu
    uuid: str
    profile: str
    profile_id: int
    gpu_instance_id: int
    compute_instance_id: int
    placement_start: int
    placement_size: int
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int

    @property
    def name(self) -> str:
        """``gpu-<minor>-mig-<profile>-<profile id>-<placement start>``, the profile made DNS-safe."""
        lowered = self.profile.lower().replace(".", "")
        profile = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in lowered).strip("-")
        return f"gpu-{self.parent.minor}-mig-{profile}-{self.profile_id}-{self.placement_start}"

    @property
    def physical(self) -> Gpu:
        """The card that carries this device."""
        return self.parent


Device = Gpu | MigDevice


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """All that one look at the node found.

    gpus: every GPU, also those in MIG mode, sorted by PCI bus id. mig_devices: sorted by parent and placement.
    """

    driver: DriverInfo
    gpus: tuple[Gpu, ...] = ()
    mig_devices: tuple[MigDevice, ...] = ()

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """The devices on offer by name: full GPUs that are not in MIG mode, then MIG devices."""
        offered: list[Device] = [gpu for gpu in self.gpus if not gpu.mig_enabled]
        offered.extend(self.mig_devices)
        return MappingProxyType({device.name: device for device in offered})
