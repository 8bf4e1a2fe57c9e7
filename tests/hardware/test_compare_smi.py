"""The comparison itself, on the kept output of a real H200; needs no GPU."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hardware import compare_smi

SMI = Path(__file__).with_name("h200-nvidia-smi-q.txt")
UUID = "GPU-4f0c6a52-7cfc-30e4-38c5-000000000001"
INVENTORY: dict[str, Any] = {
    "driver": {"driverVersion": "580.159.04", "cudaDriverVersion": 13000, "nvmlVersion": "13.580.159.04"},
    "gpus": [
        {
            "index": 0,
            "minor": 0,
            "uuid": UUID,
            "pciBusId": "0000:00:06.0",
            "productName": "NVIDIA H200",
            "brand": "Nvidia",
            "architecture": "Hopper",
            "cudaComputeCapability": "9.0",
            "memoryBytes": 150754820096,
            "addressingMode": "None",
            "migEnabled": False,
            "computeMode": "DEFAULT",
            "persistence": True,
        }
    ],
    "migDevices": [],
}


def differing(**changes: Any) -> list[str]:
    ours = copy.deepcopy(INVENTORY)
    ours["gpus"][0].update(changes)
    return [row.fact for row in compare_smi.compare(compare_smi.parse_smi(SMI.read_text()), ours) if not row.equal]


def test_report_of_a_real_card_is_read() -> None:
    report = compare_smi.parse_smi(SMI.read_text())
    assert report.head["Driver Version"] == "580.159.04"
    [card] = report.cards
    assert card["GPU UUID"] == UUID
    assert (card["FB Memory Usage/Total"], card["BAR1 Memory Usage/Total"]) == ("143771 MiB", "262144 MiB")
    assert (card["MIG Mode/Current"], card["GPU C2C Mode"]) == ("Disabled", "Disabled")
    assert card["PCI/Bus Id"] == "00000000:00:06.0"


def test_equal_inventory_has_no_difference() -> None:
    assert differing() == []


@pytest.mark.parametrize("mode", ["Default", "DEFAULT", "default", 0, "0"])
def test_compute_mode_is_the_same_however_it_is_written(mode: object) -> None:
    assert differing(computeMode=mode) == []


@pytest.mark.parametrize(
    ("key", "value", "fact"),
    [
        ("productName", "NVIDIA H100", "product"),
        ("brand", "Tesla", "brand"),
        ("architecture", "Ampere", "architecture"),
        ("minor", 1, "minor"),
        ("pciBusId", "0000:00:07.0", "bus id"),
        ("memoryBytes", 150754820096 - 1024**2, "memory MiB"),
        ("memoryBytes", None, "memory MiB"),
        ("computeMode", "EXCLUSIVE_PROCESS", "compute mode"),
        ("persistence", False, "persistence"),
        ("addressingMode", "HMM", "addressing"),
        ("addressingMode", None, "addressing"),
        ("migEnabled", True, "MIG"),
    ],
)
def test_fact_that_differs_is_found(key: str, value: object, fact: str) -> None:
    assert differing(**{key: value}) == [fact]


def test_card_that_one_side_lacks_is_found() -> None:
    assert differing(uuid="GPU-other") == ["card", "card"]


@pytest.mark.parametrize(("ours", "code"), [(INVENTORY, 0), (INVENTORY | {"gpus": []}, 1)])
def test_exit_code_tells_a_difference(tmp_path: Path, ours: dict[str, Any], code: int) -> None:
    kept = tmp_path / "inventory.json"
    kept.write_text(json.dumps(ours))
    assert compare_smi.main(["--smi-file", str(SMI), "--inventory-file", str(kept)]) == code


def test_difference_is_marked_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = copy.deepcopy(INVENTORY)
    ours["driver"]["cudaDriverVersion"] = 12080
    kept = tmp_path / "inventory.json"
    kept.write_text(json.dumps(ours))
    compare_smi.main(["--smi-file", str(SMI), "--inventory-file", str(kept)])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("DIFFERS")]
    assert line.split() == ["DIFFERS", "driver", "CUDA", "version", "13.0", "12.8"]


def test_missing_output_is_told_apart_from_a_difference(tmp_path: Path) -> None:
    assert compare_smi.main(["--smi-file", str(tmp_path / "none")]) == 2
