"""NvmlSource and a simulated node answer alike: the same expectations over both."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pynvml
import pytest

from dra_driver.devices.driver_tree import STATE
from dra_driver.devices.nvml import NvmlSource
from dra_driver.devices.scenario import CallFailure, Failures, NvmlFailures
from dra_driver.devices.scenario import load as load_scenario
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.devices.simulated_cards import cards
from dra_driver.devices.simulated_memory import SimulatedMemory
from dra_driver.model.devices import ComputeMode, GpuProcess, Inventory
from dra_driver.model.errors import ControlError, ControlGone, ControlUnsupported, DriverAbsent, DriverNotReady
from dra_driver.ports import DeviceSource, GpuMemory
from tests.fakes.nvml import FakeCard, FakeNvml

FUNCTIONS = {
    "uuid": "nvmlDeviceGetUUID",
    "minor": "nvmlDeviceGetMinorNumber",
    "pciBusId": "nvmlDeviceGetPciInfo_v3",
    "productName": "nvmlDeviceGetName",
    "brand": "nvmlDeviceGetBrand",
    "architecture": "nvmlDeviceGetArchitecture",
    "cudaComputeCapability": "nvmlDeviceGetCudaComputeCapability",
    "memory": "nvmlDeviceGetMemoryInfo",
    "addressingMode": "nvmlDeviceGetAddressingMode",
    "migMode": "nvmlDeviceGetMigMode",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "computeMode": "nvmlDeviceGetComputeMode",
    "setComputeMode": "nvmlDeviceSetComputeMode",
    "memoryLimits": "nvmlDeviceGetMemoryLimits_v1",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
}
CODES = {
    "gpu-lost": pynvml.NVML_ERROR_GPU_IS_LOST,
    "not-supported": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "function-missing": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    "driver-not-loaded": pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    "unknown": pynvml.NVML_ERROR_UNKNOWN,
}


class Modes(Protocol):
    def compute_mode(self, gpu_uuid: str) -> ComputeMode: ...
    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None: ...
    def epoch(self) -> str: ...


class Fate(Protocol):
    """What happens to a node while it runs."""

    def lose(self, uuid: str) -> None: ...
    def regain(self, uuid: str) -> None: ...
    def turn_mig(self, uuid: str, on: bool) -> None: ...
    def unload(self) -> None: ...
    def load(self) -> None: ...
    def compute(self, uuid: str, *processes: GpuProcess) -> None: ...


@dataclass
class Node:
    source: DeviceSource
    modes: Modes
    memory: GpuMemory
    fate: Fate


class FateOfFiles:
    """Files of a simulated node."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def lose(self, uuid: str) -> None:
        (self.state / uuid / "gone").touch()

    def regain(self, uuid: str) -> None:
        (self.state / uuid / "gone").unlink()

    def turn_mig(self, uuid: str, on: bool) -> None:
        (self.state / uuid / "mig_mode").write_text("Enabled\n" if on else "Disabled\n")

    def unload(self) -> None:
        (self.state / "not-loaded").touch()

    def load(self) -> None:
        (self.state / "not-loaded").unlink()

    def compute(self, uuid: str, *processes: GpuProcess) -> None:
        lines = [f"{p.pid} {'-' if p.memory_bytes is None else p.memory_bytes >> 20}\n" for p in processes]
        (self.state / uuid / "processes").write_text("".join(lines))


class FateOfNvml:
    """Answers of NVML and the kernel's bus."""

    def __init__(self, api: FakeNvml, bus: Path) -> None:
        self.api = api
        self.bus = bus
        self.lost: dict[str, FakeCard] = {}

    def lose(self, uuid: str) -> None:
        self.lost[uuid] = card = next(card for card in self.api.cards if card.gpu.uuid == uuid)
        self.api.cards.remove(card)
        (self.bus / card.gpu.pci_bus_id).rename(self.bus.parent / card.gpu.pci_bus_id)

    def regain(self, uuid: str) -> None:
        card = self.lost.pop(uuid)
        self.api.cards.append(card)
        (self.bus.parent / card.gpu.pci_bus_id).rename(self.bus / card.gpu.pci_bus_id)

    def turn_mig(self, uuid: str, on: bool) -> None:
        card = next(card for card in self.api.cards if card.gpu.uuid == uuid)
        card.gpu = replace(card.gpu, mig_enabled=on)

    def unload(self) -> None:
        self.api.fail["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        self.api.fail["nvmlInitWithFlags"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED

    def load(self) -> None:
        self.api.fail.clear()

    def compute(self, uuid: str, *processes: GpuProcess) -> None:
        card = next(card for card in self.api.cards if card.gpu.uuid == uuid)
        card.processes = [(process.pid, process.memory_bytes) for process in processes]


@dataclass
class Failing:
    """``call`` fails with ``error`` on the GPU at a position."""

    call: str
    error: str
    gpu: int = 1


Build = Callable[..., Node]


def simulated(tmp_path: Path, name: str, failing: tuple[Failing, ...], no_driver: int, no_gpus: int) -> Node:
    stem, scenario = load_scenario(name)
    calls = [CallFailure.model_validate(vars(one)) for one in failing]
    nvml = NvmlFailures(notLoadableScans=no_driver, zeroGpuScans=no_gpus)
    driver = scenario.driver.model_copy(update={"memory_limits": True})
    changes = {"failures": Failures(calls=calls, nvml=nvml), "driver": driver}
    node = SimulatedNode(stem, scenario.model_copy(update=changes))
    node.materialise(tmp_path / "driver")
    control = node.control()
    memory = SimulatedMemory(node, control.epoch)
    return Node(node.source(), control, memory, FateOfFiles(tmp_path / "driver" / STATE))


def real(tmp_path: Path, name: str, failing: tuple[Failing, ...], no_driver: int, no_gpus: int) -> Node:
    stem, scenario = load_scenario(name)
    made = cards(scenario, stem)
    inventory = SimulatedNode(stem, scenario).source().scan()
    devices = tmp_path / "sys" / "bus" / "pci" / "devices"
    devices.mkdir(parents=True)
    for card in made:
        gpu = card.gpu
        folder = tmp_path / "sys" / "devices" / (gpu.pcie_root or "") / gpu.pci_bus_id
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{-1 if gpu.numa_node is None else gpu.numa_node}\n")
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (devices / gpu.pci_bus_id).symlink_to(folder)
    api = FakeNvml.of(inventory)
    for one in failing:
        api.cards[one.gpu].fail[FUNCTIONS[one.call]] = CODES[one.error]
    _hold_back(api, no_driver, no_gpus)
    source = NvmlSource(sysfs=tmp_path / "sys", proc=tmp_path / "proc", api=api)
    return Node(source, source, source, FateOfNvml(api, devices))


def _hold_back(api: FakeNvml, no_driver: int, no_gpus: int) -> None:
    """Let the first starts of NVML fail, then hide the cards for some scans."""
    start, count, seen = api.nvmlInitWithFlags, api.nvmlDeviceGetCount, {"start": 0, "count": 0}

    def first_starts_fail(flags: int) -> None:
        seen["start"] += 1
        if seen["start"] <= no_driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        start(flags)

    def first_counts_are_zero() -> int:
        seen["count"] += 1
        return 0 if seen["count"] <= no_gpus else count()

    vars(api).update(nvmlInitWithFlags=first_starts_fail, nvmlDeviceGetCount=first_counts_are_zero)


@pytest.fixture(params=["nvml", "simulated"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    make = {"nvml": real, "simulated": simulated}[request.param]

    def node(name: str, *failing: Failing, no_driver: int = 0, no_gpus: int = 0) -> Node:
        return make(tmp_path, name, failing, no_driver, no_gpus)

    return node


def names(inventory: Inventory) -> list[str]:
    return list(inventory.devices)


def test_facts_of_an_h200_are_those_of_the_real_card(build: Build) -> None:
    gpu = build("h200x2").source.scan().gpus[0]
    assert (gpu.minor, gpu.index, gpu.pci_bus_id) == (0, 0, "0000:00:06.0")
    assert (gpu.product_name, gpu.brand, gpu.architecture) == ("NVIDIA H200", "Nvidia", "Hopper")
    assert (gpu.cuda_compute_capability, gpu.memory_bytes) == ("9.0", 150754820096)
    assert (gpu.addressing_mode, gpu.numa_node, gpu.pcie_root) == ("None", None, "pci0000:00")
    assert (gpu.mig_enabled, gpu.compute_mode, gpu.persistence) == (False, ComputeMode.DEFAULT, True)


def test_driver_versions_are_nvmls(build: Build) -> None:
    driver = build("h200x2").source.scan().driver
    assert (driver.driver_version, driver.cuda_driver_version, driver.nvml_version) == (
        "580.159.04",
        13000,
        "13.580.159.04",
    )


def test_gpus_are_named_by_minor_and_sorted_by_pci_address(build: Build) -> None:
    inventory = build("h200x8").source.scan()
    assert names(inventory) == [f"gpu-{n}" for n in range(8)]
    assert [gpu.pci_bus_id for gpu in inventory.gpus] == sorted(gpu.pci_bus_id for gpu in inventory.gpus)


def test_numa_node_is_the_cards_own(build: Build) -> None:
    assert [gpu.numa_node for gpu in build("a100x8").source.scan().gpus] == [0] * 4 + [1] * 4


def test_gpu_in_mig_mode_is_not_offered_as_a_full_gpu(build: Build) -> None:
    inventory = build("a100x8-mig").source.scan()
    assert len(inventory.gpus) == 8
    assert names(inventory) == [f"gpu-{gpu}-mig-1g5gb-19-{start}" for gpu in range(8) for start in range(7)]


def test_mig_device_has_the_capacities_of_its_profile(build: Build) -> None:
    mig = build("a100x8-mig").source.scan().mig_devices[6]
    assert (mig.profile, mig.profile_id, mig.placement_start, mig.placement_size) == ("1g.5gb", 19, 6, 1)
    assert (mig.memory_bytes, mig.multiprocessors, mig.copy_engines) == (4864 * 1024**2, 14, 1)
    assert (mig.decoders, mig.encoders, mig.jpeg_engines, mig.ofa_engines) == (0, 0, 0, 0)
    assert mig.parent.minor == 0
    assert mig.uuid.startswith("MIG-")


@pytest.mark.parametrize("fact", ["uuid", "minor", "pciBusId"])
@pytest.mark.parametrize("error", ["unknown", "gpu-lost", "not-supported"])
def test_card_without_a_required_fact_costs_only_itself(build: Build, fact: str, error: str) -> None:
    assert names(build("h200x2", Failing(fact, error)).source.scan()) == ["gpu-0"]


def test_card_that_is_left_out_is_named_in_the_log(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    build("h200x2", Failing("minor", "unknown")).source.scan()
    assert "GPU at NVML index 1 is left out" in caplog.text


def test_card_that_is_left_out_is_named_once_over_many_scans(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    source = build("h200x2", Failing("minor", "unknown")).source
    for _ in range(3):
        source.scan()
    assert caplog.text.count("is left out") == 1


@pytest.mark.parametrize(
    ("call", "fact", "instead"),
    [
        ("memory", "memory_bytes", None),
        ("addressingMode", "addressing_mode", None),
        ("persistence", "persistence", None),
        ("computeMode", "compute_mode", None),
        ("brand", "brand", "Unknown"),
        ("architecture", "architecture", "Unknown"),
        ("productName", "product_name", ""),
        ("cudaComputeCapability", "cuda_compute_capability", ""),
    ],
)
@pytest.mark.parametrize("error", ["not-supported", "function-missing", "unknown"])
def test_missing_optional_fact_keeps_the_card(build: Build, call: str, fact: str, instead: object, error: str) -> None:
    inventory = build("h200x2", Failing(call, error)).source.scan()
    assert names(inventory) == ["gpu-0", "gpu-1"]
    assert getattr(inventory.gpus[1], fact) == instead
    assert getattr(inventory.gpus[0], fact) != instead


@pytest.mark.parametrize("error", ["not-supported", "function-missing"])
def test_card_that_knows_no_mig_mode_is_whole(build: Build, error: str) -> None:
    inventory = build("h200x2", Failing("migMode", error)).source.scan()
    assert names(inventory) == ["gpu-0", "gpu-1"]
    assert [gpu.mig_enabled for gpu in inventory.gpus] == [False, False]


@pytest.mark.parametrize(
    ("scenario", "left"),
    [
        ("h200x2", ["gpu-0"]),
        ("a100x8-mig", [f"gpu-{gpu}-mig-1g5gb-19-{start}" for gpu in (0, 2, 3, 4, 5, 6, 7) for start in range(7)]),
    ],
)
def test_card_whose_mig_mode_cannot_be_read_is_not_taken_for_a_whole_one(
    build: Build, caplog: pytest.LogCaptureFixture, scenario: str, left: list[str]
) -> None:
    assert names(build(scenario, Failing("migMode", "unknown")).source.scan()) == left
    assert re.search(r"GPU at NVML index 1 is left out: .*[mM][iI][gG] ?[mM]ode", caplog.text)


def test_card_lost_while_its_facts_are_read_is_left_out(build: Build) -> None:
    assert names(build("h200x2", Failing("memory", "gpu-lost")).source.scan()) == ["gpu-0"]


def test_scan_says_not_ready_until_nvml_can_be_loaded(build: Build) -> None:
    source = build("h200x2", no_driver=3).source
    for _ in range(3):
        with pytest.raises(DriverAbsent, match=r"libnvidia-ml\.so\.1"):
            source.scan()
    assert names(source.scan()) == ["gpu-0", "gpu-1"]


def test_node_without_gpus_yet_gives_an_empty_inventory(build: Build) -> None:
    source = build("h200x2", no_gpus=1).source
    assert source.scan().gpus == ()
    assert len(source.scan().gpus) == 2


def test_driver_unloaded_in_the_middle_of_a_scan_is_not_ready(build: Build) -> None:
    with pytest.raises(DriverAbsent):
        build("h200x2", Failing("memory", "driver-not-loaded")).source.scan()


def test_compute_mode_that_was_set_is_read_back(build: Build) -> None:
    node = build("h200x2")
    first, second = node.source.scan().gpus
    node.modes.set_compute_mode(first.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    assert node.modes.compute_mode(first.uuid) is ComputeMode.EXCLUSIVE_PROCESS
    assert node.modes.compute_mode(second.uuid) is ComputeMode.DEFAULT


def test_compute_mode_that_was_set_is_in_the_next_scan(build: Build) -> None:
    node = build("h200x2")
    first = node.source.scan().gpus[0]
    node.modes.set_compute_mode(first.uuid, ComputeMode.PROHIBITED)
    assert node.source.scan().gpus[0] == replace(first, compute_mode=ComputeMode.PROHIBITED)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("gpu-lost", ControlGone),
        ("driver-not-loaded", ControlGone),
        ("not-supported", ControlUnsupported),
        ("function-missing", ControlUnsupported),
        ("unknown", ControlError),
    ],
)
def test_failed_set_of_the_compute_mode_is_typed_and_names_the_gpu(
    build: Build, error: str, kind: type[ControlError]
) -> None:
    node = build("h200x2", Failing("setComputeMode", error))
    uuid = node.source.scan().gpus[1].uuid
    with pytest.raises(kind, match=f"GPU {uuid}: compute mode cannot be set to DEFAULT"):
        node.modes.set_compute_mode(uuid, ComputeMode.DEFAULT)


def test_compute_mode_of_a_gpu_that_left_is_gone(build: Build) -> None:
    node = build("h200x2")
    node.source.scan()
    with pytest.raises(ControlGone, match="GPU GPU-nowhere"):
        node.modes.compute_mode("GPU-nowhere")


def test_epoch_stays_while_nothing_is_lost(build: Build) -> None:
    node = build("h200x2")
    before = node.modes.epoch()
    node.source.scan()
    assert node.modes.epoch() == before


def test_epoch_changes_when_the_driver_was_lost(build: Build) -> None:
    node = build("h200x2", Failing("computeMode", "driver-not-loaded", gpu=0))
    before = node.modes.epoch()
    with pytest.raises(DriverNotReady):
        node.source.scan()
    assert node.modes.epoch() != before


def test_source_can_be_closed_twice_and_used_again(build: Build) -> None:
    source = build("h200x2").source
    source.scan()
    source.close()
    source.close()
    assert len(source.scan().gpus) == 2


# Memory.


def test_memory_limits_are_known_where_the_driver_answers_for_them(build: Build) -> None:
    node = build("h200x2", Failing("memoryLimits", "not-supported"))
    first, _ = node.source.scan().gpus
    node.memory.check_memory_limits(first.uuid)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("not-supported", ControlUnsupported),
        ("function-missing", ControlUnsupported),
        ("unknown", ControlError),
        ("gpu-lost", ControlGone),
        ("driver-not-loaded", ControlGone),
    ],
)
def test_memory_limits_that_are_not_known_are_typed_and_name_the_gpu(
    build: Build, error: str, kind: type[ControlError]
) -> None:
    node = build("h200x2", Failing("memoryLimits", error))
    uuid = node.source.scan().gpus[1].uuid
    with pytest.raises(ControlError, match=f"GPU {uuid}: memory limits cannot be read") as caught:
        node.memory.check_memory_limits(uuid)
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, ControlUnsupported) == (kind is ControlUnsupported)


def test_memory_limits_of_a_gpu_that_left_are_gone(build: Build) -> None:
    node = build("h200x2")
    node.source.scan()
    with pytest.raises(ControlGone, match="GPU GPU-nowhere"):
        node.memory.check_memory_limits("GPU-nowhere")


def test_processes_are_those_of_the_gpu_with_their_memory(build: Build) -> None:
    node = build("h200x2")
    first, second = (gpu.uuid for gpu in node.source.scan().gpus)
    found = (GpuProcess(pid=42, memory_bytes=5 << 30), GpuProcess(pid=43, memory_bytes=None))
    node.fate.compute(second, *found)
    assert node.memory.processes(first) == ()
    assert node.memory.processes(second) == found


@pytest.mark.parametrize(
    ("error", "kind"), [("not-supported", ControlUnsupported), ("gpu-lost", ControlGone), ("unknown", ControlError)]
)
def test_processes_that_cannot_be_read_are_typed_and_name_the_gpu(
    build: Build, error: str, kind: type[ControlError]
) -> None:
    node = build("h200x2", Failing("processes", error))
    uuid = node.source.scan().gpus[1].uuid
    with pytest.raises(kind, match=f"GPU {uuid}: processes cannot be read"):
        node.memory.processes(uuid)


def test_memory_and_settings_share_an_epoch(build: Build) -> None:
    node = build("h200x2")
    assert node.memory.epoch() == node.modes.epoch()


# What happens to a node while it runs.


def test_cards_on_the_bus_are_told_while_the_driver_is_not_there(build: Build) -> None:
    source = build("h200x2", no_driver=1).source
    with pytest.raises(DriverAbsent):
        source.scan()
    assert source.on_bus() == ("0000:00:06.0", "0000:00:07.0")


def test_card_that_drops_out_and_returns_keeps_its_name_and_its_neighbours_theirs(build: Build) -> None:
    node = build("h200x8")
    before = node.source.scan()
    uuid = before.gpus[2].uuid
    node.fate.lose(uuid)
    assert names(node.source.scan()) == [f"gpu-{n}" for n in range(8) if n != 2]
    assert before.gpus[2].pci_bus_id not in (node.source.on_bus() or ())
    node.fate.regain(uuid)
    after = node.source.scan()
    assert {gpu.name: gpu.uuid for gpu in after.gpus} == {gpu.name: gpu.uuid for gpu in before.gpus}


def test_settings_of_a_card_that_dropped_out_are_gone_until_it_returns(build: Build) -> None:
    node = build("h200x2")
    uuid = node.source.scan().gpus[0].uuid
    node.fate.lose(uuid)
    with pytest.raises(ControlGone, match=f"GPU {uuid}"):
        node.modes.set_compute_mode(uuid, ComputeMode.PROHIBITED)
    node.fate.regain(uuid)
    node.modes.set_compute_mode(uuid, ComputeMode.PROHIBITED)
    assert node.modes.compute_mode(uuid) is ComputeMode.PROHIBITED


def test_node_that_loses_its_last_card_has_none_on_the_bus(build: Build) -> None:
    node = build("l4x1")
    node.fate.lose(node.source.scan().gpus[0].uuid)
    assert node.source.scan().gpus == ()
    assert node.source.on_bus() == ()


def test_mig_mode_that_is_turned_off_and_on_is_in_the_next_scan(build: Build) -> None:
    node = build("a100x8-mig")
    before = node.source.scan()
    uuid = before.gpus[0].uuid
    node.fate.turn_mig(uuid, on=False)
    assert names(node.source.scan())[0] == "gpu-0"
    assert len(node.source.scan().mig_devices) == 49
    node.fate.turn_mig(uuid, on=True)
    assert node.source.scan() == before


def test_driver_that_is_unloaded_and_loaded_again_is_another_epoch(build: Build) -> None:
    node = build("h200x2")
    before = node.source.scan(), node.modes.epoch()
    node.fate.unload()
    with pytest.raises(DriverAbsent, match="kernel driver is not loaded"):
        node.source.scan()
    with pytest.raises(ControlGone):
        node.modes.compute_mode(before[0].gpus[0].uuid)
    node.fate.load()
    assert node.source.scan() == before[0]
    assert node.modes.epoch() != before[1]
