"""What a sharing config comes to: its canonical text, MPS memory limits by device. Pure functions only."""

import json
import re
from collections.abc import Iterable
from typing import Any

from dra_driver_api.config.errors import ConfigError, shorten
from dra_driver_api.config.models import (
    GpuConfig,
    MigDeviceConfig,
    MigTimeSlicing,
    Mps,
    MpsConfig,
    TimeSlicing,
)
from dra_driver_api.quantity import Notation, Quantity

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_LARGEST_INDEX = 2**63 - 1


def canonical(config: GpuConfig | MigDeviceConfig) -> str:
    """The sharing part as JSON with sorted keys and no spaces, '' when there is none.

    Equal configs of one kind give equal texts; the text decodes again as the ``sharing`` of that kind.
    """
    match config.sharing:
        case None:
            return ""
        case TimeSlicing(time_slicing_config=block):
            sharing: dict[str, Any] = {"timeSlicingConfig": {"interval": block.interval.value}}
        case MigTimeSlicing():
            sharing = {}
        case Mps(mps_config=block):
            sharing = {"mpsConfig": _mps(block)}
    return json.dumps(sharing | {"strategy": config.sharing.strategy}, sort_keys=True, separators=(",", ":"))


def pinned_memory_limits(config: MpsConfig, uuids: Iterable[str]) -> dict[str, str]:
    """Pinned device memory by UUID as the MPS control daemon takes it, e.g. ``{"GPU-…": "1024M"}``.

    uuids: the devices that share the daemon, in any order. A key of the config is one of them, or an index
    into them sorted as text (not the index of NVML); a UUID wins over an index of the same device. Values are
    whole MiB, rounded down. Raises ConfigError for a limit below 1 MiB and a key that names no device.
    """
    ordered = sorted(set(uuids))
    limits = {}
    default = config.default_pinned_device_memory_limit
    if default is not None and ordered:
        limits = dict.fromkeys(ordered, _megabytes(default, f"default value set too low: {default}"))
    by_index_first = sorted(config.default_per_device_pinned_memory_limit, key=lambda item: item[0] in ordered)
    for key, limit in by_index_first:
        uuid = _device(key, ordered)
        limits[uuid] = _megabytes(limit, f"value set too low: {shorten(key)}: {limit}")
    return dict(sorted(limits.items()))


def _megabytes(limit: Quantity, problem: str) -> str:
    megabytes = limit.amount // 1024 // 1024
    if megabytes <= 0:
        raise ConfigError(f"invalid limit: {problem}; at least 1Mi is wanted")
    return f"{megabytes}M"


def _device(key: str, ordered: list[str]) -> str:
    if key in ordered:
        return key
    if not _INTEGER.fullmatch(key) or abs(int(key)) > _LARGEST_INDEX:
        raise ConfigError(f"invalid device: unable to parse key as an integer: {shorten(key)}; {_known(ordered)}")
    index = int(key)
    if not 0 <= index < len(ordered):
        raise ConfigError(f"invalid device: invalid device index: {index}; {_known(ordered)}")
    return ordered[index]


def _known(ordered: list[str]) -> str:
    if not ordered:
        return "the claim has no such device"
    return f"valid: 0 to {len(ordered) - 1} or a UUID of {', '.join(ordered[:4])}"


def _mps(block: MpsConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if block.default_active_thread_percentage is not None:
        fields["defaultActiveThreadPercentage"] = block.default_active_thread_percentage
    if block.default_pinned_device_memory_limit is not None:
        fields["defaultPinnedDeviceMemoryLimit"] = _exact(block.default_pinned_device_memory_limit)
    if block.default_per_device_pinned_memory_limit:
        limits = block.default_per_device_pinned_memory_limit
        fields["defaultPerDevicePinnedMemoryLimit"] = {key: _exact(limit) for key, limit in limits}
    if block.multi_user:
        fields["multiUser"] = True
    return fields


def _exact(limit: Quantity) -> str:
    """One text for one value, whatever it was written as."""
    return str(Quantity(limit.nano, Notation.BINARY_SI))
