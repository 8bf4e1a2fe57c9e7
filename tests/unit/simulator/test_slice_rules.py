"""Bad ResourceSlices are refused as a real API server refuses them."""

from typing import Any

import pytest

from dra_driver.simulator.kinds import RESOURCE_SLICES
from dra_driver.simulator.statuses import StatusError
from dra_driver.simulator.store import Store
from tests.unit.simulator.builders import gpu_device, gpu_slice


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(StatusError) as caught:
        Store().create(RESOURCE_SLICES, body)
    assert caught.value.status in (400, 422)
    return str(caught.value)


def with_device(**changes: Any) -> dict[str, Any]:
    body = gpu_slice(1)
    body["spec"]["devices"][0].update(changes)
    return body


def with_attribute(value: dict[str, Any], name: str = "a") -> dict[str, Any]:
    return with_device(attributes={name: value})


def test_good_slice_is_stored() -> None:
    assert Store().create(RESOURCE_SLICES, gpu_slice(8))["spec"]["pool"]["resourceSliceCount"] == 1


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({}, "exactly one value must be specified"),
        ({"string": "a", "int": 1}, "exactly one value must be specified"),
        ({"text": "a"}, "exactly one value must be specified"),
        ({"string": "a" * 65}, "may not be more than 64 bytes"),
        ({"version": "535.54.03"}, "semver"),
        ({"version": "13.0"}, "semver"),
        ({"version": "v1.2.3"}, "semver"),
        ({"int": "3"}, "must be of type int"),
        ({"int": True}, "must be of type int"),
        ({"bool": "true"}, "must be of type bool"),
        ({"ints": []}, "must not be empty"),
    ],
    ids=str,
)
def test_attribute_is_refused(value: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(with_attribute(value))


@pytest.mark.parametrize("version", ["580.159.4", "13.0.0", "1.2.3-rc.1+build"])
def test_strict_versions_are_stored(version: str) -> None:
    Store().create(RESOURCE_SLICES, with_attribute({"version": version}))


@pytest.mark.parametrize("name", ["with-dash", "a" * 33, "Bad Domain/a", "1st", f"{'d' * 64}/a"])
def test_attribute_name_is_refused(name: str) -> None:
    assert "must be [domain/]identifier" in refusal(with_attribute({"bool": True}, name))


def test_attribute_of_a_standard_domain_is_stored() -> None:
    Store().create(RESOURCE_SLICES, with_attribute({"string": "0000:07:00.0"}, "resource.kubernetes.io/pciBusID"))


@pytest.mark.parametrize("name", ["GPU-0", "gpu_0", "-gpu", "", "g" * 64])
def test_device_name_is_refused(name: str) -> None:
    assert "spec.devices[0].name" in refusal(with_device(name=name))


def test_duplicate_device_names_are_refused() -> None:
    body = gpu_slice(2)
    body["spec"]["devices"][1]["name"] = "gpu-0"
    assert "spec.devices[1].name: Duplicate value: 'gpu-0'" in refusal(body)


def test_attributes_and_capacities_share_a_limit_of_32() -> None:
    attributes = {f"a{number}": {"bool": True} for number in range(32)}
    assert "at most 32" in refusal(with_device(attributes=attributes))


def test_more_than_128_devices_are_refused() -> None:
    assert "must have at most 128 items" in refusal(gpu_slice(129))


def test_taints_lower_the_limit_to_64_devices() -> None:
    body = gpu_slice(65)
    body["spec"]["devices"][0]["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
    assert "must have at most 64 items" in refusal(body)


def test_unknown_taint_effect_is_refused() -> None:
    taint = {"key": "gpu.nvidia.com/xid", "effect": "Never"}
    assert "Unsupported value: 'Never'" in refusal(with_device(taints=[taint]))


def test_capacity_must_be_a_quantity() -> None:
    assert "must be a quantity" in refusal(with_device(capacity={"memory": {"value": "140 GB"}}))


def test_request_policy_needs_multiple_allocations() -> None:
    capacity = {"shares": {"value": "10", "requestPolicy": {"default": "1", "validRange": {"min": "1"}}}}
    assert "only with allowMultipleAllocations" in refusal(with_device(capacity=capacity))


def test_request_policy_with_shares_is_stored() -> None:
    policy = {"default": "1", "validRange": {"min": "1", "max": "10", "step": "1"}}
    capacity = {"shares": {"value": "10", "requestPolicy": policy}}
    Store().create(RESOURCE_SLICES, with_device(allowMultipleAllocations=True, capacity=capacity))


@pytest.mark.parametrize("limits", [{"min": "2"}, {"min": "1", "max": "11"}, {"min": "1", "max": "10", "step": "4"}])
def test_request_policy_that_does_not_add_up_is_refused(limits: dict[str, str]) -> None:
    capacity = {"shares": {"value": "10", "requestPolicy": {"default": "1", "validRange": limits}}}
    assert "validRange" in refusal(with_device(allowMultipleAllocations=True, capacity=capacity))


@pytest.mark.parametrize("count", [0, -1, None])
def test_slice_count_must_be_positive(count: int | None) -> None:
    assert "resourceSliceCount" in refusal(gpu_slice(resourceSliceCount=count))


def test_negative_generation_is_refused() -> None:
    assert "generation" in refusal(gpu_slice(generation=-1))


@pytest.mark.parametrize("change", [{"nodeName": None}, {"allNodes": True}], ids=["none", "two"])
def test_exactly_one_place_is_needed(change: dict[str, Any]) -> None:
    body = gpu_slice()
    body["spec"].update(change)
    assert "exactly one of nodeName" in refusal(body)


def test_counters_and_devices_do_not_mix() -> None:
    body = gpu_slice()
    body["spec"]["sharedCounters"] = [{"name": "set", "counters": {"memory": {"value": "1Gi"}}}]
    assert "exactly one of sharedCounters and devices" in refusal(body)


def test_unknown_fields_are_named() -> None:
    assert 'unknown field "spec.devices[0].basic"' in refusal({**with_device(basic={})})


@pytest.mark.parametrize("path", ["driver", "nodeName"])
def test_identity_is_immutable(path: str) -> None:
    store = Store()
    made = store.create(RESOURCE_SLICES, gpu_slice())
    made["spec"][path] = "other"
    with pytest.raises(StatusError, match=f"spec.{path}: .*field is immutable"):
        store.replace(RESOURCE_SLICES, made)


def test_refusal_is_worded_as_by_the_server() -> None:
    body = gpu_slice(0)
    body["spec"]["devices"] = [gpu_device(0) | {"name": "GPU"}]
    assert refusal(body).startswith('ResourceSlice.resource.k8s.io "00000-node-a" is invalid: spec.devices[0].name: ')
