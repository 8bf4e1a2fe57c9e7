"""Ready-made values for tests: GPUs, inventories, claims, configs."""

from typing import Any

from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import ComputeMode, DriverInfo, Gpu, Inventory, MigDevice

DRIVER = DriverInfo(driver_version="580.159.04", cuda_driver_version=13000, nvml_version="13.580.159.04")
NODE = "node-a"


def gpu_uuid(number: int) -> str:
    """UUID of the GPU with this minor number."""
    return f"GPU-00000000-0000-4000-8000-{number:012d}"


def make_gpu(minor: int = 0, **changes: Any) -> Gpu:
    """An H200, changed as asked."""
    facts: dict[str, Any] = {
        "index": minor,
        "minor": minor,
        "uuid": gpu_uuid(minor),
        "pci_bus_id": f"0000:{minor + 1:02x}:00.0",
        "product_name": "NVIDIA H200",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cuda_compute_capability": "9.0",
        "memory_bytes": 150754820096,
        "addressing_mode": "None",
        "numa_node": 0,
        "pcie_root": "pci0000:00",
        "compute_mode": ComputeMode.DEFAULT,
        "persistence": True,
    }
    return Gpu(**(facts | changes))


def make_mig(parent: Gpu, start: int = 0, **changes: Any) -> MigDevice:
    """A 1g.18gb device of an H200."""
    facts: dict[str, Any] = {
        "parent": parent,
        "uuid": f"MIG-{parent.minor:08d}-0000-5000-8000-{start:012d}",
        "profile": "1g.18gb",
        "profile_id": 19,
        "gpu_instance_id": 7 + start,
        "compute_instance_id": 0,
        "placement_start": start,
        "placement_size": 1,
        "memory_bytes": 16384 * 1024 * 1024,
        "multiprocessors": 16,
        "copy_engines": 1,
        "decoders": 1,
        "encoders": 0,
        "jpeg_engines": 1,
        "ofa_engines": 0,
    }
    return MigDevice(**(facts | changes))


def make_inventory(gpus: int = 2, mig: tuple[MigDevice, ...] = ()) -> Inventory:
    """A node of H200s."""
    return Inventory(driver=DRIVER, gpus=tuple(make_gpu(minor) for minor in range(gpus)), mig_devices=mig)


def claim_ref(number: int = 1, name: str | None = None) -> ClaimRef:
    """A claim in namespace team-a."""
    return ClaimRef("team-a", name or f"claim-{number}", f"00000000-0000-4000-9000-{number:012d}")


def result(device: str = "gpu-0", request: str = "gpu", **more: Any) -> dict[str, Any]:
    """One allocation result of this driver."""
    return {"driver": "gpu.nvidia.com", "pool": NODE, "device": device, "request": request} | more


def time_slicing(interval: Any = "Long") -> dict[str, Any]:
    """A GpuConfig that asks for time slicing."""
    return gpu_config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}})


def gpu_config(sharing: Any = None, kind: str = "GpuConfig") -> dict[str, Any]:
    """A GpuConfig with this sharing."""
    config: dict[str, Any] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return config if sharing is None else config | {"sharing": sharing}


def config_entry(
    parameters: Any, *requests: str, source: str = "FromClaim", driver: str = "gpu.nvidia.com"
) -> dict[str, Any]:
    """One entry of ``status.allocation.devices.config``."""
    entry: dict[str, Any] = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return entry | {"requests": list(requests)} if requests else entry


def resource_claim(ref: ClaimRef, results: list[Any] | None, configs: list[Any] | None = None) -> dict[str, Any]:
    """A ResourceClaim object; ``results`` None leaves it unallocated."""
    claim: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
        "spec": {},
        "status": {},
    }
    if results is not None:
        devices: dict[str, Any] = {"results": results}
        if configs is not None:
            devices["config"] = configs
        claim["status"] = {"allocation": {"devices": devices}}
    return claim
