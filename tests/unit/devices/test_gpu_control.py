"""The tool is a real program in each test: the stand-in of a scenario, or a script of the test's own."""

import fcntl
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dra_driver.devices import scenario
from dra_driver.devices.gpu_control import GpuTool, ObservingControl, ToolControl, parse_time_slice
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import (
    ControlError,
    ControlGone,
    ControlRefused,
    ControlTimeout,
    ControlUnsupported,
)

UUID = "GPU-4f0c6a52-7cfc-30e4-38c5-000000000001"


def tool_of(tmp_path: Path, script: str, **settings: float) -> GpuTool:
    """A tool that is a script; it needs no library."""
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return GpuTool(lambda: path, lambda: None, **settings)


class Node:
    """A simulated node with two GPUs and a tool that behaves as asked."""

    def __init__(self, tmp_path: Path, timeout_s: float = 10.0, **tool: Any) -> None:
        _, shipped = scenario.load("h200x2")
        part = scenario.Tool.model_validate(tool)
        self.node = SimulatedNode("h200x2", shipped.model_copy(update={"tool": part}))
        self.root = tmp_path / "driver"
        self.node.materialise(self.root)
        self.tool = GpuTool.under(self.root, timeout_s)
        self.first, self.second = (gpu.uuid for gpu in self.node.source().scan().gpus)

    def calls(self) -> list[str]:
        return (self.root / "var/log/nvidia-smi.calls").read_text().splitlines()

    def slice_of(self, uuid: str) -> str:
        return (self.root / "var/state" / uuid / "time_slice").read_text().strip()


def failure(tool: GpuTool, uuid: str = UUID) -> ControlError:
    with pytest.raises(ControlError) as caught:
        tool.set_time_slice(uuid, 3)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return caught.value


@pytest.mark.parametrize("interval", [0, 1, 2, 3])
def test_slice_is_set_with_one_run(tmp_path: Path, interval: int) -> None:
    node = Node(tmp_path)
    node.tool.set_time_slice(node.first, interval)
    assert node.calls() == [f"compute-policy -i {node.first} --set-timeslice {interval}"]
    assert node.slice_of(node.first) == str(interval)


def test_slice_of_the_other_gpu_is_not_touched(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.tool.set_time_slice(node.first, 3)
    assert node.slice_of(node.second) == "0"


@pytest.mark.parametrize("interval", [-1, 4, 1.5])
def test_slice_outside_0_to_3_runs_nothing(tmp_path: Path, interval: Any) -> None:
    node = Node(tmp_path)
    with pytest.raises(ControlError, match="not one of 0, 1, 2, 3"):
        node.tool.set_time_slice(node.first, interval)
    assert node.calls() == []


@pytest.mark.parametrize("interval", [0, 1, 2, 3])
def test_slice_that_was_set_is_read_back(tmp_path: Path, interval: int) -> None:
    node = Node(tmp_path)
    node.tool.set_time_slice(node.second, interval)
    assert node.tool.time_slice(node.second) == interval


def test_environment_is_inherited_with_the_library_preloaded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/opt/other.so")
    monkeypatch.setenv("A_SETTING", "kept")
    seen = tmp_path / "seen"
    path = tmp_path / "nvidia-smi"
    path.write_text(f'#!/bin/sh\nprintf "%s %s" "$LD_PRELOAD" "$A_SETTING" > {seen}\n')
    path.chmod(0o755)
    GpuTool(lambda: path, lambda: Path("/driver/libnvidia-ml.so.1")).set_time_slice(UUID, 1)
    assert seen.read_text() == "/driver/libnvidia-ml.so.1:/opt/other.so kept"


def test_library_of_the_driver_root_is_preloaded_without_complaint(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"exitCode": 1}])
    assert str(failure(node.tool, node.first)).endswith("failed with exit code 1")


def test_failure_names_gpu_command_exit_code_and_last_line(tmp_path: Path) -> None:
    tool = tool_of(tmp_path, "echo first; echo ' the reason ' >&2; echo; exit 7")
    command = f"{tmp_path}/nvidia-smi compute-policy -i {UUID} --set-timeslice 3"
    error = failure(tool)
    assert str(error) == f'GPU {UUID}: "{command}" failed with exit code 7: the reason'
    assert type(error) is ControlError


def test_death_by_signal_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"signal": "SEGV"}])
    assert "was killed by signal SIGSEGV" in str(failure(node.tool, node.first))


def test_long_last_line_is_shortened(tmp_path: Path) -> None:
    error = failure(tool_of(tmp_path, "printf 'x%.0s' $(seq 5000); exit 1"))
    assert str(error).endswith("x" * 197 + "...")


def test_control_characters_do_not_reach_the_text(tmp_path: Path) -> None:
    assert "\x1b" not in str(failure(tool_of(tmp_path, r"printf '\033[31mred\033[0m\n'; exit 1")))


def test_gpu_without_the_setting_is_unsupported(tmp_path: Path) -> None:
    text = "Failed to set timeslice for requested devices : Not Supported"
    node = Node(tmp_path, behaviours=[{"gpu": 0, "exitCode": 3, "stderr": text}])
    error = failure(node.tool, node.first)
    assert isinstance(error, ControlUnsupported)
    assert node.first in str(error)


def test_other_gpu_of_a_mixed_node_can_still_be_set(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"gpu": 0, "exitCode": 3, "stderr": "Not Supported"}])
    failure(node.tool, node.first)
    node.tool.set_time_slice(node.second, 2)
    assert node.slice_of(node.second) == "2"


@pytest.mark.parametrize(
    ("code", "kind"),
    [(3, ControlUnsupported), (13, ControlUnsupported), (6, ControlGone), (9, ControlGone), (15, ControlGone)],
)
def test_exit_codes_of_the_manual_are_told_apart(tmp_path: Path, code: int, kind: type[ControlError]) -> None:
    assert isinstance(failure(tool_of(tmp_path, f"exit {code}")), kind)


def test_gpu_that_the_tool_does_not_find_is_gone(tmp_path: Path) -> None:
    error = failure(Node(tmp_path).tool, "GPU-nowhere")
    assert isinstance(error, ControlGone)
    assert "No devices were found" in str(error)


def test_missing_tool_is_gone_and_names_where_it_was_searched(tmp_path: Path) -> None:
    node = Node(tmp_path, missing=True)
    error = failure(node.tool, node.first)
    assert isinstance(error, ControlGone)
    assert f"{node.root}: ., opt/bin, usr/bin" in str(error)


def test_tool_that_vanishes_before_it_is_run_is_gone(tmp_path: Path) -> None:
    error = failure(GpuTool(lambda: tmp_path / "nvidia-smi", lambda: None))
    assert isinstance(error, ControlGone)
    assert f"{tmp_path}/nvidia-smi" in str(error)


def test_tool_that_may_not_be_run_is_gone_and_named(tmp_path: Path) -> None:
    node = Node(tmp_path, executable=False)
    error = failure(node.tool, node.first)
    assert isinstance(error, ControlGone)
    assert f"{node.root}/usr/bin/nvidia-smi" in str(error)


def test_tool_of_another_format_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_bytes(b"\x7fELF nothing")
    path.chmod(0o755)
    assert "cannot be run" in str(failure(GpuTool(lambda: path, lambda: None)))


def test_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    node = Node(tmp_path, timeout_s=0.2, behaviours=[{"hang": True}])
    error = failure(node.tool, node.first)
    assert isinstance(error, ControlTimeout)
    assert "no end within 0.2 s" in str(error)


@pytest.mark.parametrize("leader", ["wait", "exit 0"], ids=["leader-waits", "leader-ends"])
def test_children_of_a_tool_that_hangs_are_ended_with_it(tmp_path: Path, leader: str) -> None:
    pid_file = tmp_path / "pid"
    tool = tool_of(tmp_path, f"sleep 600 & echo $! > {pid_file}; {leader}", timeout_s=0.3)
    assert isinstance(failure(tool), ControlTimeout)
    assert _ends(int(pid_file.read_text()))


def _ends(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_megabytes_of_output_do_not_block_the_tool(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"printMegabytes": 8, "exitCode": 4, "stderr": "first"}])
    assert "failed with exit code 4: nvidia-" in str(failure(node.tool, node.first))


def test_megabytes_before_success_are_a_success(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"printMegabytes": 8, "exitCode": 0}])
    node.tool.set_time_slice(node.first, 1)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    node = Node(tmp_path, timeout_s=0.2, behaviours=[{"calls": [1], "hang": True}])
    before = len(os.listdir("/proc/self/fd"))
    failure(node.tool, node.first)
    node.tool.set_time_slice(node.first, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_uuid_is_never_read_by_a_shell(tmp_path: Path) -> None:
    hostile = f"$(touch {tmp_path}/made)"
    failure(Node(tmp_path).tool, hostile)
    assert not (tmp_path / "made").exists()


def test_failure_of_the_second_call_is_that_of_the_second_call(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"gpu": 0, "calls": [2]}])
    node.tool.set_time_slice(node.first, 1)
    failure(node.tool, node.first)
    node.tool.set_time_slice(node.first, 2)
    assert node.slice_of(node.first) == "2"


def test_calls_are_counted_right_when_they_come_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"calls": [1, 2, 3]}])

    def call(_: int) -> bool:
        try:
            node.tool.set_time_slice(node.first, 1)
        except ControlError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(call, range(8))) == [False] * 3 + [True] * 5
    assert len(node.calls()) == 8


def test_unreadable_slice_is_unknown(tmp_path: Path) -> None:
    node = Node(tmp_path, behaviours=[{"command": "list", "exitCode": 3, "stderr": "Not Supported"}])
    assert node.tool.time_slice(node.first) is None


def test_missing_tool_is_an_error_also_when_reading(tmp_path: Path) -> None:
    node = Node(tmp_path, missing=True)
    with pytest.raises(ControlGone):
        node.tool.time_slice(node.first)


@pytest.mark.parametrize(
    ("output", "interval"),
    [
        ("GPU 00000000:00:06.0: Timeslice: Default\n", 0),
        ("|   0  Timeslice   Short   |\n", 1),
        ("GPU compute policies:\n| GPU  Timeslice |\n|  0   MEDIUM    |\n", 2),
        ("time slice = long", 3),
        ("", None),
        ("[ | --set-timeslice]: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG", None),
        ("GPU 0: longest", None),
    ],
)
def test_slice_is_read_from_any_layout_that_names_one_level(output: str, interval: int | None) -> None:
    assert parse_time_slice(output) == interval


def test_tool_control_sets_mode_and_slice(tmp_path: Path) -> None:
    node = Node(tmp_path)
    control = ToolControl(node.node.control(), node.tool)
    control.set_compute_mode(node.first, ComputeMode.EXCLUSIVE_PROCESS)
    control.set_time_slice(node.first, 2)
    assert (control.compute_mode(node.first), control.time_slice(node.first)) == (
        ComputeMode.EXCLUSIVE_PROCESS,
        2,
    )


def test_observing_control_reads(tmp_path: Path) -> None:
    node = Node(tmp_path)
    inner = ToolControl(node.node.control(), node.tool)
    control = ObservingControl(inner)
    assert (control.compute_mode(node.first), control.time_slice(node.first)) == (ComputeMode.DEFAULT, 0)
    assert control.epoch() == inner.epoch()


def test_observing_control_refuses_to_set_the_slice(tmp_path: Path) -> None:
    node = Node(tmp_path)
    control = ObservingControl(ToolControl(node.node.control(), node.tool))
    with pytest.raises(ControlRefused, match=rf"GPU {node.first}: .*--gpu-control=observe"):
        control.set_time_slice(node.first, 3)
    assert node.calls() == []


def test_observing_control_refuses_to_set_the_compute_mode(tmp_path: Path) -> None:
    node = Node(tmp_path)
    modes = node.node.control()
    modes.set_compute_mode(node.first, ComputeMode.PROHIBITED)
    with pytest.raises(ControlRefused, match=r"set to DEFAULT.*--gpu-control=observe"):
        ObservingControl(ToolControl(modes, node.tool)).set_compute_mode(node.first, ComputeMode.DEFAULT)
    assert modes.compute_mode(node.first) is ComputeMode.PROHIBITED


def test_output_that_tells_a_failure_counts_though_the_exit_code_is_0(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Failed to set timeslice: Insufficient Permissions'\n")
    tool.chmod(0o755)
    with pytest.raises(ControlError, match="Insufficient Permissions"):
        GpuTool(lambda: tool, lambda: None).set_time_slice(UUID, 3)


def test_run_waits_for_the_tool_of_a_killed_driver(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $5 >> {tmp_path}/order\n")
    tool.chmod(0o755)
    control = GpuTool(lambda: tool, lambda: None, lock_directory=tmp_path)
    with (tmp_path / f"{UUID}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        orphan = subprocess.Popen(["sh", "-c", f"sleep 0.3; echo orphan >> {tmp_path}/order"], pass_fds=[lock.fileno()])
    control.set_time_slice(UUID, 0)
    assert (tmp_path / "order").read_text().split() == ["orphan", "0"]
    assert orphan.wait(5) == 0
