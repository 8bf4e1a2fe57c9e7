"""The driver tree and the scripted misfortunes of a simulated node."""

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dra_driver import hostfs
from dra_driver.devices import driver_tree, scenario
from dra_driver.devices.elf import shared_object
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import ControlGone


def node_with(name: str = "h200x2", **parts: Any) -> SimulatedNode:
    _, shipped = scenario.load(name)
    raw = shipped.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    return SimulatedNode(name, scenario.Scenario.model_validate(raw | parts))


def can_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        return False
    return True


def smi(root: Path, *arguments: str) -> str:
    command = [root / "usr/bin/nvidia-smi", *arguments]
    return subprocess.check_output(command, timeout=10, text=True)


def test_library_and_tool_are_found_where_a_driver_has_them(tmp_path: Path) -> None:
    SimulatedNode.load("h200x2").materialise(tmp_path)
    folder = tmp_path / "usr/lib64"
    assert hostfs.find_library(tmp_path, "libnvidia-ml.so.1") == folder / "libnvidia-ml.so.580.159.04"
    assert hostfs.find_library(tmp_path, "libcuda.so") == folder / "libcuda.so.580.159.04"
    assert hostfs.find_library(tmp_path, "libnvidia-nvvm.so.4") == folder / "libnvidia-nvvm.so.580.159.04"
    assert hostfs.find_binary(tmp_path, "nvidia-smi") == tmp_path / "usr/bin/nvidia-smi"


def test_programs_of_the_driver_can_be_run(tmp_path: Path) -> None:
    SimulatedNode.load("h200x2").materialise(tmp_path)
    programs = {path.name for path in (tmp_path / "usr/bin").iterdir() if os.access(path, os.X_OK)}
    assert programs == {
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nvidia-smi",
    }


def test_roots_are_the_tree_itself(tmp_path: Path) -> None:
    roots = SimulatedNode.load("l4x1").materialise(tmp_path)
    assert roots == hostfs.DriverRoots(
        driver_root=tmp_path, dev_root=tmp_path, container_driver_root=tmp_path, container_dev_root=tmp_path
    )


def test_device_nodes_have_the_drivers_numbers(tmp_path: Path) -> None:
    if not can_make_nodes(tmp_path):
        pytest.skip("this user may not make device nodes")
    SimulatedNode.load("h200x2").materialise(tmp_path)
    found = {}
    for path in (tmp_path / "dev").iterdir():
        status = path.stat()
        assert stat.S_ISCHR(status.st_mode)
        found[path.name] = (os.major(status.st_rdev), os.minor(status.st_rdev))
    assert found == {
        "nvidia0": (195, 0),
        "nvidia1": (195, 1),
        "nvidiactl": (195, 255),
        "nvidia-modeset": (195, 254),
        "nvidia-uvm": (238, 0),
        "nvidia-uvm-tools": (238, 1),
    }


def test_files_stand_for_device_nodes_that_may_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refuse)
    SimulatedNode.load("l4x1").materialise(tmp_path)
    assert (tmp_path / "dev/nvidia0").is_file()
    assert (tmp_path / "dev/nvidiactl").is_file()


def test_mig_devices_have_capability_files_as_the_module_numbers_them(tmp_path: Path) -> None:
    SimulatedNode.load("a100x8-mig").materialise(tmp_path)
    mig = tmp_path / "proc/driver/nvidia/capabilities/gpu1/mig/gi7"
    assert (mig / "access").read_text().splitlines()[0] == "DeviceFileMinor: 201"
    assert (mig / "ci0/access").read_text().splitlines() == [
        "DeviceFileMinor: 202",
        "DeviceFileMode: 292",
        "DeviceFileModify: 1",
    ]
    assert (tmp_path / "dev/nvidia-caps/nvidia-cap202").exists()
    assert "237 nvidia-caps" in (tmp_path / "proc/devices").read_text()


def test_node_without_mig_has_no_capability_files(tmp_path: Path) -> None:
    SimulatedNode.load("a100x8").materialise(tmp_path)
    assert not (tmp_path / "dev/nvidia-caps").exists()


def test_second_writing_changes_no_file(tmp_path: Path) -> None:
    SimulatedNode.load("h200x2").materialise(tmp_path)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    SimulatedNode.load("h200x2").materialise(tmp_path)
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_state_outlives_the_program(tmp_path: Path) -> None:
    first = SimulatedNode.load("h200x2")
    first.materialise(tmp_path)
    uuid = first.source().scan().gpus[0].uuid
    first.control().set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS)
    second = SimulatedNode.load("h200x2")
    second.materialise(tmp_path)
    assert second.control().compute_mode(uuid) is ComputeMode.EXCLUSIVE_PROCESS


def test_state_outlives_a_change_of_the_scenario(tmp_path: Path) -> None:
    node = SimulatedNode.load("h200x2")
    node.materialise(tmp_path)
    uuid = node.source().scan().gpus[0].uuid
    smi(tmp_path, "compute-policy", "-i", uuid, "--set-timeslice", "2")
    node_with(tool={"delayMs": 1}).materialise(tmp_path)
    assert smi(tmp_path, "compute-policy", "-i", uuid, "--list").splitlines()[4:-1] == [
        "|   0   Timeslice        Medium       |"
    ]


@pytest.mark.parametrize("text", ["Exclusive_Process", "EXCLUSIVE_PROCESS\n", "3"])
def test_compute_mode_can_be_changed_behind_the_drivers_back(tmp_path: Path, text: str) -> None:
    node = SimulatedNode.load("h200x2")
    node.materialise(tmp_path)
    uuid = node.source().scan().gpus[0].uuid
    (tmp_path / "var/state" / uuid / "compute_mode").write_text(text)
    assert node.control().compute_mode(uuid) is ComputeMode.EXCLUSIVE_PROCESS


def test_scenario_says_the_first_compute_mode(tmp_path: Path) -> None:
    _, shipped = scenario.load("l4x1")
    cards = shipped.gpus[0].model_copy(update={"compute_mode": "Prohibited"})
    node = SimulatedNode("l4x1", shipped.model_copy(update={"gpus": [cards]}))
    node.materialise(tmp_path)
    assert node.control().compute_mode(node.source().scan().gpus[0].uuid) is ComputeMode.PROHIBITED


def test_epoch_is_a_file_that_a_driver_reload_changes(tmp_path: Path) -> None:
    node = SimulatedNode.load("h200x2")
    node.materialise(tmp_path)
    before = node.control().epoch()
    (tmp_path / "var/state/epoch").write_text("2\n")
    assert node.control().epoch() != before


def test_compute_mode_that_cannot_be_kept_is_an_error() -> None:
    node = SimulatedNode.load("h200x2")
    uuid = node.source().scan().gpus[0].uuid
    with pytest.raises(ControlGone, match="has no driver tree"):
        node.control().set_compute_mode(uuid, ComputeMode.DEFAULT)


def test_thousand_gpus_have_their_nodes_and_state(tmp_path: Path) -> None:
    cards = "{count: 1000, productName: X, architecture: Ampere, cudaComputeCapability: '8.0'}"
    node = SimulatedNode("big", scenario.parse(f"driver: {{version: '1.2'}}\ngpus: [{cards}]", "big"))
    node.materialise(tmp_path)
    assert (tmp_path / "dev/nvidia999").exists()
    assert node.control().compute_mode(node.source().scan().gpus[-1].uuid) is ComputeMode.DEFAULT


def test_tool_lists_gpus(tmp_path: Path) -> None:
    node = SimulatedNode.load("l4x1")
    node.materialise(tmp_path)
    uuid = node.source().scan().gpus[0].uuid
    assert smi(tmp_path, "-L") == f"GPU 0: NVIDIA L4 (UUID: {uuid})\n"


def test_tool_lists_the_slices_of_all_gpus(tmp_path: Path) -> None:
    node = SimulatedNode.load("h200x2")
    node.materialise(tmp_path)
    _, second = (gpu.uuid for gpu in node.source().scan().gpus)
    smi(tmp_path, "compute-policy", "--id", second, "--set-timeslice=3")
    assert smi(tmp_path, "compute-policy", "-l").splitlines() == [
        "+-------------------------------------+",
        "| GPU compute policies:               |",
        "| GPU     Name           Value        |",
        "|=====================================|",
        "|   0   Timeslice       Default       |",
        "|   1   Timeslice          Long       |",
        "+-------------------------------------+",
    ]


def test_tool_works_in_a_tree_that_was_moved(tmp_path: Path) -> None:
    SimulatedNode.load("l4x1").materialise(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert "NVIDIA L4" in smi(tmp_path / "there", "-L")


def test_tool_does_not_know_a_gpu_that_is_gone(tmp_path: Path) -> None:
    node = SimulatedNode.load("h200x2")
    node.materialise(tmp_path)
    first, second = (gpu.uuid for gpu in node.source().scan().gpus)
    (tmp_path / "var/state" / first / "gone").touch()
    assert smi(tmp_path, "-L") == f"GPU 1: NVIDIA H200 (UUID: {second})\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        smi(tmp_path, "compute-policy", "-i", first, "--set-timeslice", "1")
    assert caught.value.returncode == 6


def test_tool_cannot_work_while_the_driver_is_not_loaded(tmp_path: Path) -> None:
    SimulatedNode.load("l4x1").materialise(tmp_path)
    (tmp_path / "var/state/not-loaded").touch()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        smi(tmp_path, "-L")
    assert caught.value.returncode == 9


# What happens while the driver runs.


def test_gpu_that_goes_leaves_the_names_of_the_others() -> None:
    source = node_with("h200x8", changes=[{"afterScans": 1, "gpu": 0, "gone": True}]).source()
    assert "gpu-0" in source.scan().devices
    assert list(source.scan().devices) == [f"gpu-{n}" for n in range(1, 8)]


def test_gpu_that_goes_and_comes_back_is_the_same() -> None:
    changes = [{"afterScans": 1, "gpu": 0, "gone": True}, {"afterScans": 2, "gpu": 0, "gone": False}]
    source = node_with(changes=changes).source()
    before = source.scan()
    assert list(source.scan().devices) == ["gpu-1"]
    assert source.scan() == before


def test_gpu_that_is_replaced_while_it_is_gone_comes_back_as_the_other() -> None:
    changes = [
        {"afterScans": 1, "gpu": 0, "gone": True},
        {"afterScans": 2, "gpu": 0, "uuid": "GPU-new"},
        {"afterScans": 3, "gpu": 0, "gone": False},
    ]
    source = node_with(changes=changes).source()
    assert [len(source.scan().gpus) for _ in range(3)] == [2, 1, 1]
    assert source.scan().gpus[0].uuid == "GPU-new"


@pytest.mark.parametrize("changes", [[], [{"afterScans": 1, "gpu": 0, "gone": True}]], ids=["by-file", "by-scenario"])
def test_gpu_that_is_gone_loses_its_settings(tmp_path: Path, changes: list[dict[str, Any]]) -> None:
    node = node_with(changes=changes)
    node.materialise(tmp_path)
    source = node.source()
    uuid = source.scan().gpus[0].uuid
    state = tmp_path / "var/state" / uuid
    smi(tmp_path, "compute-policy", "-i", uuid, "--set-timeslice", "3")
    node.control().set_compute_mode(uuid, ComputeMode.PROHIBITED)
    if not changes:
        (state / "gone").touch()
    assert list(source.scan().devices) == ["gpu-1"]
    assert [(state / name).read_text() for name in ("time_slice", "compute_mode")] == ["0\n", "Default\n"]


def test_card_can_be_gone_before_the_driver_starts(tmp_path: Path) -> None:
    node = SimulatedNode.load("h200x2")
    node.materialise(tmp_path)
    (tmp_path / "var/state" / node.source().scan().gpus[0].uuid / "gone").touch()
    second = SimulatedNode.load("h200x2")
    second.materialise(tmp_path)
    assert list(second.source().scan().devices) == ["gpu-1"]


def test_layout_of_a_card_whose_mig_mode_is_off_is_what_it_has_when_it_is_turned_on(tmp_path: Path) -> None:
    shipped = scenario.load("a100x8-mig")[1].gpus[0].model_dump(mode="json", by_alias=True, exclude_unset=True)
    node = node_with("a100x8-mig", gpus=[{**shipped, "migEnabled": False}])
    node.materialise(tmp_path)
    source = node.source()
    found = source.scan()
    assert list(found.devices) == [f"gpu-{n}" for n in range(8)]
    (tmp_path / "var/state" / found.devices["gpu-0"].uuid / "mig_mode").write_text("Enabled\n")
    cut = [f"gpu-0-mig-1g5gb-19-{n}" for n in range(7)]
    assert list(source.scan().devices) == [*(f"gpu-{n}" for n in range(1, 8)), *cut]
    assert (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access").exists()


def test_node_without_gpus_can_be_described(tmp_path: Path) -> None:
    node = SimulatedNode("none", scenario.parse("driver: {version: '1.2'}\ngpus: []", "none"))
    node.materialise(tmp_path)
    assert node.source().scan().gpus == ()
    assert node.source().on_bus() == ()


def test_minors_can_be_swapped_while_running() -> None:
    swap = [{"afterScans": 1, "gpu": 0, "minor": 1}, {"afterScans": 1, "gpu": 1, "minor": 0}]
    source = node_with(changes=swap).source()
    before, after = source.scan().devices, source.scan().devices
    assert (before["gpu-0"].uuid, before["gpu-1"].uuid) == (after["gpu-1"].uuid, after["gpu-0"].uuid)


def test_gpu_can_be_cut_into_mig_devices_while_running(tmp_path: Path) -> None:
    layout = [{"profile": "1g.18gb", "starts": [0, 1, 2, 3, 4, 5, 6]}]
    node = node_with(changes=[{"afterScans": 1, "gpu": 0, "mig": layout}])
    node.materialise(tmp_path)
    source = node.source()
    assert list(source.scan().devices) == ["gpu-0", "gpu-1"]
    assert list(source.scan().devices) == ["gpu-1", *(f"gpu-0-mig-1g18gb-19-{n}" for n in range(7))]
    assert (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access").exists()


def test_gpu_that_was_replaced_can_be_set(tmp_path: Path) -> None:
    node = node_with(changes=[{"afterScans": 1, "gpu": 0, "uuid": "GPU-new"}])
    node.materialise(tmp_path)
    source = node.source()
    old = source.scan().gpus[0].uuid
    source.scan()
    node.control().set_compute_mode("GPU-new", ComputeMode.PROHIBITED)
    assert node.control().compute_mode("GPU-new") is ComputeMode.PROHIBITED
    with pytest.raises(ControlGone):
        node.control().compute_mode(old)


def test_call_that_fails_first_works_later() -> None:
    failure = {"call": "computeMode", "error": "gpu-lost", "gpu": 1, "first": 2}
    source = node_with(failures={"calls": [failure]}).source()
    assert [len(source.scan().gpus) for _ in range(3)] == [1, 1, 2]


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_made_library_is_of_the_nodes_machine(machine: str, number: int) -> None:
    content = shared_object("libx.so.1", machine)
    assert content[:4] == b"\x7fELF"
    assert int.from_bytes(content[18:20], "little") == number


def test_calls_are_logged_where_the_tree_says(tmp_path: Path) -> None:
    SimulatedNode.load("l4x1").materialise(tmp_path)
    smi(tmp_path, "-L")
    assert (tmp_path / driver_tree.CALL_LOG).read_text() == "-L\n"
