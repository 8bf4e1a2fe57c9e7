"""Precedence and scope of opaque configs, and the gates behind strategies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.claims.allocation import read_allocation
from dra_driver.claims.planning import choose
from dra_driver.model.errors import BadConfig
from dra_driver.sharing.memory_limits import NO_EVEN_PARTS
from dra_driver.sharing.time_slicing import TimeSlicingStrategy
from tests.builders import (
    NODE,
    claim_ref,
    config_entry,
    gpu_config,
    make_gpu,
    make_inventory,
    make_mig,
    resource_claim,
    result,
    time_slicing,
)

REF = claim_ref()
ON = {"TimeSlicing": TimeSlicingStrategy()}
LEVELS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
CARD = make_gpu(1, mig_enabled=True)
MIG = make_mig(CARD)
DEVICES = {**make_inventory(1).devices, MIG.name: MIG}


def slices(configs, *results, gates=ON):
    """The interval that each result gets, None for none."""
    claim = resource_claim(REF, list(results) or [result()], configs)
    choices = choose(read_allocation(REF, claim, NODE), DEVICES, gates, NO_EVEN_PARTS)
    return [choice.prepared.time_slice for choice in choices]


def from_class(interval, *requests):
    return config_entry(time_slicing(interval), *requests, source="FromClass")


def from_claim(interval, *requests):
    return config_entry(time_slicing(interval), *requests)


@given(st.permutations(["claim", "class-1", "class-2"]))
def test_claim_config_beats_class_config_whatever_the_order(order):
    entries = {
        "claim": from_claim("Short", "gpu"),
        "class-1": from_class("Long", "gpu"),
        "class-2": from_class("Medium"),
    }
    assert slices([entries[name] for name in order]) == [LEVELS["Short"]]


@pytest.mark.parametrize("source", [from_claim, from_class], ids=["claim", "class"])
def test_the_later_entry_of_one_source_wins(source):
    assert slices([source("Short", "gpu"), source("Medium", "gpu")]) == [LEVELS["Medium"]]


def test_an_entry_for_all_requests_loses_to_a_later_one_and_beats_an_earlier_one():
    assert slices([from_claim("Short", "gpu"), from_claim("Long")]) == [LEVELS["Long"]]
    assert slices([from_claim("Long"), from_claim("Short", "gpu")]) == [LEVELS["Short"]]


def test_a_config_applies_to_the_requests_it_names_only():
    results = [result(request="a"), result(request="b", adminAccess=True)]
    assert slices([from_claim("Long", "a")], *results) == [LEVELS["Long"], None]


def test_a_config_naming_a_request_covers_its_subrequests():
    assert slices([from_claim("Long", "gpu")], result(request="gpu/large")) == [LEVELS["Long"]]
    assert slices([from_claim("Long", "gpu/large")], result(request="gpu/large")) == [LEVELS["Long"]]
    assert slices([from_claim("Long", "gpu/small")], result(request="gpu/large")) == [None]
    assert slices([from_claim("Long", "gp")], result(request="gpu")) == [None]


def test_no_config_at_all_asks_for_nothing():
    assert slices([]) == [None]
    assert slices([config_entry(gpu_config())]) == [None]


def test_a_claim_config_without_sharing_hides_the_class_config():
    assert slices([from_class("Long"), config_entry(gpu_config(), "gpu")]) == [None]


def test_an_unscoped_gpu_config_skips_a_mig_device():
    assert slices([from_claim("Long")], result(), result(MIG.name, "mig")) == [LEVELS["Long"], None]


def test_a_named_gpu_config_on_a_mig_device_is_refused():
    with pytest.raises(
        BadConfig, match=rf'cannot apply GpuConfig to device "{MIG.name}" of type "mig" \(request: mig\)'
    ):
        slices([from_claim("Long", "mig")], result(MIG.name, "mig"))


def test_time_slicing_on_a_mig_device_is_accepted_and_sets_nothing():
    config = gpu_config({"strategy": "TimeSlicing"}, kind="MigDeviceConfig")
    assert slices([config_entry(config, "mig")], result(MIG.name, "mig")) == [None]


def test_gate_off_gives_the_text_of_the_eks_guide_then_the_remedy():
    with pytest.raises(BadConfig) as caught:
        slices([from_claim("Long", "gpu")], gates={})
    text = str(caught.value)
    assert text.startswith("error validating GPU config: unknown GPU sharing strategy: TimeSlicing; ")
    assert "TimeSlicingSettings=true" in text
    assert len(text) < 1000
    assert "\n" not in text


def test_gate_off_names_the_gate_of_mps():
    with pytest.raises(BadConfig, match="unknown GPU sharing strategy: MPS; set the feature gate MPSSupport=true"):
        slices([config_entry(gpu_config({"strategy": "MPS"}))])


def test_an_unknown_strategy_lists_the_valid_ones_and_where_it_stands():
    with pytest.raises(BadConfig) as caught:
        slices([config_entry(gpu_config({"strategy": "TimeSlice"}))])
    assert "unknown GPU sharing strategy: TimeSlice, supported GPU sharing strategies: TimeSlicing, MPS" in str(
        caught.value
    )
    assert "config[0], from the claim" in str(caught.value)


def test_a_config_that_does_not_apply_does_not_need_its_gate():
    assert slices([from_claim("Long", "other")], gates={}) == [None]


@pytest.mark.parametrize("source", [from_claim, from_class], ids=["claim", "class"])
def test_admin_access_with_a_sharing_config_is_refused(source):
    with pytest.raises(BadConfig, match="adminAccess and with a sharing config"):
        slices([source("Short")], result(adminAccess=True))


def test_admin_access_to_a_mig_device_is_refused():
    with pytest.raises(BadConfig, match="adminAccess is supported for full GPUs only"):
        slices([], result(MIG.name, "mig", adminAccess=True))
