from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.claims import AllocatedDevice
from dra_driver.model.devices import MemoryLimits
from dra_driver.model.errors import BadConfig
from dra_driver.model.plan import PreparedDevice
from dra_driver.sharing.memory_limits import (
    LimitTerms,
    ShareMemory,
    asks_for_enforced,
    budget,
    budgets,
    check_enforced,
    limits_to_set,
    observed_budgets,
)
from tests.builders import claim_ref, make_gpu, make_mig

MIB, GIB = 1 << 20, 1 << 30
REF = claim_ref()
GPU = make_gpu(0, memory_bytes=141 * GIB + 5)
EVEN_OF_TEN = LimitTerms(ShareMemory.EVEN, lambda device: 10)


def allocated(device: str = "gpu-0", **consumed: str) -> AllocatedDevice:
    return AllocatedDevice(
        request="gpu", pool="node-a", device=device, share_id="s", consumed_capacity=tuple(consumed.items())
    )


def prepared(device: str, budget: int | None, enforced: bool = True, **more: Any) -> PreparedDevice:
    return PreparedDevice(
        requests=("gpu",),
        pool="node-a",
        device=device,
        uuid=device,
        gpu_uuid=device,
        cdi_ids=(),
        memory_budget=budget,
        memory_enforced=enforced and budget is not None,
        **more,
    )


@pytest.mark.parametrize(
    ("consumed", "terms", "limit"),
    [
        pytest.param({"memory": "20Gi"}, LimitTerms(), 20 * GIB, id="what is consumed"),
        pytest.param({"memory": "20Gi", "shares": "1"}, EVEN_OF_TEN, 20 * GIB, id="memory before an even part"),
        pytest.param({"memory": "1500M"}, LimitTerms(), 1430 * MIB, id="whole MiB"),
        pytest.param({"memory": "200Gi"}, LimitTerms(), 141 * GIB, id="more than there is"),
        pytest.param({"memory": "lots", "shares": "some"}, EVEN_OF_TEN, None, id="no amounts"),
        pytest.param({"memory": "0", "shares": "1"}, LimitTerms(), None, id="nothing consumed"),
        pytest.param({"shares": "1"}, LimitTerms(), None, id="shares alone"),
        pytest.param({"memory": "0", "shares": "1"}, EVEN_OF_TEN, 14438 * MIB, id="an even part"),
        pytest.param({"shares": "3"}, EVEN_OF_TEN, 43315 * MIB, id="three even parts"),
        pytest.param({"shares": "11"}, EVEN_OF_TEN, 144384 * MIB, id="more shares than there are now"),
        pytest.param({"shares": "1"}, LimitTerms(ShareMemory.EVEN, lambda device: 0), None, id="not in shares now"),
        pytest.param({"memory": "0"}, EVEN_OF_TEN, None, id="no shares"),
        pytest.param({}, EVEN_OF_TEN, None, id="not shared"),
    ],
)
def test_what_is_consumed_of_a_gpu_is_its_limit(consumed: dict[str, str], terms: LimitTerms, limit: int | None) -> None:
    assert budget(allocated(**consumed), GPU, terms) == limit


def test_mig_device_is_limited_by_hardware() -> None:
    assert budget(allocated(memory="8Gi", shares="1"), make_mig(make_gpu(0)), EVEN_OF_TEN) is None


def test_admin_access_has_no_limit() -> None:
    admin = AllocatedDevice(
        request="gpu", pool="node-a", device="gpu-0", admin_access=True, consumed_capacity=(("memory", "1Gi"),)
    )
    assert budget(admin, GPU, LimitTerms()) is None


def test_gpu_of_unknown_memory_has_no_even_part() -> None:
    assert budget(allocated(shares="1"), make_gpu(0, memory_bytes=None), EVEN_OF_TEN) is None


memories = st.integers(4 * GIB, 1 << 45)
counts = st.integers(1, 48)


@given(memories, st.lists(counts, min_size=1, max_size=48))
def test_even_parts_of_all_shares_never_exceed_the_gpu(memory: int, claims: list[int]) -> None:
    gpu, terms = make_gpu(0, memory_bytes=memory), LimitTerms(ShareMemory.EVEN, lambda device: sum(claims))
    parts = [budget(allocated(shares=str(shares)), gpu, terms) or 0 for shares in claims]
    assert 0 < sum(parts) <= memory


@given(memories, counts, counts)
def test_even_part_is_whole_mebibytes_and_less_than_one_below_the_exact_part(memory: int, total: int, has: int) -> None:
    part = budget(
        allocated(shares=str(has)), make_gpu(0, memory_bytes=memory), LimitTerms(ShareMemory.EVEN, lambda device: total)
    )
    assert part is not None
    assert part % MIB == 0
    assert part * total <= memory * min(has, total) < (part + MIB) * total


@given(st.integers(1, 1 << 45))
def test_limit_by_memory_is_what_was_asked_rounded_down_to_mebibytes_but_never_nothing(amount: int) -> None:
    limit = budget(allocated(memory=str(amount)), make_gpu(0, memory_bytes=1 << 45), LimitTerms())
    assert limit == max(amount - amount % MIB, MIB)


# Several GPUs in a claim.


def test_gpus_with_the_same_limit_get_it() -> None:
    devices = [prepared("gpu-0", 4 * GIB), prepared("gpu-1", 4 * GIB)]
    assert limits_to_set(REF, devices) == {"gpu-0": 4 * GIB, "gpu-1": 4 * GIB}


def test_gpus_with_different_limits_are_refused_with_names_limits_and_what_to_do() -> None:
    with pytest.raises(BadConfig) as caught:
        limits_to_set(REF, [prepared("gpu-0", 4 * GIB), prepared("gpu-1", 8 * GIB)])
    text = str(caught.value)
    assert "team-a/claim-1" in text
    assert "(gpu-0 4096 MiB, gpu-1 8192 MiB)" in text
    assert "the same memory on each, or make a claim for each" in text


def test_gpu_without_a_limit_goes_with_one_that_has_one() -> None:
    assert limits_to_set(REF, [prepared("gpu-0", 4 * GIB), prepared("gpu-1", None)]) == {"gpu-0": 4 * GIB}


def test_different_budgets_that_are_only_observed_are_no_conflict() -> None:
    devices = [prepared("gpu-0", 4 * GIB, enforced=False), prepared("gpu-1", 8 * GIB, enforced=False)]
    assert limits_to_set(REF, devices) == {}
    assert observed_budgets(devices) == {"gpu-0": 4 * GIB, "gpu-1": 8 * GIB}


@pytest.mark.parametrize("enforced", [True, False])
def test_shares_of_one_gpu_add_up_and_are_without_limit_if_one_is(enforced: bool) -> None:
    def total(*devices: PreparedDevice) -> dict[str, int]:
        return limits_to_set(REF, devices) if enforced else observed_budgets(devices)

    first, second = prepared("gpu-0", 4 * GIB, enforced), prepared("gpu-0", 2 * GIB, enforced)
    assert total(first, second) == {"gpu-0": 6 * GIB}
    assert total(first, prepared("gpu-0", None)) == {}
    assert total(first, prepared("gpu-0", None, admin_access=True)) == {"gpu-0": 4 * GIB}


def test_enforced_limits_are_not_observed() -> None:
    assert observed_budgets([prepared("gpu-0", 4 * GIB)]) == {}


# A claim that insists.


@pytest.mark.parametrize(
    "expression",
    [
        """device.attributes["gpu.nvidia.com"].memoryLimits == "enforced\"""",
        "device.attributes['gpu.nvidia.com'].memoryLimits=='enforced'",
        """device.attributes["gpu.nvidia.com"]["memoryLimits"] == "enforced" && device.driver == "gpu.nvidia.com\"""",
        """device.attributes["gpu.nvidia.com"].memoryLimits != "observed\"""",
        """device.attributes["gpu.nvidia.com"].memoryLimits in ["enforced"]""",
        """"enforced" == device.attributes["gpu.nvidia.com"].memoryLimits""",
        """has(device.attributes["gpu.nvidia.com"].memoryLimits) &&
           device.attributes["gpu.nvidia.com"].memoryLimits == "enforced\"""",
    ],
)
def test_selector_that_only_enforced_can_satisfy_is_recognised(expression: str) -> None:
    assert asks_for_enforced(expression)


@pytest.mark.parametrize(
    "expression",
    [
        """device.attributes["gpu.nvidia.com"].memoryLimits == "observed\"""",
        """device.attributes["gpu.nvidia.com"].memoryLimits != "enforced\"""",
        """device.attributes["gpu.nvidia.com"].memoryLimits in ["enforced", "observed"]""",
        """has(device.attributes["gpu.nvidia.com"].memoryLimits)""",
        """device.attributes["gpu.nvidia.com"].productName == "enforced\"""",
        """device.attributes["gpu.nvidia.com"].memoryLimitsOfOthers == "enforced\"""",
        "device.driver == 'gpu.nvidia.com'",
    ],
)
def test_selector_that_observed_satisfies_too_is_not_taken_for_a_demand(expression: str) -> None:
    assert not asks_for_enforced(expression)


@pytest.mark.parametrize(("now", "words"), [(MemoryLimits.OBSERVED, "it is observed"), (None, "it is not told")])
def test_claim_that_insists_is_refused_where_limits_are_not_enforced_now(now: MemoryLimits | None, words: str) -> None:
    insisting = AllocatedDevice(request="gpu", pool="node-a", device="gpu-0", needs_enforced=True)
    with pytest.raises(BadConfig, match=f"request gpu of claim team-a/claim-1 .* on device gpu-0 {words}"):
        check_enforced(REF, insisting, make_gpu(0, memory_limits=now))


def test_claim_that_insists_is_let_through_where_they_are() -> None:
    insisting = AllocatedDevice(request="gpu", pool="node-a", device="gpu-0", needs_enforced=True)
    check_enforced(REF, insisting, make_gpu(0, memory_limits=MemoryLimits.ENFORCED))


def test_claim_that_does_not_insist_is_let_through_anywhere() -> None:
    check_enforced(REF, allocated(), make_gpu(0, memory_limits=MemoryLimits.OBSERVED))


def test_mig_device_is_limited_by_hardware_whatever_a_claim_demands() -> None:
    insisting = AllocatedDevice(request="gpu", pool="node-a", device="mig", needs_enforced=True)
    check_enforced(REF, insisting, make_mig(make_gpu(0, mig_enabled=True)))


def test_budgets_are_those_of_each_device_enforced_or_not() -> None:
    devices = [
        prepared("gpu-0", GIB),
        prepared("gpu-0", 2 * GIB, enforced=False),
        prepared("gpu-1", None),
        prepared("gpu-1", GIB),
        prepared("gpu-2", None, admin_access=True),
    ]
    assert budgets(devices) == {"gpu-0": 3 * GIB, "gpu-1": None}
