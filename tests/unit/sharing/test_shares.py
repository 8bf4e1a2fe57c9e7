"""How a shared device is published. What the API takes is decided by the simulated API server's own rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.devices import Device
from dra_driver.ports import Json
from dra_driver.scheduling import consumption
from dra_driver.sharing.shares import WHOLE, ConsumableShares, SharesMode
from dra_driver.simulator import device_rules
from dra_driver.slices.build import build_slices
from tests.builders import DRIVER, make_gpu, make_mig

MI = 1 << 20
GPU, MIG = make_gpu(memory_bytes=150754820096), make_mig(make_gpu(mig_enabled=True))
MEMORY = "143771Mi"
MODES = st.one_of(
    st.sampled_from(["memory", "unlimited"]).map(ConsumableShares.parse),
    st.integers(1, 2000).flatmap(
        lambda count: st.integers(0, count).map(lambda most: ConsumableShares(SharesMode.COUNT, count, most))
    ),
)


def entry(shares: ConsumableShares, device: Device = GPU) -> Json:
    (pool_slice,) = build_slices([device], DRIVER, "node-a", {device.name: shares})
    (published,) = pool_slice.devices
    return published


def policy(default: str, low: str, high: str, step: str) -> Json:
    return {"default": default, "validRange": {"min": low, "max": high, "step": step}}


def test_device_that_is_not_shared_is_published_as_ever() -> None:
    (plain,) = build_slices([GPU], DRIVER, "node-a")
    assert entry(WHOLE) == plain.devices[0]
    assert "allowMultipleAllocations" not in entry(WHOLE)


@pytest.mark.parametrize(
    ("mode", "memory", "shares"),
    [
        ("unlimited", policy("0", "0", MEMORY, "1Mi"), None),
        ("memory", policy(MEMORY, "1Mi", MEMORY, "1Mi"), None),
        ("10", policy("0", "0", MEMORY, "1Mi"), {"value": "10", "requestPolicy": policy("1", "1", "10", "1")}),
    ],
)
def test_gpu_has_the_policies_of_the_nvidia_driver(mode: str, memory: Json, shares: Json | None) -> None:
    published = entry(ConsumableShares.parse(mode))
    assert published["allowMultipleAllocations"] is True
    wanted = {"memory": {"value": MEMORY, "requestPolicy": memory}} | ({"shares": shares} if shares else {})
    assert published["capacity"] == wanted


def test_memory_is_rounded_down_to_whole_mebibytes() -> None:
    capacity = entry(ConsumableShares.parse("memory"), make_gpu(memory_bytes=24 * MI - 1))["capacity"]
    assert capacity["memory"]["value"] == "23Mi"


def test_most_shares_a_claim_can_have_are_the_end_of_the_range() -> None:
    shares = entry(ConsumableShares(SharesMode.COUNT, 10, 1))["capacity"]["shares"]
    assert shares == {"value": "10", "requestPolicy": policy("1", "1", "1", "1")}


@pytest.mark.parametrize("mode", ["memory", "unlimited", "4"])
def test_card_whose_memory_is_not_known_is_shared_without_capacities(mode: str) -> None:
    published = entry(ConsumableShares.parse(mode), make_gpu(memory_bytes=None))
    assert published["allowMultipleAllocations"] is True
    assert "capacity" not in published


def test_shares_that_cannot_be_published_are_noted() -> None:
    (made,) = build_slices([make_gpu(memory_bytes=None)], DRIVER, "n", {"gpu-0": ConsumableShares.parse("4")})
    (note,) = made.notes
    assert note.startswith("device gpu-0: shares left out: its memory is not known")


@given(MODES, st.integers(0, 1 << 45), st.booleans())
def test_api_takes_whatever_is_shared_however(shares: ConsumableShares, memory: int, mig: bool) -> None:
    device: Device = make_mig(make_gpu(), memory_bytes=memory) if mig else make_gpu(memory_bytes=memory)
    assert list(device_rules.complaints("devices[0]", entry(shares, device))) == []


@given(st.integers(1, 48), st.sampled_from([GPU, MIG]))
def test_as_many_claims_fit_as_there_are_shares(count: int, device: Device) -> None:
    published = entry(ConsumableShares(SharesMode.COUNT, count), device)
    assert _placed(published, {}, most=count + 1) == count


@pytest.mark.parametrize("device", [GPU, MIG], ids=["gpu", "mig"])
def test_claims_that_ask_for_nothing_fit_without_end_where_shares_are_unlimited(device: Device) -> None:
    assert _placed(entry(ConsumableShares.parse("unlimited"), device), {}, most=100) == 100


@pytest.mark.parametrize(
    ("requested", "fitting"), [({}, 1), ({"memory": "4Gi"}, 4), ({"memory": "1500m"}, 16384), ({"memory": "17Gi"}, 0)]
)
def test_memory_of_a_mig_device_is_shared_out(requested: dict[str, str], fitting: int) -> None:
    assert _placed(entry(ConsumableShares.parse("memory"), MIG), requested, most=20000) == fitting


@pytest.mark.parametrize(
    ("requested", "fitting"), [("2", 2), ("5", 0), ("1500m", 2), ("0", 4)], ids=["2 of 4", "5 of 4", "1.5", "none"]
)
def test_shares_are_asked_for_by_number(requested: str, fitting: int) -> None:
    assert _placed(entry(ConsumableShares.parse("4")), {"shares": requested}, most=5) == fitting


def test_request_for_two_shares_is_refused_where_one_is_the_most() -> None:
    limited = entry(ConsumableShares(SharesMode.COUNT, 4, 1))
    assert (_placed(limited, {"shares": "2"}, most=5), _placed(limited, {}, most=5)) == (0, 4)


def _placed(published: Json, requested: dict[str, str], most: int) -> int:
    """How many claims of a kind the scheduler's arithmetic puts on a device."""
    usage, device = consumption.Usage(), ("d", "p", "x")
    for number in range(most):
        taken = consumption.take(published, requested, usage.consumed.get(device, {}))
        if taken is None:
            return number
        usage = usage.plus(device, taken)
    return most


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "four", "Memory", " 4", "1_0", "٣", "9" * 19])
def test_words_that_say_nothing_of_sharing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'disabled', 'memory', 'unlimited', or a positive integer"):
        ConsumableShares.parse(text)


@pytest.mark.parametrize("text", ["disabled", "memory", "unlimited", "7"])
def test_sharing_is_written_as_it_is_read(text: str) -> None:
    assert str(ConsumableShares.parse(text)) == text


def test_capacity_of_shares_has_room_where_facts_are_many() -> None:
    crowded: Any = make_mig(make_gpu(), placement_size=40)
    published = entry(ConsumableShares.parse("4"), crowded)
    assert len(published["attributes"]) + len(published["capacity"]) == 32
    assert published["capacity"]["shares"]["value"] == "4"
