"""What ``hack.hardware`` saw on machines with one and with two H200s, as tests that need no GPU. UUIDs are replaced."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.devices.simulated import SimulatedNode
from dra_driver.slices.build import build_slices
from hack.hardware import findings, plot
from hack.hardware.pod_images import KINDS

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RUNS: dict[str, dict[str, Any]] = {
    name: json.loads((HERE / f"{name}-run.json").read_text()) for name in ("h200", "h200x2")
}
ONE, TWO = RUNS["h200"], RUNS["h200x2"]
WAYS = ("hook-free", "hooks", "nvidia-ctk")

of_each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@of_each_run
def test_all_checks_held_of_all_scenes(run: dict[str, Any]) -> None:
    assert [check["what"] for check in run["checks"] if not check["holds"]] == []
    assert {check["scene"] for check in run["checks"]} == {"a", "b", "c", "e", "f", "all"}
    assert run["settings"]["changed"] == []


@of_each_run
def test_no_real_uuid_is_kept(run: dict[str, Any]) -> None:
    found = set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", json.dumps(run)))
    assert found
    assert {uuid[:19] for uuid in found} <= {"00000000-0000-4000-8000"[:19]}


def test_simulated_h200s_are_published_as_the_real_ones_were() -> None:
    inventory = SimulatedNode.load("h200x2").source().scan()
    (published,) = build_slices(inventory.gpus, inventory.driver, "node-1")
    simulated = [json.loads(json.dumps(entry)) for entry in published.devices]
    for ours, real in zip(simulated, TWO["devices"], strict=True):
        assert {**ours["attributes"], "uuid": None} == {**real["attributes"], "uuid": None}
        assert (ours["name"], ours["capacity"]) == (real["name"], real["capacity"])


@pytest.mark.parametrize("way", WAYS)
@of_each_run
def test_cuda_found_its_card_in_all_images_whoever_looked_for_the_files(run: dict[str, Any], way: str) -> None:
    reports = run["variants"][way]
    assert set(reports) == {kind.name for kind in KINDS}
    for report in reports.values():
        assert [card["uuid"] for card in report["cards"]] == ["GPU-00000000-0000-4000-8000-000000000001"]
        assert report["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert any("libcuda.so" in path for path in report["libraries"])


@pytest.mark.parametrize("way", WAYS)
def test_container_had_the_device_nodes_of_its_spec_and_no_other(way: str) -> None:
    spec = yaml.safe_load(ONE["cdi"][way])
    nodes = [spec["containerEdits"]["deviceNodes"], spec["devices"][0]["containerEdits"]["deviceNodes"]]
    for report in ONE["variants"][way].values():
        assert report["devices"] == sorted(node["path"] for part in nodes for node in part)


def test_each_request_was_a_card_of_its_own() -> None:
    cards = {side: [card["uuid"] for card in report["cards"]] for side, report in TWO["two_cards"].items()}
    assert len(cards["left"]) == len(cards["right"]) == 1
    assert cards["left"] != cards["right"]
    assert sorted(cards["both"]) == sorted([*cards["left"], *cards["right"]])


@of_each_run
def test_pod_without_a_claim_saw_no_gpu_even_if_its_image_asks_for_all(run: dict[str, Any]) -> None:
    assert {name: (report["count"], report["devices"]) for name, report in run["without_claim"].items()} == {
        "bare": (0, []),
        "bare-all": (0, []),
    }


@of_each_run
def test_doctor_found_nothing_wrong(run: dict[str, Any]) -> None:
    assert [each["check"] for each in run["doctor"]["findings"] if each["status"] == "problem"] == []


def test_figures_of_the_docs_are_those_that_were_measured() -> None:
    page = (DOCS / "hardware.md").read_text()
    for line in findings.shares_table(ONE["throughput"]).splitlines():
        assert f"    {line}\n" in page


def test_plot_of_the_docs_is_drawn_from_what_was_measured() -> None:
    drawn = plot.svg(plot.SHARED, plot.of_throughput(ONE["throughput"]))
    assert (DOCS / "img/h200-throughput.svg").read_text() == drawn
