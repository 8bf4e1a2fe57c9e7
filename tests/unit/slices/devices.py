"""Builders of devices as a real node has them; the H200's facts are those of a real card."""

from dataclasses import replace
from typing import Any

from dra_driver.model.devices import DriverInfo, Gpu, MigDevice

H200 = Gpu(
    index=0,
    minor=0,
    uuid="GPU-4f0c6a52-7cfc-30e4-38c5-000000000001",
    pci_bus_id="0000:00:06.0",
    product_name="NVIDIA H200",
    brand="Nvidia",
    architecture="Hopper",
    cuda_compute_capability="9.0",
    memory_bytes=150754820096,
    addressing_mode="None",
    numa_node=0,
    pcie_root="pci0000:00",
)
DRIVER = DriverInfo(driver_version="580.159.04", cuda_driver_version=13000)


def gpu(minor: int = 0, **facts: Any) -> Gpu:
    """An H200 of this minor."""
    return replace(H200, **{"index": minor, "minor": minor, "uuid": f"GPU-{minor:08d}", **facts})


def mig(minor: int = 0, start: int = 0, **facts: Any) -> MigDevice:
    """A 1g.18gb device on the H200 of this minor."""
    known: dict[str, Any] = {
        "parent": gpu(minor, mig_enabled=True),
        "uuid": f"MIG-{minor:04d}-{start:04d}",
        "profile": "1g.18gb",
        "profile_id": 19,
        "gpu_instance_id": 7 + start,
        "compute_instance_id": 0,
        "placement_start": start,
        "placement_size": 1,
        "memory_bytes": 16 * 1024**3,
        "multiprocessors": 16,
        "copy_engines": 1,
        "decoders": 1,
        "encoders": 0,
        "jpeg_engines": 1,
        "ofa_engines": 0,
    }
    return MigDevice(**known | facts)
