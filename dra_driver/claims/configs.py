"""Which config applies to which allocated device. Pure.

From lowest to highest: nothing asked for, class configs, claim configs; within one source the later entry wins.
No fields are merged: one entry decides. Rules of NVIDIA's driver (its getConfigResultsMap), except that a config
naming a request also covers the request's sub-requests, as Kubernetes' own helper has it.

``planning`` loads this module with the first claim that carries a config: see ``sharing.strategy``.
"""

from collections.abc import Iterable

from dra_driver.model.claims import AllocatedDevice, Allocation, ConfigSource, OpaqueConfig
from dra_driver.model.devices import Device, MigDevice
from dra_driver.model.errors import BadConfig
from dra_driver.sharing.strategy import SharingConfig, Strategies
from dra_driver_api.config import ConfigError, GpuConfig, MigDeviceConfig, Mode, canonical, decode
from dra_driver_api.names import TYPE_GPU, TYPE_MIG

Config = GpuConfig | MigDeviceConfig
_Entry = tuple[OpaqueConfig, Config]

GATES = {"TimeSlicing": "TimeSlicingSettings", "MPS": "MPSSupport"}
"""Feature gate of each strategy."""


def decode_configs(allocation: Allocation) -> tuple[_Entry, ...]:
    """Every config of this driver, decoded strictly, highest precedence first. Raises BadConfig."""
    order = {ConfigSource.CLASS: 0, ConfigSource.CLAIM: 1}
    ranked = sorted(allocation.configs, key=lambda entry: (order[entry.source], entry.index), reverse=True)
    return tuple((entry, _decode(entry, allocation)) for entry in ranked)


def _decode(entry: OpaqueConfig, allocation: Allocation) -> Config:
    try:
        return decode(entry.parameters, Mode.STRICT)
    except ConfigError as error:
        origin = "DeviceClass" if entry.source is ConfigSource.CLASS else "claim"
        raise BadConfig(f"{error}; in config[{entry.index}], from the {origin}; claim {allocation.claim}") from error


def effective_sharing(
    allocated: AllocatedDevice, device: Device, entries: Iterable[_Entry], strategies: Strategies
) -> SharingConfig | None:
    """The sharing that applies to one allocated device, None when nothing asks for any.

    entries: highest precedence first. Raises BadConfig when an entry that names the device's request is of
    another type, when the strategy is not switched on, or when admin access and sharing meet.
    """
    match = _first_match(allocated, device, entries)
    if match is None or (sharing := match[1].sharing) is None:
        return None
    entry, config = match
    strategy = sharing.strategy
    if strategy not in strategies:
        raise BadConfig(f"{not_served(strategy)} (device {allocated.device}, request {allocated.request!r})")
    if allocated.admin_access:
        raise BadConfig(
            f"device {allocated.device} is asked for with adminAccess and with a sharing config (strategy {strategy}): "
            f"admin access must not change the GPU of others; take one of the two out (request {allocated.request!r})"
        )
    return SharingConfig(sharing, canonical(config), f"{entry.source.value}[{entry.index}]")


def not_served(strategy: str) -> str:
    """Cause and remedy where a strategy is not switched on, in the same words at admission and in a prepare."""
    gate = GATES[strategy]
    return (
        f"error validating GPU config: unknown GPU sharing strategy: {strategy}; set the feature gate {gate}=true on "
        f"the driver (--feature-gates, FEATURE_GATES, or featureGates.{gate} in the chart) and restart it, or take "
        "`sharing` out of the config"
    )


def _first_match(allocated: AllocatedDevice, device: Device, entries: Iterable[_Entry]) -> _Entry | None:
    wanted, kind = (MigDeviceConfig, TYPE_MIG) if isinstance(device, MigDevice) else (GpuConfig, TYPE_GPU)
    for entry, config in entries:
        if not entry.requests:
            if isinstance(config, wanted):
                return entry, config
        elif covers(entry.requests, allocated.request):
            if isinstance(config, wanted):
                return entry, config
            raise BadConfig(
                f'cannot apply {type(config).__name__} to device "{allocated.device}" of type "{kind}" '
                f"(request: {allocated.request}); use a {wanted.__name__}, or drop the request's name from the config"
            )
    return None


def covers(requests: Iterable[str], request: str) -> bool:
    """Whether a config's request list covers a result's request (``main`` covers ``main/sub``)."""
    return any(request == named or request.startswith(f"{named}/") for named in requests)
