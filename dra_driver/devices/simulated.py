"""A simulated node: GPUs of a scenario behind the same seams as NVML, over a driver tree of real files.

What is the node's at a moment is in ``simulated_state``, and changes behind the back of this program.
"""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from dra_driver.devices import scenario as scenarios
from dra_driver.devices import stand_in, vocabulary
from dra_driver.devices.driver_tree import write_tree
from dra_driver.devices.gpu_reader import OnceLog, found_again, left_out
from dra_driver.devices.nvml_calls import FunctionMissing, NotSupported
from dra_driver.devices.scenario import CallFailure, Scenario
from dra_driver.devices.simulated_cards import Card, cards, changed, driver_info
from dra_driver.devices.simulated_state import NodeState
from dra_driver.hostfs import DriverRoots, write_atomically
from dra_driver.model.devices import ComputeMode, Gpu, Inventory, MigDevice
from dra_driver.model.errors import ControlError, ControlGone, ControlUnsupported, DriverAbsent, DriverNotReady

_OPTIONAL: Final = {
    "productName": ("product_name", ""),
    "brand": ("brand", vocabulary.UNKNOWN),
    "architecture": ("architecture", vocabulary.UNKNOWN),
    "cudaComputeCapability": ("cuda_compute_capability", ""),
    "memory": ("memory_bytes", None),
    "addressingMode": ("addressing_mode", None),
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
        self.state = NodeState()
        self._calls: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self._scans = 0
        self.sessions_lost = 0
        self._loaded = True
        self._by_uuid: dict[int, tuple[dict[str, Card], dict[str, Card]]] = {}

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
        mps = None if self.scenario.mps.missing else stand_in.mps_script(self.scenario.mps)
        later = [
            changed(card, change)
            for change in self.scenario.changes
            for card in self._cards
            if card.position == change.gpu and not change.gone
        ]
        write_tree(root, self.scenario.driver.version, (self._cards, later), text, tool.executable, mps)
        self.state.root = root
        return DriverRoots(driver_root=root, dev_root=root, container_driver_root=root, container_dev_root=root)

    def source(self) -> "SimulatedSource":
        """The node's inventory. Implements ports.DeviceSource."""
        return SimulatedSource(self)

    def control(self) -> "SimulatedModes":
        """Compute mode and epoch; ``materialise`` comes first."""
        return SimulatedModes(self)

    def present(self, scan: int) -> tuple[Card, ...]:
        """The cards that are on the bus at the scan of this number, from 1."""
        left, _ = self._after_changes(scan)
        found = [self.state.applied(card) for uuid, card in left.items() if not self.state.has(uuid, "gone")]
        return tuple(replace(card, gpu=replace(card.gpu, index=index)) for index, card in enumerate(found))

    def reset_gone(self) -> None:
        """Cards off the bus lose their settings, as they do on hardware. Raises OSError."""
        left, gone = self._after_changes(self.scans)
        for uuid, card in (left | gone).items():
            if uuid in gone or self.state.has(uuid, "gone"):
                self.state.reset(card)

    def _after_changes(self, scan: int) -> tuple[dict[str, Card], dict[str, Card]]:
        """The cards that the scenario leaves on the bus, and those that it takes away, by UUID."""
        key = sum(change.after_scans < scan for change in self.scenario.changes)
        if key not in self._by_uuid:
            by_position = {card.position: card for card in self._cards}
            gone: set[int] = set()
            for change in self.scenario.changes:
                if change.after_scans >= scan:
                    continue
                by_position[change.gpu] = changed(by_position[change.gpu], change)
                if change.gone is not None:
                    (gone.add if change.gone else gone.discard)(change.gpu)
            by_uuid = [(position in gone, card) for position, card in by_position.items()]
            self._by_uuid[key] = (
                {card.gpu.uuid: card for away, card in by_uuid if not away},
                {card.gpu.uuid: card for away, card in by_uuid if away},
            )
        return self._by_uuid[key]

    @property
    def loaded(self) -> bool:
        """Whether the NVIDIA driver is loaded; what it knew is lost when it is not."""
        loaded = not self.state.has("", "not-loaded")
        with self._lock:
            self.sessions_lost += self._loaded and not loaded
            self._loaded = loaded
        return loaded

    @property
    def scans(self) -> int:
        """Number of the scan that began last, 1 before the first."""
        return max(1, self._scans)

    def next_scan(self) -> int:
        """Number of the scan that begins now, from 1."""
        with self._lock:
            self._scans += 1
            return self._scans

    def card(self, gpu_uuid: str) -> Card | None:
        """The card of this UUID, if it is on the bus."""
        left, _ = self._after_changes(self.scans)
        return None if self.state.has(gpu_uuid, "gone") else left.get(gpu_uuid)

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


class SimulatedSource:
    """Inventory of a simulated node. Implements ports.DeviceSource."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._once = OnceLog()

    def scan(self) -> Inventory:
        """See ports.DeviceSource; fails as the scenario says."""
        number = self._node.next_scan()
        self._node.reset_gone()
        nvml = self._node.scenario.failures.nvml
        if number <= nvml.not_loadable_scans:
            raise DriverAbsent("libnvidia-ml.so.1 cannot be loaded (simulated)")
        if not self._node.loaded:
            raise DriverAbsent("the NVIDIA kernel driver is not loaded (simulated)")
        driver = driver_info(self._node.scenario.driver)
        if number <= nvml.not_loadable_scans + nvml.zero_gpu_scans:
            return Inventory(driver=driver)
        gpus: list[Gpu] = []
        migs: list[MigDevice] = []
        present = self._node.present(number)
        self._node.state.show(present)
        for card in present:
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

    def on_bus(self) -> tuple[str, ...]:
        """See ports.DeviceSource."""
        return tuple(sorted(card.gpu.pci_bus_id for card in self._node.present(self._node.scans)))

    def close(self) -> None:
        """Nothing to let go of."""

    def _read(self, card: Card) -> Gpu:
        gpu = card.gpu
        for call in _REQUIRED:
            self._node.call(call, card.position)
        try:
            self._node.call("migMode", card.position)
        except ControlUnsupported:
            gpu = replace(gpu, mig_enabled=False)
        mode = self._node.state.compute_mode(gpu.uuid)
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
        return self._node.state.compute_mode(gpu_uuid) or card.gpu.compute_mode or ComputeMode.DEFAULT

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """See ports.GpuControl."""
        card = self._card(gpu_uuid)
        self._call("setComputeMode", card, f"compute mode cannot be set to {mode.name}")
        path = self._node.state.path(gpu_uuid, "compute_mode")
        if path is None:
            raise ControlGone(f"GPU {gpu_uuid}: the simulated node has no driver tree to keep its settings in")
        try:
            write_atomically(path, f"{mode.name.title()}\n".encode())
        except OSError as error:
            raise ControlGone(f"GPU {gpu_uuid}: compute mode cannot be set to {mode.name}: {error}") from error

    def epoch(self) -> str:
        """See ports.GpuControl; the text in ``var/state/epoch`` and how often NVML was lost."""
        return f"simulated {self._node.state.text('', 'epoch') or 'none'} session {self._node.sessions_lost}"

    def _card(self, gpu_uuid: str) -> Card:
        if not self._node.loaded:
            raise ControlGone(f"GPU {gpu_uuid}: the NVIDIA kernel driver is not loaded (simulated)")
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
            raise DriverAbsent(text)
        case "unknown":
            raise ControlError(text)
