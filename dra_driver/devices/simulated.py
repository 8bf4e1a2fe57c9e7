"""A simulated node: GPUs of a scenario behind the same seams as NVML, over a driver tree of real files.

The compute mode, the time slice and the epoch are text files below ``var/state`` of the tree: they outlive this
program, and a test or an admin can change them behind its back.
"""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from dra_driver.devices import scenario as scenarios
from dra_driver.devices import stand_in, vocabulary
from dra_driver.devices.driver_tree import STATE, write_tree
from dra_driver.devices.gpu_reader import OnceLog, found_again, left_out
from dra_driver.devices.nvml_calls import FunctionMissing, NotSupported
from dra_driver.devices.scenario import CallFailure, Scenario
from dra_driver.devices.simulated_cards import Card, cards, changed, driver_info
from dra_driver.hostfs import DriverRoots, write_atomically
from dra_driver.model.devices import ComputeMode, Gpu, Inventory, MigDevice
from dra_driver.model.errors import ControlError, ControlGone, DriverNotReady

_OPTIONAL: Final = {
    "productName": ("product_name", ""),
    "brand": ("brand", vocabulary.UNKNOWN),
    "architecture": ("architecture", vocabulary.UNKNOWN),
    "cudaComputeCapability": ("cuda_compute_capability", ""),
    "memory": ("memory_bytes", None),
    "addressingMode": ("addressing_mode", None),
    "migMode": ("mig_enabled", False),
    "persistence": ("persistence", None),
    "computeMode": ("compute_mode", None),
}
"""Call that may fail -> the fact it gives and what stands in its place."""
_REQUIRED: Final = ("uuid", "minor", "pciBusId")


class SimulatedNode:
    """A node made from a scenario. ``source()`` and ``control()`` share its state."""

    def __init__(self, name: str, scenario: Scenario, seed: str = "") -> None:
        self.name = name
        self.scenario = scenario
        self._cards = cards(scenario, seed or name)
        self._root: Path | None = None
        self._calls: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self._scans = 0
        self.sessions_lost = 0
        self._present: dict[int, tuple[Card, ...]] = {}
        self._by_uuid: tuple[tuple[Card, ...], dict[str, Card]] = ((), {})

    @classmethod
    def load(cls, name_or_path: str | Path, seed: str = "") -> "SimulatedNode":
        """From a shipped scenario's name or a file. Raises SettingError.

        seed: what UUIDs are derived from, for nodes that must not look alike; the scenario's name if not given.
        """
        name, scenario = scenarios.load(name_or_path)
        return cls(name, scenario, seed)

    def materialise(self, root: Path) -> DriverRoots:
        """Write the driver tree under ``root`` and keep the node's state there. Idempotent. Raises OSError."""
        root = root.absolute()
        uuids = [card.gpu.uuid for card in self._cards]
        tool = self.scenario.tool
        text = None if tool.missing else stand_in.script(tool, uuids)
        later = [
            changed(card, change)
            for change in self.scenario.changes
            for card in self._cards
            if card.position == change.gpu and not change.gone
        ]
        write_tree(root, self.scenario.driver.version, (self._cards, later), text, tool.executable)
        self._root = root
        return DriverRoots(driver_root=root, dev_root=root, container_driver_root=root, container_dev_root=root)

    def source(self) -> "SimulatedSource":
        """The node's inventory. Implements ports.DeviceSource."""
        return SimulatedSource(self)

    def control(self) -> "SimulatedModes":
        """Compute mode and epoch; ``materialise`` comes first."""
        return SimulatedModes(self)

    def present(self, scan: int) -> tuple[Card, ...]:
        """The cards as the scan of this number, from 1, finds them."""
        key = sum(change.after_scans < scan for change in self.scenario.changes)
        if key not in self._present:
            self._present[key] = self._after_changes(scan)
        return self._present[key]

    def _after_changes(self, scan: int) -> tuple[Card, ...]:
        by_position = {card.position: card for card in self._cards}
        for change in self.scenario.changes:
            if change.after_scans >= scan or change.gpu not in by_position:
                continue
            if change.gone:
                del by_position[change.gpu]
            else:
                by_position[change.gpu] = changed(by_position[change.gpu], change)
        return tuple(replace(card, gpu=replace(card.gpu, index=n)) for n, card in enumerate(by_position.values()))

    def next_scan(self) -> int:
        """Number of the scan that begins now, from 1."""
        with self._lock:
            self._scans += 1
            return self._scans

    def card(self, gpu_uuid: str) -> Card | None:
        """The card of this UUID, if the latest scan found one."""
        cards_now = self.present(max(1, self._scans))
        if self._by_uuid[0] is not cards_now:
            self._by_uuid = (cards_now, {card.gpu.uuid: card for card in cards_now})
        return self._by_uuid[1].get(gpu_uuid)

    def call(self, call: str, position: int) -> None:
        """Make an NVML call that may be meant to fail: raises ControlError or DriverNotReady if so."""
        for index, failure in enumerate(self.scenario.failures.calls):
            if failure.call != call or failure.gpu not in (None, position):
                continue
            with self._lock:
                self._calls[index, position] += 1
                number = self._calls[index, position]
            if failure.first is None or number <= failure.first:
                self.sessions_lost += failure.error == "driver-not-loaded"
                _fail(failure)

    def state_file(self, gpu_uuid: str, name: str) -> Path | None:
        """Path of a GPU's state file; None before ``materialise``."""
        return None if self._root is None else self._root / STATE / gpu_uuid / name

    @property
    def root(self) -> Path | None:
        """Where the driver tree is; None before ``materialise``."""
        return self._root


class SimulatedSource:
    """Inventory of a simulated node. Implements ports.DeviceSource."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._once = OnceLog()

    def scan(self) -> Inventory:
        """See ports.DeviceSource; fails as the scenario says."""
        number = self._node.next_scan()
        nvml = self._node.scenario.failures.nvml
        if number <= nvml.not_loadable_scans:
            raise DriverNotReady("libnvidia-ml.so.1 cannot be loaded (simulated)")
        driver = driver_info(self._node.scenario.driver)
        if number <= nvml.not_loadable_scans + nvml.zero_gpu_scans:
            return Inventory(driver=driver)
        gpus: list[Gpu] = []
        migs: list[MigDevice] = []
        for card in self._node.present(number):
            try:
                gpu = self._read(card)
            except ControlError as error:
                left_out(self._once, card.gpu.index, error)
                continue
            found_again(self._once, card.gpu.index)
            gpus.append(gpu)
            if gpu.mig_enabled:
                migs.extend(replace(device, parent=gpu) for device in card.mig_devices)
        gpus.sort(key=lambda gpu: gpu.pci_bus_id)
        migs.sort(key=lambda mig: (mig.parent.pci_bus_id, mig.placement_start, mig.profile_id))
        return Inventory(driver=driver, gpus=tuple(gpus), mig_devices=tuple(migs))

    def close(self) -> None:
        """Nothing to let go of."""

    def _read(self, card: Card) -> Gpu:
        gpu = card.gpu
        for call in _REQUIRED:
            self._node.call(call, card.position)
        mode = _stored_mode(self._node, gpu.uuid)
        if mode is not None:
            gpu = replace(gpu, compute_mode=mode)
        for call, (fact, instead) in _OPTIONAL.items():
            try:
                self._node.call(call, card.position)
            except ControlGone:
                raise
            except ControlError as error:
                self._once.say_optional(f"GPU {gpu.uuid}: {call} is left out: {error}", error)
                gpu = replace(gpu, **{fact: instead})  # type: ignore[arg-type]
        return gpu


class SimulatedModes:
    """Compute mode and epoch of a simulated node, in files below ``var/state``."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """See ports.GpuControl."""
        card = self._card(gpu_uuid)
        self._call("computeMode", card, "compute mode cannot be read")
        return _stored_mode(self._node, gpu_uuid) or card.gpu.compute_mode or ComputeMode.DEFAULT

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """See ports.GpuControl."""
        card = self._card(gpu_uuid)
        self._call("setComputeMode", card, f"compute mode cannot be set to {mode.name}")
        path = self._node.state_file(gpu_uuid, "compute_mode")
        if path is None:
            raise ControlGone(f"GPU {gpu_uuid}: the simulated node has no driver tree to keep its settings in")
        try:
            write_atomically(path, f"{mode.name.title()}\n".encode())
        except OSError as error:
            raise ControlGone(f"GPU {gpu_uuid}: compute mode cannot be set to {mode.name}: {error}") from error

    def epoch(self) -> str:
        """See ports.GpuControl; the text in ``var/state/epoch`` and how often NVML was lost."""
        text = "none"
        if self._node.root is not None:
            try:
                text = (self._node.root / STATE / "epoch").read_text(encoding="utf-8").strip()
            except OSError:
                text = "none"
        return f"simulated {text} session {self._node.sessions_lost}"

    def _card(self, gpu_uuid: str) -> Card:
        card = self._node.card(gpu_uuid)
        if card is None:
            raise ControlGone(f"GPU {gpu_uuid}: no such GPU on this node any more")
        return card

    def _call(self, call: str, card: Card, problem: str) -> None:
        try:
            self._node.call(call, card.position)
        except DriverNotReady as error:
            raise ControlGone(f"GPU {card.gpu.uuid}: {problem}: {error}") from error
        except ControlError as error:
            raise type(error)(f"GPU {card.gpu.uuid}: {problem}: {error}") from error


def _stored_mode(node: SimulatedNode, gpu_uuid: str) -> ComputeMode | None:
    path = node.state_file(gpu_uuid, "compute_mode")
    try:
        text = path.read_text(encoding="utf-8").strip() if path is not None else ""
    except OSError:
        return None
    if text.isdecimal():
        return ComputeMode(int(text)) if int(text) < len(ComputeMode) else None
    return ComputeMode.__members__.get(text.upper())


def _fail(failure: CallFailure) -> NoReturn:
    text = f"{failure.call}: {failure.error} (simulated)"
    match failure.error:
        case "gpu-lost":
            raise ControlGone(text)
        case "not-supported":
            raise NotSupported(text)
        case "function-missing":
            raise FunctionMissing(text)
        case "driver-not-loaded":
            raise DriverNotReady(text)
        case "unknown":
            raise ControlError(text)
