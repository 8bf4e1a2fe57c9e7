"""The run on real GPUs, its pure parts: what is a setting, which slots count, what is replaced, what is drawn."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from hack.hardware import findings, plot, smi, throughput
from hack.hardware.findings import Findings
from hack.hardware.manifests import claim, container, pod
from hack.hardware.pods import Outcome
from hack.hardware.stage import variants

SMI = Path(__file__).parents[1] / "hardware" / "h200-nvidia-smi-q.txt"
UUID = "GPU-4f0c6a52-7cfc-30e4-38c5-000000000001"


def card(**changes: str) -> dict[str, str]:
    return {**smi.parse(SMI.read_text()).cards[0], **changes}


def slot(number: int, kind: str, done: float, late: float = 0.0) -> dict[str, Any]:
    return {
        "kind": kind,
        "slot": number,
        "late": late,
        "seconds": 2.0,
        "done": done,
        "p50": 0.1,
        "p99": 0.2,
        "max": 0.3,
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("Compute Mode", "Exclusive_Process"),
        ("MIG Mode/Pending", "Enabled"),
        ("Persistence Mode", "Disabled"),
        ("Applications Clocks/Graphics", "1200 MHz"),
        ("GPU Power Readings/Requested Power Limit", "500.00 W"),
        ("ECC Mode/Current", "Disabled"),
    ],
)
def test_setting_of_a_card_that_was_changed_is_told(path: str, value: str) -> None:
    before, after = {UUID: smi.settings(card())}, {UUID: smi.settings(card(**{path: value}))}
    (line,) = smi.changed(before, after)
    assert line.startswith(f"{UUID}: {path}: was ")
    assert line.endswith(f", is {value}")


@pytest.mark.parametrize(
    "path",
    ["Temperature/GPU Current Temp", "Clocks/SM", "FB Memory Usage/Used", "GPU Power Readings/Average Power Draw"],
)
def test_reading_that_changes_by_itself_is_no_change(path: str) -> None:
    assert path not in smi.settings(card(**{path: "1"}))


def test_time_slice_that_was_changed_is_told() -> None:
    before, after = {UUID: {smi.TIME_SLICE: "Default"}}, {UUID: {smi.TIME_SLICE: "Long"}}
    assert smi.changed(before, after) == [f"{UUID}: Time Slice: was Default, is Long"]


def test_card_that_is_gone_is_told() -> None:
    assert smi.changed({UUID: {}}, {}) == [f"{UUID}: gone"]


@pytest.mark.parametrize(
    ("text", "level"),
    [("| GPU | Time-slice |\n| 0 | Default |", "Default"), ("medium", "Medium"), ("default short long", "not told")],
)
def test_time_slice_counts_only_when_it_is_one_word(text: str, level: str) -> None:
    assert smi.level(text) == level


def test_processes_are_told_by_card() -> None:
    assert smi.processes(f"{UUID}, 41\n{UUID}, 42\nGPU-2, 7\n\n") == {UUID: [41, 42], "GPU-2": [7]}


def test_slot_that_a_pod_came_late_into_does_not_count() -> None:
    lines = [
        slot(1, "compute", 4e12),
        slot(2, "compute", 1e12, late=1.5),
        {"kind": "report"},
        {"kind": "end", "wrong": 0},
    ]
    assert throughput.whole(lines) == lines[:1]


def test_alone_ends_when_the_other_pod_is_made() -> None:
    lines = [slot(number, "compute", 1.0) for number in (10, 11, 12)]
    assert throughput.before(lines, moment=24.5, slot_s=2.0) == lines[:2]


def test_shares_are_of_slots_in_which_both_did_the_same() -> None:
    alone = [slot(1, "compute", 100e12), slot(4, "compute", 100e12)]
    first = [slot(7, "compute", 50e12), slot(9, "launch", 1000.0)]
    # In slot 9 the second has the card to itself but for short kernels: no share of it.
    second = [slot(7, "compute", 48e12), slot(9, "compute", 99e12)]
    found = throughput.shares(alone, *throughput.together(first, second), kind="compute")
    assert (found.alone.rate, found.first.rate, found.second.rate) == (50.0, 25.0, 24.0)
    assert (found.total, found.of_alone) == (49.0, 0.98)


def test_kind_that_nobody_did_is_named() -> None:
    with pytest.raises(ValueError, match="no whole slot of copy"):
        throughput.rate([slot(1, "compute", 1.0)], "copy")


def test_uuids_of_cards_claims_and_pods_are_replaced_each_by_its_own() -> None:
    other, uid = "GPU-1b7e90c3-0000-11aa-22bb-3c4d5e6f7a8b", "2f9d1c44-5b6a-4c7d-8e9f-0a1b2c3d4e5f"
    text = findings.anonymous(f"{other} {UUID} {uid} {other}", known=[UUID])
    first, second, third, fourth = text.split()
    assert (first, second) == ("GPU-00000000-0000-4000-8000-000000000002", "GPU-00000000-0000-4000-8000-000000000001")
    assert (third, fourth) == ("00000000-0000-4000-9000-000000000001", first)


def test_document_has_no_id_of_this_machine_and_all_checks() -> None:
    found = Findings()
    found.facts["devices"] = [UUID]
    found.check("a", "same card", True, UUID)
    found.check("b", "none", False)
    document = found.document([UUID])
    assert UUID not in json.dumps(document)
    assert [(each["scene"], each["holds"]) for each in document["checks"]] == [("a", True), ("b", False)]
    assert [each.what for each in found.broken] == ["none"]


def test_table_marks_the_check_that_does_not_hold() -> None:
    found = Findings()
    found.check("a", "same card", True, "x")
    found.check("c", "its card", False, "no card")
    assert findings.table(found.checks).splitlines()[1:] == [
        "ok      a      same card  x",
        "BROKEN  c      its card   no card",
    ]


def throughput_facts() -> dict[str, Any]:
    one = {"slots": 2, "rate": 60.0, "p50_s": 1e-5, "p99_s": 2e-5, "longest_s": 1e-4}
    half = {**one, "rate": 29.0, "p99_s": 4e-3}
    both = {"alone": one, "first": half, "second": half, "unit": "TFLOP/s", "total": 58.0, "of_alone": 58 / 60}
    return {"compute": both, "copy": {**both, "unit": "TB/s"}, "launch": {"alone": one, "first": half}}


def test_figures_of_sharing_are_one_table() -> None:
    lines = findings.shares_table(throughput_facts()).splitlines()
    assert " ".join(lines[1].split()) == "compute 60.0 TFLOP/s 29.0 TFLOP/s 29.0 TFLOP/s 58.0 TFLOP/s 97 %"
    assert lines[4].split() == ["short", "kernel", "p99", "20", "us", "4000", "us", "computes"]


def test_plot_has_a_bar_for_each_figure_as_high_as_the_figure() -> None:
    drawn = ElementTree.fromstring(plot.svg("a < b", plot.of_throughput(throughput_facts())))
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(each.get("height", "0")) for each in drawn.findall(f"{space}rect")[1:]]
    assert len(bars) == 4 + 4 + 2
    assert bars[1] / bars[0] == pytest.approx(29 / 60, abs=0.01)
    assert bars[8] / bars[9] == pytest.approx(2e-5 / 4e-3, abs=0.01)


def test_container_that_ended_well_but_computed_wrong_is_not_taken_for_right() -> None:
    right = {"uuid": UUID, "copied_back": True, "wrong": 0}
    assert Outcome({"cards": [right]}).computed
    assert not Outcome({"cards": [{**right, "wrong": 1}]}).computed
    assert not Outcome({"cards": [{**right, "copied_back": False}]}).computed
    assert not Outcome({"cards": []}).computed


def test_ways_to_hand_over_files_are_those_that_the_driver_knows() -> None:
    found = variants(Path("/p"))
    assert [each.name for each in found] == ["hook-free", "hooks", "nvidia-ctk"]
    assert "--cdi-hooks=none" in found[0].flags


def test_pod_names_its_claim_and_the_containers_request() -> None:
    made = pod("a", [container("left", "report", {"name": "gpu", "request": "left"})], "two")
    assert made["spec"]["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "two"}]
    assert made["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu", "request": "left"}]
    requests = claim("two", "left", "right")["spec"]["devices"]["requests"]
    assert [each["name"] for each in requests] == ["left", "right"]
