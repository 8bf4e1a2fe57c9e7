"""The opaque configuration of ``gpu.nvidia.com``: its types, decoding, canonical text and quantities.

Import from here. Nothing in this package reads a file, a flag, a feature gate or the network.
"""

from dra_driver_api.config.canonical import canonical, pinned_memory_limits
from dra_driver_api.config.decoding import Mode, decode
from dra_driver_api.config.errors import ConfigError
from dra_driver_api.config.models import (
    GpuConfig,
    Interval,
    MigDeviceConfig,
    MigTimeSlicing,
    Mps,
    MpsConfig,
    TimeSlicing,
    TimeSlicingConfig,
)
from dra_driver_api.quantity import Notation, Quantity, format_bytes

__all__ = [
    "ConfigError",
    "GpuConfig",
    "Interval",
    "MigDeviceConfig",
    "MigTimeSlicing",
    "Mode",
    "Mps",
    "MpsConfig",
    "Notation",
    "Quantity",
    "TimeSlicing",
    "TimeSlicingConfig",
    "canonical",
    "decode",
    "format_bytes",
    "pinned_memory_limits",
]
