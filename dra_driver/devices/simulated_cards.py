"""From a scenario to the GPUs and MIG devices of a simulated node. Pure: the same scenario gives the same cards."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dra_driver.devices.scenario import Cards, Change, Driver, MigLayout, MigProfile, Scenario
from dra_driver.model.devices import ComputeMode, DriverInfo, Gpu, MigDevice
from dra_driver.model.errors import SettingError

_T = TypeVar("_T")
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "gpu.nvidia.com")
_MIB: Final = 1024**2
_SLOTS_A_BUS: Final = 32
_BUSES: Final = 256
_FIRST_GPU_INSTANCE: Final = 7


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of the node; ``position`` is how failures and changes name it.

    layout: its MIG devices, also while MIG mode is off.
    """

    position: int
    gpu: Gpu
    profiles: dict[str, MigProfile]
    layout: tuple[MigLayout, ...]

    @property
    def mig_devices(self) -> tuple[MigDevice, ...]:
        """The MIG devices of its layout by placement."""
        return _mig_devices(self.gpu, self.profiles, self.layout)


def driver_info(driver: Driver) -> DriverInfo:
    """The versions as NVML would give them."""
    cuda = None
    if driver.cuda is not None:
        major, minor = driver.cuda.split(".")
        cuda = 1000 * int(major) + 10 * int(minor)
    return DriverInfo(driver_version=driver.version, cuda_driver_version=cuda, nvml_version=driver.nvml)


def cards(scenario: Scenario, seed: str) -> tuple[Card, ...]:
    """All cards by position. UUIDs that the scenario does not give are made from ``seed`` and the position.

    Raises SettingError when a list has not one entry a card, when two cards would have one UUID, minor number or
    PCI address, or when MIG devices name unknown profiles or overlap.
    """
    made: list[Card] = []
    for number, group in enumerate(scenario.gpus):
        made.extend(_group(group, f"gpus.{number}", len(made), seed))
    for fact in ("uuid", "minor", "pci_bus_id"):
        _check_unique(fact, [getattr(card.gpu, fact) for card in made])
    _check_positions(scenario, len(made))
    for index, change in enumerate(scenario.changes):
        changed(made[change.gpu], change, f"changes.{index}")
    return tuple(made)


def changed(card: Card, change: Change, where: str = "change") -> Card:
    """The card after a change; ``gone`` is left to the caller."""
    layout = card.layout if change.mig is None else tuple(change.mig)
    mig_enabled = bool(change.mig) if change.mig_enabled is None and change.mig is not None else change.mig_enabled
    gpu = replace(
        card.gpu,
        uuid=change.uuid or card.gpu.uuid,
        minor=card.gpu.minor if change.minor is None else change.minor,
        mig_enabled=card.gpu.mig_enabled if mig_enabled is None else mig_enabled,
    )
    _check_layout(layout, card.profiles, where)
    return replace(card, gpu=gpu, layout=layout)


def relaid(card: Card, layout: tuple[MigLayout, ...], where: str) -> Card:
    """The card with other MIG devices, its MIG mode as it is. Raises SettingError naming ``where``."""
    _check_layout(layout, card.profiles, where)
    return replace(card, layout=layout)


def _group(group: Cards, where: str, first: int, seed: str) -> list[Card]:
    uuids = _each(group.uuid, group.count, f"{where}.uuid", unique=True)
    minors = _each(group.minor, group.count, f"{where}.minor", unique=True)
    buses = _each(group.pci_bus_id, group.count, f"{where}.pciBusId", unique=True)
    numas = _each(group.numa_node, group.count, f"{where}.numaNode")
    roots = _each(group.pcie_root, group.count, f"{where}.pcieRoot")
    _check_layout(group.mig, group.mig_profiles, where)
    made = []
    for offset in range(group.count):
        position = first + offset
        minor = minors[offset]
        bus_id = buses[offset] or _bus_id(position)
        gpu = Gpu(
            index=position,
            minor=position if minor is None else minor,
            uuid=uuids[offset] or f"GPU-{uuid.uuid5(_NAMESPACE, f'{seed}/{position}')}",
            pci_bus_id=bus_id,
            product_name=group.product_name,
            brand=group.brand,
            architecture=group.architecture,
            cuda_compute_capability=group.cuda_compute_capability,
            memory_bytes=group.memory_bytes,
            addressing_mode=group.addressing_mode,
            numa_node=numas[offset],
            pcie_root=roots[offset] or f"pci{bus_id[:-5]}",
            mig_enabled=bool(group.mig) if group.mig_enabled is None else group.mig_enabled,
            compute_mode=ComputeMode[group.compute_mode.upper()],
            persistence=group.persistence,
        )
        made.append(Card(position, gpu, group.mig_profiles, tuple(group.mig)))
    return made


def _each(values: list[_T] | None, count: int, where: str, unique: bool = False) -> Sequence[_T | None]:
    if values is None:
        return [None] * count
    if len(values) == 1 and not unique:
        return values * count
    if len(values) != count:
        raise SettingError(f"{where}: found {len(values)} values for {count} cards: one a card is needed")
    return values


def _bus_id(position: int) -> str:
    bus, slot = divmod(position, _SLOTS_A_BUS)
    domain, bus = divmod(bus, _BUSES)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _check_unique(fact: str, values: list[object]) -> None:
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise SettingError(f"gpus: two cards have {fact} {value}: each needs its own")
        seen.add(value)


def _check_positions(scenario: Scenario, count: int) -> None:
    named: dict[str, list[int | None]] = {
        "changes": [change.gpu for change in scenario.changes],
        "failures.calls": [failure.gpu for failure in scenario.failures.calls],
        "tool.behaviours": [behaviour.gpu for behaviour in scenario.tool.behaviours],
    }
    for where, positions in named.items():
        for index, position in enumerate(positions):
            if position is not None and position >= count:
                raise SettingError(f"{where}.{index}.gpu: found {position}: the node has {count} GPUs")


def _check_layout(layout: Sequence[MigLayout], profiles: dict[str, MigProfile], where: str) -> None:
    used: set[int] = set()
    for index, entry in enumerate(layout):
        profile = profiles.get(entry.profile)
        if profile is None:
            known = ", ".join(profiles) or "none"
            raise SettingError(f"{where}.mig.{index}.profile: found {entry.profile!r}: migProfiles has: {known}")
        for start in entry.starts:
            slices = set(range(start, start + profile.size))
            if slices & used:
                raise SettingError(f"{where}.mig.{index}.starts: found {start}: overlaps another MIG device")
            used |= slices


def _mig_devices(gpu: Gpu, profiles: dict[str, MigProfile], layout: tuple[MigLayout, ...]) -> tuple[MigDevice, ...]:
    placed = sorted((start, entry.profile) for entry in layout for start in entry.starts)
    return tuple(_mig_device(gpu, name, profiles[name], start) for start, name in placed)


def _mig_device(gpu: Gpu, name: str, profile: MigProfile, start: int) -> MigDevice:
    return MigDevice(
        parent=gpu,
        uuid=f"MIG-{uuid.uuid5(_NAMESPACE, f'{gpu.uuid}/{profile.id}/{start}')}",
        profile=name,
        profile_id=profile.id,
        # By its place, as NVIDIA's driver does it: a device keeps its number when others come and go.
        gpu_instance_id=_FIRST_GPU_INSTANCE + start,
        compute_instance_id=0,
        placement_start=start,
        placement_size=profile.size,
        memory_bytes=profile.memory_mib * _MIB,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
    )
