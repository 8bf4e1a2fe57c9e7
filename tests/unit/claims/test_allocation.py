"""Reading allocations: only what is ours, and clear refusals."""

import pytest

from dra_driver.claims.allocation import check_uid, read_allocation
from dra_driver.model.claims import ClaimRef, ConfigSource
from dra_driver.model.errors import BadConfig, NotAllocated, UnknownDevice
from tests.builders import NODE, claim_ref, config_entry, resource_claim, result, time_slicing

REF = claim_ref()


def test_results_and_configs_of_other_drivers_are_left_out_unread():
    foreign = {"driver": "nic.example.com", "pool": "elsewhere", "device": "eth1", "request": "n"}
    claim = resource_claim(
        REF,
        [result(request="g"), foreign],
        [
            config_entry({"kind": "NoSuchKind"}, "n", driver="nic.example.com"),
            config_entry(time_slicing(), "g"),
        ],
    )
    allocation = read_allocation(REF, claim, NODE)
    assert [device.device for device in allocation.devices] == ["gpu-0"]
    assert [(config.index, config.requests) for config in allocation.configs] == [(1, ("g",))]


def test_share_admin_access_and_consumed_capacity_are_read():
    entry = result(adminAccess=True, shareID="s-1", consumedCapacity={"shares": "1", "memory": "2Gi"})
    (device,) = read_allocation(REF, resource_claim(REF, [entry]), NODE).devices
    assert (device.admin_access, device.share_id) == (True, "s-1")
    assert device.consumed_capacity == (("memory", "2Gi"), ("shares", "1"))


@pytest.mark.parametrize("requests", [{}, {"requests": []}, {"requests": None}], ids=["absent", "empty", "null"])
def test_a_config_without_requests_names_none(requests):
    entry = {"source": "FromClass", "opaque": {"driver": "gpu.nvidia.com", "parameters": {}}} | requests
    (config,) = read_allocation(REF, resource_claim(REF, [result()], [entry]), NODE).configs
    assert (config.source, config.requests) == (ConfigSource.CLASS, ())


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}], ids=["null", "empty", "null allocation"])
def test_a_claim_without_allocation_is_said_so(status):
    claim = resource_claim(REF, None) | {"status": status}
    with pytest.raises(NotAllocated, match=r"team-a/claim-1 .* is not allocated yet"):
        read_allocation(REF, claim, NODE)


def test_a_device_of_another_pool_is_refused_naming_both_pools():
    with pytest.raises(UnknownDevice, match=r"pool 'node-b', not in this node's pool 'node-a'"):
        read_allocation(REF, resource_claim(REF, [result(pool="node-b")]), NODE)


@pytest.mark.parametrize("name", ["../../etc/passwd", "gpu/0", "..", "", "GPU-0", "g" * 64])
def test_a_device_name_that_no_device_can_have_is_refused(name):
    with pytest.raises(UnknownDevice, match="not a DNS label"):
        read_allocation(REF, resource_claim(REF, [result(name)]), NODE)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"results": {}}, "status.allocation.devices.results is a dict, must be a list"),
        ({"results": ["x"]}, r"results\[0\] is a str, must be an object"),
        ({"results": [], "config": [{"source": "FromClaim"}]}, "only opaque parameters are supported"),
        (
            {"results": [], "config": [config_entry({}, source="FromMars")]},
            "'FromMars', must be one of FromClass, FromClaim",
        ),
    ],
    ids=["results object", "result string", "config not opaque", "unknown source"],
)
def test_entries_of_a_wrong_shape_are_refused_with_their_path(devices, message):
    claim = resource_claim(REF, None) | {"status": {"allocation": {"devices": devices}}}
    with pytest.raises(BadConfig, match=message):
        read_allocation(REF, claim, NODE)


@pytest.mark.parametrize("uid", ["", "../x", "a/b", "x" * 200, "a\nb"])
def test_a_uid_that_cannot_be_a_file_name_is_refused(uid):
    with pytest.raises(BadConfig, match="claim uid"):
        check_uid(ClaimRef("ns", "name", uid))
