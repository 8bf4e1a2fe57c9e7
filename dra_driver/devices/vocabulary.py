"""The words of device attributes and the numbers NVML has for them, plus the shape of a PCI address. No I/O.

The words are those that upstream's slices carry, because users select on them in CEL.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

UNKNOWN: Final = "Unknown"

BRANDS: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "Quadro",
        2: "Tesla",
        3: "NVS",
        4: "Grid",
        5: "GeForce",
        6: "Titan",
        7: "NvidiaVApps",
        8: "NvidiaVPC",
        9: "NvidiaVCS",
        10: "NvidiaVWS",
        11: "NvidiaCloudGaming",
        12: "QuadroRTX",
        13: "NvidiaRTX",
        14: "Nvidia",
        15: "GeForceRTX",
        16: "TitanRTX",
    }
)
"""nvmlBrandType_t -> attribute ``brand``; every other number is ``Unknown``."""

ARCHITECTURES: Final[Mapping[int, str]] = MappingProxyType(
    {
        2: "Kepler",
        3: "Maxwell",
        4: "Pascal",
        5: "Volta",
        6: "Turing",
        7: "Ampere",
        8: "Ada Lovelace",
        9: "Hopper",
        10: "Blackwell",
        13: "Rubin",
    }
)
"""nvmlDeviceArchitecture_t -> attribute ``architecture``; every other number is ``Unknown``."""

ADDRESSING_MODES: Final[Mapping[int, str]] = MappingProxyType({0: "None", 1: "HMM", 2: "ATS"})
"""nvmlDeviceAddressingModeType_t -> attribute ``addressingMode``."""

PROFILE_ATTRIBUTES: Final[Mapping[int, str]] = MappingProxyType(
    {0x7: "+me", 0x8: "+me", 0xA: "+gfx", 0xB: "+gfx", 0xC: "+gfx", 0x11: "+gfx", 0xD: "-me", 0xE: "-me"}
    | {0xF: "+me.all", 0x10: "+me.all"}
)
"""NVML_GPU_INSTANCE_PROFILE_* number -> what follows the memory in a profile's name."""

PROFILE_NUMBERS: Final = 0x20
"""GPU instance profile numbers worth asking for; drivers refuse those that they or the card do not know."""

_PCI_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?")
_GIB = 1024**3
_MIB = 1024**2


def pci_bus_id(text: str) -> str:
    """NVML's ``00000000:00:06.0`` as ``0000:00:06.0``. Raises ValueError for what is no PCI address."""
    match = _PCI_ADDRESS.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI address (domain:bus:device.function)")
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def profile_name(profile: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """A MIG profile's name as nvidia-smi shows it, e.g. ``1g.5gb``, for drivers that do not give the name.

    profile: NVML_GPU_INSTANCE_PROFILE_* number. total_bytes: the card's memory; profiles are named after
    eighths of it, counted in GiB rounded up.
    """
    eighths = -(-8 * memory_mib * _MIB // total_bytes)
    gigabytes = int(eighths / 8 * -(-total_bytes // _GIB) + 0.5)
    return f"{slices}g.{gigabytes}gb{PROFILE_ATTRIBUTES.get(profile, '')}"
