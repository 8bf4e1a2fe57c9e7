"""Decides for a whole claim, before anything is touched: which devices, which sharing, which steps. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.claims.conflicts import check_within_claim
from dra_driver.model.claims import AllocatedDevice, Allocation, ClaimRef
from dra_driver.model.devices import Device, Gpu, MemoryLimits, MigDevice
from dra_driver.model.errors import BadConfig, UnknownDevice
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.plan import CardStep, PreparedDevice
from dra_driver.model.records import ClaimRecord
from dra_driver.model.texts import listed
from dra_driver.sharing.memory_limits import LimitTerms, budget, check_enforced, limits_to_set
from dra_driver.sharing.strategy import GpuState, SharingConfig, Strategies
from dra_driver_api.names import cdi_device_id

_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One allocated device with what it will be: the node's device, and how it is shared."""

    device: Device
    sharing: SharingConfig | None
    prepared: PreparedDevice


def choose(
    allocation: Allocation, devices: Mapping[str, Device], strategies: Strategies, terms: LimitTerms
) -> tuple[Choice, ...]:
    """One choice for each allocated device, in the claim's order.

    devices: this node's devices by name. Raises UnknownDevice, BadConfig or DeviceBusy; DriverNotReady while an even
    part of memory cannot be told.
    """
    sharing_of = _sharing(allocation, strategies)
    choices = []
    for allocated in allocation.devices:
        device = _find(allocated, allocation, devices)
        check_enforced(allocation.claim, allocated, device)
        limit = budget(allocated, device, terms)
        sharing = sharing_of(allocated, device)
        if sharing and (allocated.share_id or allocated.consumed_capacity):
            _check_shared(allocation, allocated, sharing, strategies)
        prepared = PreparedDevice(
            requests=(allocated.request.partition("/")[0],),
            pool=allocated.pool,
            device=allocated.device,
            uuid=device.uuid,
            gpu_uuid=device.physical.uuid,
            cdi_ids=(cdi_device_id(allocation.claim.uid, allocated.device),),
            admin_access=allocated.admin_access,
            share_id=allocated.share_id,
            consumed_capacity=allocated.consumed_capacity,
            sharing=sharing.canonical if sharing else "",
            time_slice=strategies[sharing.strategy].time_slice(sharing.sharing) if sharing else None,
            memory_budget=limit,
            memory_enforced=limit is not None and _enforces(device),
        )
        choices.append(Choice(device=device, sharing=sharing, prepared=prepared))
    check_within_claim(allocation.claim, [choice.prepared for choice in choices])
    limits_to_set(allocation.claim, [choice.prepared for choice in choices])
    return tuple(choices)


def _enforces(device: Device) -> bool:
    return isinstance(device, Gpu) and device.memory_limits is MemoryLimits.ENFORCED


def _sharing(
    allocation: Allocation, strategies: Strategies
) -> Callable[[AllocatedDevice, Device], SharingConfig | None]:
    if not allocation.configs:
        return lambda allocated, device: None
    from dra_driver.claims import configs  # see there

    entries = configs.decode_configs(allocation)
    return lambda allocated, device: configs.effective_sharing(allocated, device, entries, strategies)


def _check_shared(
    allocation: Allocation, allocated: AllocatedDevice, sharing: SharingConfig, strategies: Strategies
) -> None:
    if not strategies[sharing.strategy].with_shares:
        raise BadConfig(
            f"{sharing.strategy} sharing is not supported when consumable shares is enabled: claim {allocation.claim} "
            f"has a share of device {allocated.device} (request {allocated.request}), and {sharing.strategy} needs the "
            "device for one claim alone. Ask for TimeSlicing, or for a device that this node does not share"
        )


def _find(allocated: AllocatedDevice, allocation: Allocation, devices: Mapping[str, Device]) -> Device:
    device = devices.get(allocated.device)
    if device is None:
        known = listed(list(devices), _SHOWN) or "none"
        raise UnknownDevice(
            f"allocated device {allocated.device} is not on this node (it has {known}); claim "
            f"{allocation.claim}. The GPU may have dropped out or its MIG layout changed: delete the pod, so that it "
            "is scheduled again"
        )
    if allocated.admin_access and isinstance(device, MigDevice):
        raise BadConfig(
            f"device {allocated.device} is a MIG device: adminAccess is supported for full GPUs only; "
            f"claim {allocation.claim}"
        )
    return device


def is_for(record: ClaimRecord, allocation: Allocation) -> bool:
    """Whether a record was made for this allocation; a claim can be allocated anew under the same UID."""
    held = [(d.device, d.requests, d.share_id, d.admin_access) for d in record.devices]
    allocated = [(d.device, (d.request.partition("/")[0],), d.share_id, d.admin_access) for d in allocation.devices]
    return held == allocated


def plan_daemons(claim: ClaimRef, choices: Sequence[Choice], strategies: Strategies) -> tuple[MpsDaemon, ...]:
    """The daemons that a claim needs: one for the devices of each of its configs that ask for one.

    Raises BadConfig for a config that does not fit its devices.
    """
    entries: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.sharing is not None:
            entries.setdefault(choice.sharing.entry, []).append(choice)
    daemons = []
    for of_entry in entries.values():
        sharing = of_entry[0].sharing
        assert sharing is not None  # noqa: S101 - for the type checker: only such choices were taken
        try:
            daemon = strategies[sharing.strategy].daemon(claim.uid, [c.device for c in of_entry], sharing.sharing)
        except ValueError as error:
            names = ", ".join(dict.fromkeys(choice.device.name for choice in of_entry))
            raise BadConfig(f"{error} (claim {claim}, devices {names})") from error
        if daemon is not None:
            daemons.append(daemon)
    return tuple(daemons)


def plan_steps(
    choices: Sequence[Choice], states: Mapping[str, GpuState], strategies: Strategies
) -> tuple[CardStep, ...]:
    """The steps for all cards of a claim, each card once, in the claim's order.

    states: by GPU UUID, one for every card that ``needs_state`` named.
    """
    steps: list[CardStep] = []
    done: set[str] = set()
    for choice in choices:
        gpu = choice.device
        if choice.sharing is None or not isinstance(gpu, Gpu) or gpu.uuid in done:
            continue
        done.add(gpu.uuid)
        sharing = choice.sharing
        steps.extend(strategies[sharing.strategy].steps(gpu, sharing.sharing, states[gpu.uuid]))
    return tuple(steps)


def needs_state(choices: Sequence[Choice]) -> tuple[str, ...]:
    """UUIDs of the cards whose settings the claim cares about: none when it asked for no sharing."""
    return tuple(dict.fromkeys(c.device.uuid for c in choices if c.sharing is not None and isinstance(c.device, Gpu)))
