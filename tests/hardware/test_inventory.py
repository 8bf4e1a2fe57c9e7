"""On a node with NVIDIA GPUs: ``pytest -m hardware tests/hardware``. The cards are only read."""

import shutil
from pathlib import Path

import pytest

from dra_driver.devices.gpu_control import GpuTool
from dra_driver.devices.nvml import NvmlSource
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
