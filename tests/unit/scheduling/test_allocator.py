"""Which devices claims get."""

from typing import Any

import pytest

from dra_driver.scheduling.allocator import allocate
from dra_driver.scheduling.consumption import Usage
from dra_driver.scheduling.pools import Candidate, candidates
from dra_driver.scheduling.requests import CannotAllocate
from tests.unit.simulator.builders import NODE, claim, device_class, gpu_device, gpu_slice, opaque, request

Json = dict[str, Any]
CLASSES = {"gpu.nvidia.com": device_class()}


def choose(wanted: Json, *, gpus: int = 2, in_use: tuple[str, ...] = (), classes: Json = CLASSES) -> Json:
    used = Usage(frozenset(("gpu.nvidia.com", NODE, name) for name in in_use))
    return allocate(wanted, classes, candidates([gpu_slice(gpus)], NODE), used, NODE)


def devices(allocation: Json) -> list[str]:
    return [result["device"] for result in allocation["devices"]["results"]]


def test_first_free_device_is_taken() -> None:
    assert devices(choose(claim(), gpus=3, in_use=("gpu-0",))) == ["gpu-1"]


def test_result_names_request_driver_pool_and_device() -> None:
    expected = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
    assert choose(claim())["devices"]["results"] == [expected]


def test_requests_of_one_claim_get_different_devices() -> None:
    assert devices(choose(claim("c", request("a"), request("b")))) == ["gpu-0", "gpu-1"]


def test_count_takes_that_many() -> None:
    wanted = claim("c", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}})
    assert devices(choose(wanted, gpus=3)) == ["gpu-0", "gpu-1"]


def test_all_takes_every_device() -> None:
    wanted = claim("c", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}})
    assert devices(choose(wanted, gpus=3)) == ["gpu-0", "gpu-1", "gpu-2"]


def test_all_waits_while_one_is_in_use() -> None:
    wanted = claim("c", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}})
    with pytest.raises(CannotAllocate):
        choose(wanted, in_use=("gpu-1",))


def test_too_few_devices_are_an_answer() -> None:
    with pytest.raises(CannotAllocate, match="cannot allocate all claims"):
        choose(claim(), gpus=1, in_use=("gpu-0",))


def test_admin_access_may_have_what_is_in_use() -> None:
    wanted = claim("c", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True}})
    (result,) = choose(wanted, gpus=1, in_use=("gpu-0",))["devices"]["results"]
    assert (result["device"], result["adminAccess"]) == ("gpu-0", True)


def test_admin_access_holds_nothing() -> None:
    result = {"driver": "d", "pool": "p", "device": "x", "request": "r"}
    held = [{"status": {"allocation": {"devices": {"results": [result, {**result, "adminAccess": True}]}}}}]
    assert Usage.of(held).whole == {("d", "p", "x")}
    held[0]["status"]["allocation"]["devices"]["results"].pop(0)
    assert Usage.of(held) == Usage()


def test_unknown_class_is_named() -> None:
    with pytest.raises(CannotAllocate, match=r"request gpu: could not retrieve device class gpu\.nvidia\.com"):
        choose(claim(), classes={})


def test_selector_of_the_request_counts() -> None:
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].uuid == '{_uuid(1)}'"}}
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "selectors": [selector]}}
    assert devices(choose(claim("c", wanted))) == ["gpu-1"]


def _uuid(minor: int) -> str:
    uuid: str = gpu_device(minor)["attributes"]["uuid"]["string"]
    return uuid


def test_selector_beyond_the_subset_is_an_answer() -> None:
    selector = {"cel": {"expression": "has(device.driver)"}}
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "selectors": [selector]}}
    with pytest.raises(CannotAllocate, match="is beyond this allocator"):
        choose(claim("c", wanted))


def test_first_alternative_that_fits_is_named_in_full() -> None:
    options = [
        {"name": "two", "deviceClassName": "gpu.nvidia.com", "count": 2},
        {"name": "one", "deviceClassName": "gpu.nvidia.com", "count": 1},
    ]
    wanted = claim("c", {"name": "gpu", "firstAvailable": options})
    (result,) = choose(wanted, in_use=("gpu-0",))["devices"]["results"]
    assert (result["request"], result["device"]) == ("gpu/one", "gpu-1")


def numa(*nodes: int) -> list[Candidate]:
    return [
        Candidate(driver="gpu.nvidia.com", pool=NODE, device=gpu_device(minor, numa={"int": node}))
        for minor, node in enumerate(nodes)
    ]


def test_match_attribute_is_searched_for() -> None:
    wanted = claim(
        "c",
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}},
        constraints=[{"requests": [], "matchAttribute": "gpu.nvidia.com/numa"}],
    )
    assert devices(allocate(wanted, CLASSES, numa(0, 1, 1), Usage(), NODE)) == ["gpu-1", "gpu-2"]


def test_match_attribute_over_two_requests() -> None:
    wanted = claim(
        "c", request("a"), request("b"), constraints=[{"requests": ["a", "b"], "matchAttribute": "gpu.nvidia.com/numa"}]
    )
    assert devices(allocate(wanted, CLASSES, numa(0, 1, 0), Usage(), NODE)) == ["gpu-0", "gpu-2"]


def test_class_configs_come_first_with_the_requests_of_the_class() -> None:
    classes = {"gpu.nvidia.com": device_class("gpu.nvidia.com", opaque("Short"))}
    wanted = claim("c", request("a"), request("b"), config=[opaque("Long", "b")])
    found = choose(wanted, classes=classes)["devices"]["config"]
    assert [(entry["source"], entry["requests"]) for entry in found] == [
        ("FromClass", ["a", "b"]),
        ("FromClaim", ["b"]),
    ]


def test_claim_config_for_all_requests_has_no_list() -> None:
    (entry,) = choose(claim("c", request(), config=[opaque("Long")]))["devices"]["config"]
    assert "requests" not in entry


def test_allocation_is_tied_to_the_node() -> None:
    (term,) = choose(claim())["nodeSelector"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}


def test_devices_come_in_the_order_of_slice_names() -> None:
    later, first = gpu_slice(1, "00001-b", resourceSliceCount=2), gpu_slice(0, "00000-a", resourceSliceCount=2)
    first["spec"]["devices"] = [gpu_device(5)]
    found = [c.device["name"] for c in candidates([later, first], NODE)]
    assert found == ["gpu-5", "gpu-0"]


def test_old_generations_do_not_count() -> None:
    old, new = gpu_slice(2, "a"), gpu_slice(1, "b", generation=2)
    assert [c.device["name"] for c in candidates([old, new], NODE)] == ["gpu-0"]


def test_incomplete_pool_offers_nothing() -> None:
    assert candidates([gpu_slice(resourceSliceCount=2)], NODE) == []


def test_slices_of_other_nodes_offer_nothing() -> None:
    assert candidates([gpu_slice()], "node-b") == []


# Devices that several claims may have.


def shared_slice(shares: str, gpus: int = 2) -> Json:
    made = gpu_slice(gpus)
    policy = {"default": "1", "validRange": {"min": "1", "max": shares, "step": "1"}}
    for device in made["spec"]["devices"]:
        device["allowMultipleAllocations"] = True
        device["capacity"] = {
            "memory": {"value": "140Gi", "requestPolicy": {"default": "0"}},
            "shares": {"value": shares, "requestPolicy": policy},
        }
    return made


def place(*claims: Json, shares: str = "2") -> list[list[str]]:
    """Devices of claims that are allocated one after another, [] for one that does not fit."""
    allocated: list[Json] = []
    for wanted in claims:
        try:
            found = allocate(wanted, CLASSES, candidates([shared_slice(shares)], NODE), Usage.of(allocated), NODE)
        except CannotAllocate:
            found = {"devices": {"results": []}}
        allocated.append({"status": {"allocation": found}})
    return [devices(entry["status"]["allocation"]) for entry in allocated]


def asks(**exactly: Any) -> Json:
    return claim("c", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}})


def test_claims_share_a_device_until_its_shares_are_out_and_then_the_next() -> None:
    assert place(*[claim()] * 5) == [["gpu-0"], ["gpu-0"], ["gpu-1"], ["gpu-1"], []]


def test_result_of_a_share_has_an_id_of_its_own_and_what_it_consumed() -> None:
    found = allocate(asks(count=2), CLASSES, candidates([shared_slice("2")], NODE), Usage(), NODE)
    first, second = found["devices"]["results"]
    assert first["consumedCapacity"] == {"memory": "0", "shares": "1"}
    assert first["shareID"] != second["shareID"]


def test_count_takes_a_share_of_each_of_so_many_devices() -> None:
    assert place(asks(count=2), asks(count=3)) == [["gpu-0", "gpu-1"], []]


def test_two_requests_of_a_claim_may_have_shares_of_one_device() -> None:
    assert place(claim("c", request("a"), request("b"))) == [["gpu-0", "gpu-0"]]


def test_all_takes_a_share_of_each_device() -> None:
    assert place(asks(allocationMode="All")) == [["gpu-0", "gpu-1"]]


@pytest.mark.parametrize(("shares", "fits"), [("2", 2), ("3", 0), ("1500m", 2)])
def test_requests_for_shares_are_summed_up(shares: str, fits: int) -> None:
    wanted = asks(capacity={"requests": {"shares": shares}})
    assert sum(map(bool, place(*[wanted] * 3))) == fits


def test_capacity_that_no_device_has_is_an_answer() -> None:
    assert place(asks(capacity={"requests": {"cores": "1"}})) == [[]]


def test_device_that_a_claim_has_whole_is_not_shared() -> None:
    used = Usage(frozenset({("gpu.nvidia.com", NODE, "gpu-0")}))
    found = allocate(claim(), CLASSES, candidates([shared_slice("2")], NODE), used, NODE)
    assert devices(found) == ["gpu-1"]
