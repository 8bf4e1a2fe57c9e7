"""Which devices claims get."""

from typing import Any

import pytest

from dra_driver.simulator.allocator import Candidate, CannotAllocate, allocate, candidates, devices_in_use
from tests.unit.simulator.builders import NODE, claim, device_class, gpu_device, gpu_slice, opaque, request

Json = dict[str, Any]
CLASSES = {"gpu.nvidia.com": device_class()}


def choose(wanted: Json, *, gpus: int = 2, in_use: tuple[str, ...] = (), classes: Json = CLASSES) -> Json:
    used = {("gpu.nvidia.com", NODE, name) for name in in_use}
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
    assert devices_in_use(held) == {("d", "p", "x")}
    held[0]["status"]["allocation"]["devices"]["results"].pop(0)
    assert devices_in_use(held) == set()


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
    assert devices(allocate(wanted, CLASSES, numa(0, 1, 1), set(), NODE)) == ["gpu-1", "gpu-2"]


def test_match_attribute_over_two_requests() -> None:
    wanted = claim(
        "c", request("a"), request("b"), constraints=[{"requests": ["a", "b"], "matchAttribute": "gpu.nvidia.com/numa"}]
    )
    assert devices(allocate(wanted, CLASSES, numa(0, 1, 0), set(), NODE)) == ["gpu-0", "gpu-2"]


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
