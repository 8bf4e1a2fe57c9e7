"""What NvmlSource does beyond the contract it shares with the simulated node: sessions, limits, MIG details."""

import ctypes
import logging
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from dra_driver.devices import vocabulary
from dra_driver.devices.elf import shared_object
from dra_driver.devices.nvml import NvmlSource
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.devices import Inventory
from dra_driver.model.errors import ControlError, ControlTimeout, ControlUnsupported, DriverAbsent, DriverNotReady
from tests.fakes.nvml import FakeNvml


def fake(name: str = "h200x2") -> FakeNvml:
    return FakeNvml.of(SimulatedNode.load(name).source().scan())


def source_over(api: FakeNvml, tmp_path: Path, **settings: float) -> NvmlSource:
    return NvmlSource(sysfs=tmp_path / "sys", proc=tmp_path / "proc", api=api, **settings)


def load_module(tmp_path: Path, version: str) -> Path:
    module = tmp_path / "sys" / "module" / "nvidia"
    module.mkdir(parents=True)
    (module / "version").write_text(f"{version}\n")
    return module


def test_nothing_is_called_before_the_first_use(tmp_path: Path) -> None:
    api = fake()
    source_over(api, tmp_path).epoch()
    assert not api.calls


def test_one_session_serves_all_scans(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    for _ in range(3):
        source.scan()
    assert (api.calls["nvmlInitWithFlags"], api.sessions) == (1, 1)


def test_close_ends_the_session(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    source.scan()
    source.close()
    assert api.sessions == 0


def test_close_without_a_session_does_not_touch_nvml(tmp_path: Path) -> None:
    api = fake()
    source_over(api, tmp_path).close()
    assert not api.calls


def test_handle_is_asked_for_by_uuid_each_time(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    uuid = api.cards[0].gpu.uuid
    source.compute_mode(uuid)
    source.compute_mode(uuid)
    assert api.calls["nvmlDeviceGetHandleByUUID"] == 2


def test_lost_session_is_opened_again_within_the_call(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    uuid = api.cards[0].gpu.uuid
    source.compute_mode(uuid)
    api.sessions = 0
    source.compute_mode(uuid)
    assert api.calls["nvmlInitWithFlags"] == 2


def test_epoch_changes_when_the_session_was_lost(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    source.scan()
    before = source.epoch()
    api.sessions = 0
    source.scan()
    assert source.epoch() != before


def test_epoch_changes_when_the_module_is_loaded_anew(tmp_path: Path) -> None:
    module = load_module(tmp_path, "580.159.04")
    source = source_over(fake(), tmp_path)
    before = source.epoch()
    # Kept under another name, so that the file system cannot give its inode to the new folder.
    module.rename(module.with_name("unloaded"))
    load_module(tmp_path, "580.159.04")
    assert source.epoch() != before


def test_epoch_changes_with_the_boot(tmp_path: Path) -> None:
    epochs = set()
    for boot in ("first", "second"):
        file = tmp_path / "proc/sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{boot}\n")
        epochs.add(source_over(fake(), tmp_path).epoch())
    assert len(epochs) == 2


def test_epoch_of_a_restarted_program_is_the_same(tmp_path: Path) -> None:
    load_module(tmp_path, "580.159.04")
    first, second = (source_over(fake(), tmp_path) for _ in range(2))
    first.scan()
    assert first.epoch() == second.epoch()


def test_lost_gpu_gets_a_new_session_at_ever_fewer_scans(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    api.cards[1].fail["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
    for _ in range(12):
        source.scan()
    # After scans 1, 3 and 7: the waits double.
    assert api.calls["nvmlInitWithFlags"] == 4


def test_gpu_that_was_reset_comes_back(tmp_path: Path) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    api.cards[1].fail["nvmlDeviceGetUUID"] = pynvml.NVML_ERROR_GPU_IS_LOST
    source.scan()
    del api.cards[1].fail["nvmlDeviceGetUUID"]
    assert len(source.scan().gpus) == 2


def bind(tmp_path: Path, *addresses: str) -> None:
    """Have the kernel say that its NVIDIA driver holds these cards."""
    folder = tmp_path / "sys/bus/pci/drivers/nvidia"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "new_id").touch()
    for address in addresses:
        (folder / address).mkdir()


def test_cards_that_come_after_the_start_are_seen_though_a_session_lists_only_the_cards_of_its_beginning(
    tmp_path: Path,
) -> None:
    api = fake()
    late, api.cards = api.cards, []
    source = source_over(api, tmp_path)
    assert source.scan().gpus == ()
    assert api.sessions == 0
    api.cards = late
    assert len(source.scan().gpus) == 2


def test_card_that_is_bound_to_the_driver_and_not_in_the_session_gets_a_new_session_at_ever_fewer_scans(
    tmp_path: Path,
) -> None:
    api = fake()
    source = source_over(api, tmp_path)
    bind(tmp_path, *(card.gpu.pci_bus_id for card in api.cards))
    source.scan()
    source.scan()
    assert api.calls["nvmlInitWithFlags"] == 1
    bind(tmp_path, "0000:99:00.0")
    for _ in range(12):
        source.scan()
    assert api.calls["nvmlInitWithFlags"] == 4


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_driver_that_is_not_there_is_told_from_one_that_does_not_answer(tmp_path: Path, code: int) -> None:
    api = fake()
    api.fail["nvmlInitWithFlags"] = code
    with pytest.raises(DriverAbsent):
        source_over(api, tmp_path).scan()
    api.fail["nvmlInitWithFlags"] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(DriverNotReady) as caught:
        source_over(api, tmp_path).scan()
    assert not isinstance(caught.value, DriverAbsent)


def test_version_mismatch_says_to_restart(tmp_path: Path) -> None:
    api = fake()
    api.fail["nvmlInitWithFlags"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(DriverNotReady, match="Restarting"):
        source_over(api, tmp_path).scan()


def test_init_that_fails_for_any_reason_is_not_ready(tmp_path: Path) -> None:
    api = fake()
    api.fail["nvmlInitWithFlags"] = pynvml.NVML_ERROR_NO_PERMISSION
    with pytest.raises(DriverNotReady, match=r"cannot be initialised.*Insufficient Permissions"):
        source_over(api, tmp_path).scan()


def test_count_that_fails_is_not_ready(tmp_path: Path) -> None:
    api = fake()
    api.fail["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(DriverNotReady, match="nvmlDeviceGetCount"):
        source_over(api, tmp_path).scan()


def test_card_without_a_handle_costs_only_itself(tmp_path: Path) -> None:
    api = fake()
    api.cards[0].fail["nvmlDeviceGetHandleByIndex"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert list(source_over(api, tmp_path).scan().devices) == ["gpu-1"]


def test_card_keeps_its_name_when_another_drops_out(tmp_path: Path) -> None:
    api = fake("h200x8")
    del api.cards[0]
    assert list(source_over(api, tmp_path).scan().devices) == [f"gpu-{n}" for n in range(1, 8)]


@pytest.mark.parametrize("missing", ["nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetAddressingMode"])
def test_function_that_pynvml_lacks_costs_only_its_fact(tmp_path: Path, missing: str) -> None:
    api = fake()
    api.missing.add(missing)
    assert len(source_over(api, tmp_path).scan().gpus) == 2


def test_missing_function_is_told_apart_from_not_supported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api = fake()
    api.missing.add("nvmlDeviceGetAddressingMode")
    api.cards[0].fail["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    source_over(api, tmp_path).scan()
    assert "addressing mode is left out: nvmlDeviceGetAddressingMode: not in this pynvml" in caplog.text
    assert "memory is left out: nvmlDeviceGetMemoryInfo: Not Supported" in caplog.text


def test_unknown_brand_and_architecture_are_named_unknown(tmp_path: Path) -> None:
    api = fake()
    vars(api).update(nvmlDeviceGetBrand=lambda _: 99, nvmlDeviceGetArchitecture=lambda _: 0xFFFFFFFF)
    gpu = source_over(api, tmp_path).scan().gpus[0]
    assert (gpu.brand, gpu.architecture) == ("Unknown", "Unknown")


def test_name_with_bytes_that_are_no_text_is_kept_readable(tmp_path: Path) -> None:
    api = fake()
    vars(api).update(nvmlDeviceGetName=lambda _: b"NVIDIA \xff200")
    assert source_over(api, tmp_path).scan().gpus[0].product_name == "NVIDIA �200"


def test_call_that_hangs_ends_in_a_timeout(tmp_path: Path) -> None:
    api, release = fake(), threading.Event()
    vars(api).update(nvmlDeviceGetComputeMode=lambda _: release.wait())
    source = source_over(api, tmp_path, call_timeout_s=0.05)
    try:
        with pytest.raises(ControlTimeout, match=r"compute mode cannot be read: NVML: no answer within 0\.05 s"):
            source.compute_mode(api.cards[0].gpu.uuid)
    finally:
        release.set()


def test_scan_that_hangs_is_not_ready(tmp_path: Path) -> None:
    api, release = fake(), threading.Event()
    vars(api).update(nvmlDeviceGetCount=release.wait)
    try:
        with pytest.raises(DriverNotReady, match="no answer within"):
            source_over(api, tmp_path, scan_timeout_s=0.05).scan()
    finally:
        release.set()


def test_one_gpu_that_hangs_does_not_hold_up_another(tmp_path: Path) -> None:
    api, release = fake(), threading.Event()
    stuck, fine = api.cards
    vars(api).update(nvmlDeviceGetComputeMode=lambda card: release.wait() if card is stuck else 0)
    source = source_over(api, tmp_path, call_timeout_s=0.05)
    try:
        with pytest.raises(ControlTimeout):
            source.compute_mode(stuck.gpu.uuid)
        assert source.compute_mode(fine.gpu.uuid).value == 0
    finally:
        release.set()


def test_number_that_is_no_compute_mode_is_an_error(tmp_path: Path) -> None:
    api = fake()
    api.cards[0].compute_mode = 9
    with pytest.raises(ControlError, match="9, which is no compute mode"):
        source_over(api, tmp_path).compute_mode(api.cards[0].gpu.uuid)


# MIG.


def mig_scan(api: FakeNvml, tmp_path: Path) -> Inventory:
    return source_over(api, tmp_path).scan()


def test_empty_slots_between_mig_devices_are_skipped(tmp_path: Path) -> None:
    api = fake("a100x8-mig")
    del api.cards[0].migs[2]
    starts = [mig.placement_start for mig in mig_scan(api, tmp_path).mig_devices if mig.parent.minor == 0]
    assert starts == [0, 1, 3, 4, 5, 6]


def test_compute_instance_that_covers_part_of_its_gpu_instance_is_not_offered(tmp_path: Path) -> None:
    api = fake("a100x8-mig")
    api.cards[0].migs[0].instance_slices = 3
    assert "gpu-0-mig-1g5gb-19-0" not in mig_scan(api, tmp_path).devices


def test_mig_device_that_cannot_be_read_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api = fake("a100x8-mig")
    broken = api.cards[0].migs[3]
    broken.device = replace(broken.device, profile_id=77)
    devices = mig_scan(api, tmp_path).devices
    assert len(devices) == 55
    assert "MIG device 3" in caplog.text
    assert "profile with id 77" in caplog.text


def test_profiles_of_a_card_are_asked_for_once_a_session(tmp_path: Path) -> None:
    api = fake("a100x8-mig")
    source = source_over(api, tmp_path)
    first = source.scan()
    asked = api.calls["nvmlDeviceGetGpuInstanceProfileInfo"]
    assert source.scan() == first
    assert api.calls["nvmlDeviceGetGpuInstanceProfileInfo"] == asked
    api.sessions = 0
    assert source.scan() == first
    assert api.calls["nvmlDeviceGetGpuInstanceProfileInfo"] == 2 * asked


def test_profile_that_could_not_be_read_at_first_is_found_by_a_later_scan(tmp_path: Path) -> None:
    api = fake("a100x8-mig")
    source = source_over(api, tmp_path)
    api.cards[0].fail["nvmlDeviceGetGpuInstanceProfileInfo"] = pynvml.NVML_ERROR_UNKNOWN
    assert len(source.scan().mig_devices) == 49
    del api.cards[0].fail["nvmlDeviceGetGpuInstanceProfileInfo"]
    assert len(source.scan().mig_devices) == 56


def test_profile_is_named_by_its_memory_on_drivers_that_give_no_name(tmp_path: Path) -> None:
    api = fake("a100x8-mig")
    for card in api.cards:
        card.profiles[0].name = ""
    assert {mig.profile for mig in mig_scan(api, tmp_path).mig_devices} == {"1g.5gb"}


@pytest.mark.parametrize(
    ("number", "slices", "memory_mib", "total", "name"),
    [
        (0, 1, 16384, 150754820096, "1g.18gb"),
        (1, 2, 33280, 150754820096, "2g.35gb"),
        (2, 3, 71424, 150754820096, "3g.71gb"),
        (4, 7, 143360, 150754820096, "7g.141gb"),
        (7, 1, 16384, 150754820096, "1g.18gb+me"),
        (9, 1, 33280, 150754820096, "1g.35gb"),
        (0, 1, 4864, 42949672960, "1g.5gb"),
        (3, 4, 19968, 42949672960, "4g.20gb"),
        (0xD, 1, 4864, 42949672960, "1g.5gb-me"),
        (0xF, 1, 4864, 42949672960, "1g.5gb+me.all"),
        (0xA, 1, 4864, 42949672960, "1g.5gb+gfx"),
    ],
)
def test_profile_name_is_what_the_driver_calls_it(
    number: int, slices: int, memory_mib: int, total: int, name: str
) -> None:
    assert vocabulary.profile_name(number, slices, memory_mib, total) == name


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:00:06.0", "0000:00:06.0"),
        ("0000:CA:00.0", "0000:ca:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_pci_address_is_short_and_lower_case(given: str, expected: str) -> None:
    assert vocabulary.pci_bus_id(given) == expected


@pytest.mark.parametrize("given", ["", "gpu0", "0000:00:06.9", "0000:00"])
def test_text_that_is_no_pci_address_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="PCI address"):
        vocabulary.pci_bus_id(given)


# The library.


def test_library_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_text("not a library")
    with pytest.raises(DriverNotReady, match=str(library)):
        NvmlSource(library, api=fake()).scan()


def test_library_is_searched_for_again_at_each_attempt(tmp_path: Path) -> None:
    library = tmp_path / "libsearched-for-again.so.1"
    source = NvmlSource(lambda: library, sysfs=tmp_path, api=fake())
    with pytest.raises(DriverNotReady):
        source.scan()
    library.write_bytes(shared_object(library.name))
    assert len(source.scan().gpus) == 2


def test_made_library_is_found_by_soname_once_it_is_loaded_by_path(tmp_path: Path) -> None:
    library = tmp_path / "libmade-up.so.580.159.04"
    library.write_bytes(shared_object("libmade-up-for-a-test.so.1"))
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL("libmade-up-for-a-test.so.1")


SCAN = """
import sys
from pathlib import Path
from dra_driver.devices.nvml import NvmlSource
source = NvmlSource(Path(sys.argv[1]), sysfs=Path("/nonexistent"))
gpu = source.scan().gpus[0]
source.set_compute_mode(gpu.uuid, type(source.compute_mode(gpu.uuid)).EXCLUSIVE_PROCESS)
print(gpu.name, gpu.uuid, gpu.pci_bus_id, gpu.product_name, gpu.memory_bytes, gpu.addressing_mode)
print(source.compute_mode(gpu.uuid).name)
source.close()
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_library_under_a_driver_root_is_spoken_to_through_pynvml(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.580.159.04"
    source = Path(__file__).with_name("nvml_library.c")
    compile_it = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source]
    subprocess.run(compile_it, check=True, timeout=60)
    scan = [sys.executable, "-W", "error", "-c", SCAN, library]
    done = subprocess.run(scan, check=True, timeout=30, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "gpu-3 GPU-c0ffee00-0000-0000-0000-000000000001 0000:00:06.0 NVIDIA H200 None None",
        "EXCLUSIVE_PROCESS",
    ]


def test_memory_limits_are_asked_of_the_root_cgroup(tmp_path: Path) -> None:
    api = fake()
    source_over(api, tmp_path).check_memory_limits(api.cards[0].gpu.uuid)
    assert api.limits_asked == ["/sys/fs/cgroup"]


def test_that_no_limit_is_set_is_an_answer(tmp_path: Path) -> None:
    api = fake()
    api.fail["nvmlDeviceGetMemoryLimits_v1"] = pynvml.NVML_ERROR_NOT_FOUND
    source_over(api, tmp_path).check_memory_limits(api.cards[0].gpu.uuid)


def test_bindings_that_do_not_know_memory_limits_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = fake()
    monkeypatch.delattr(FakeNvml, "c_nvmlGetMemoryLimits_v1_t")

    with pytest.raises(ControlUnsupported, match="not in this pynvml"):
        source_over(api, tmp_path).check_memory_limits(api.cards[0].gpu.uuid)


# A driver that is replaced.


class Upgraded:
    """A process that loaded a library which the kernel's driver does not fit any more."""

    def __init__(self, directory: Path) -> None:
        self.old, self.new = directory / "libmade-up.so.580.1", directory / "libmade-up.so.590.1"
        for library in (self.old, self.new):
            library.write_bytes(shared_object(library.name))
        self.found: Path | None = self.old
        self.api = fake()
        self.source = NvmlSource(lambda: self.found, sysfs=directory, api=self.api)
        self.source.scan()
        self.api.fail["nvmlSystemGetDriverVersion"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        self.api.fail["nvmlInitWithFlags"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        with pytest.raises(DriverNotReady):
            self.source.scan()


def test_process_ends_once_the_library_of_the_new_driver_is_there(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path)
    before = upgraded.source.outlived()

    upgraded.found = upgraded.new

    assert before == ""
    assert f"{upgraded.old}, which is loaded here, does not fit" in upgraded.source.outlived()
    assert f"{upgraded.new} is there" in upgraded.source.outlived()


def test_process_waits_while_the_new_drivers_library_is_not_there(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path)

    upgraded.found = None

    assert upgraded.source.outlived() == ""


def test_process_goes_on_when_its_own_driver_is_back(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path)
    upgraded.api.fail.clear()
    upgraded.source.scan()

    upgraded.found = upgraded.new

    assert upgraded.source.outlived() == ""


def test_new_library_alone_ends_no_process(tmp_path: Path) -> None:
    upgraded = Upgraded(tmp_path)
    upgraded.api.fail = {"nvmlInitWithFlags": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    with pytest.raises(DriverNotReady):
        upgraded.source.scan()

    upgraded.found = upgraded.new

    assert upgraded.source.outlived() == ""
