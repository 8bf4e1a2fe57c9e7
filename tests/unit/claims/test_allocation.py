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


@pytest.mark.parametrize("requests", [5, "gpu", {"a": 1}, True])
def test_requests_of_a_config_that_are_no_list_are_refused_with_their_path(requests):
    entry = config_entry(time_slicing()) | {"requests": requests}
    with pytest.raises(BadConfig, match=rf"^config\[0\]\.requests is a {type(requests).__name__}, must be a list"):
        read_allocation(REF, resource_claim(REF, [result()], [entry]), NODE)


def test_request_of_a_config_that_is_no_string_is_refused_with_its_path():
    entry = config_entry(time_slicing()) | {"requests": ["g", 5]}
    with pytest.raises(BadConfig, match=r"^config\[0\]\.requests\[1\] is a int, must be a string"):
        read_allocation(REF, resource_claim(REF, [result()], [entry]), NODE)


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("adminAccess", "true", "a str, must be true or false"),
        ("adminAccess", 1, "a int, must be true or false"),
        ("shareID", 5, "a int, must be a string"),
        ("request", ["g"], "a list, must be a string"),
        ("device", {}, "a dict, must be a string"),
        ("pool", 7, "a int, must be a string"),
        ("consumedCapacity", 7, "a int, must be an object"),
    ],
)
def test_field_of_a_result_with_an_odd_type_is_refused_with_its_path(field, value, wanted):
    entry = result() | {field: value}
    with pytest.raises(BadConfig, match=rf"^status\.allocation\.devices\.results\[1\]\.{field} is {wanted}"):
        read_allocation(REF, resource_claim(REF, [result("gpu-1"), entry]), NODE)


ENFORCED = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].memoryLimits == "enforced"'}}
OTHER = {"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}


def needing(requests, *results):
    """Which results belong to requests that insist on enforced memory limits."""
    claim = resource_claim(REF, list(results))
    claim["spec"] = {"devices": {"requests": requests}}
    return [device.needs_enforced for device in read_allocation(REF, claim, NODE).devices]


def test_request_whose_selector_insists_on_enforced_limits_is_known():
    requests = [
        {"name": "a", "exactly": {"selectors": [OTHER, ENFORCED]}},
        {"name": "b", "exactly": {"selectors": [OTHER]}},
        {"name": "c", "exactly": {}},
    ]
    assert needing(requests, *(result(f"gpu-{n}", request=name) for n, name in enumerate("abc"))) == [
        True,
        False,
        False,
    ]


def test_only_the_alternative_that_was_taken_counts():
    requests = [{"name": "gpu", "firstAvailable": [{"name": "best", "selectors": [ENFORCED]}, {"name": "any"}]}]
    assert needing(requests, result(request="gpu/best")) == [True]
    assert needing(requests, result(request="gpu/any")) == [False]


@pytest.mark.parametrize(
    "requests",
    [None, "x", [1], [{"name": "gpu", "exactly": 1}], [{"name": "gpu", "exactly": {"selectors": [{"cel": 1}, 2]}}]],
)
def test_odd_requests_insist_on_nothing(requests):
    assert needing(requests, result()) == [False]
