"""On a node with NVIDIA GPUs: ``pytest -m hardware tests/hardware``. The cards are only read."""

import shutil
from pathlib import Path

import pytest

from dra_driver.devices.gpu_control import GpuTool
from dra_driver.devices.memory_limits import LimitedSource, why_driver_cannot
from dra_driver.devices.nvml import NvmlSource
from dra_driver.model.devices import MemoryLimits
from dra_driver.model.errors import ControlUnsupported
from tests.hardware import compare_smi

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on this machine"),
    pytest.mark.timeout(300),
]


def test_inventory_agrees_with_nvidia_smi(capsys: pytest.CaptureFixture[str]) -> None:
    code = compare_smi.main([])
    assert code == 0, capsys.readouterr().out


def test_compute_mode_read_alone_is_that_of_the_scan() -> None:
    source = NvmlSource()
    for gpu in source.scan().gpus:
        assert source.compute_mode(gpu.uuid) is gpu.compute_mode
    source.close()


def test_epoch_is_the_same_for_two_programs() -> None:
    assert NvmlSource().epoch() == NvmlSource().epoch()


def test_time_slice_can_be_read_or_is_unknown() -> None:
    source, tool = NvmlSource(), GpuTool(lambda: Path(shutil.which("nvidia-smi") or ""), lambda: None, 60)
    for gpu in source.scan().gpus:
        assert tool.time_slice(gpu.uuid) in (None, 0, 1, 2, 3)
    source.close()


# First branch of the driver whose NVML is said to have limits of cgroups.
LIMITS_SINCE = 615


def test_memory_limits_are_read_or_cleanly_not_known() -> None:
    source = NvmlSource()
    found = source.scan()
    branch = int(found.driver.driver_version.partition(".")[0])
    for gpu in found.gpus:
        if gpu.mig_enabled:
            continue
        if branch >= LIMITS_SINCE:
            source.check_memory_limits(gpu.uuid)
            continue
        with pytest.raises(ControlUnsupported, match=f"GPU {gpu.uuid}: memory limits cannot be read"):
            source.check_memory_limits(gpu.uuid)
    # NVML is as usable as before.
    assert source.scan() == found
    source.close()


def test_memory_limits_are_observed_with_the_reason_where_the_driver_does_not_know_them() -> None:
    source = NvmlSource()
    limited = LimitedSource(source, source, Path("/sys"), lambda version: "")
    for gpu in limited.scan().gpus:
        if gpu.mig_enabled:
            continue
        why = why_driver_cannot(source, gpu.uuid)
        if why:
            assert gpu.memory_limits is MemoryLimits.OBSERVED
            assert "does not know them" in why
    limited.close()


def test_processes_of_a_gpu_can_be_read() -> None:
    source = NvmlSource()
    for gpu in source.scan().gpus:
        for process in source.processes(gpu.uuid):
            assert process.pid > 0
            assert process.memory_bytes is None or process.memory_bytes <= (gpu.memory_bytes or 0)
    source.close()
