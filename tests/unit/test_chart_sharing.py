"""Sharing in the chart: the profile that reaches the driver, and the classes of whole devices, shares and profiles."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.scheduling.small_cel import compile_selector
from dra_driver.settings.profile_file import ProfileFile, parse_profile
from dra_driver_api.config import Mode, canonical, decode
from tests import helm

pytestmark = pytest.mark.chart

GATES = {"ConsumableShares": True, "TimeSlicingSettings": True}
EXAMPLE = helm.CHART.parents[1] / "examples/values-shares.yaml"
T4 = {"match": {"productName": "Tesla T4", "nodeLabels": {"pool": "dev", "shared": "true"}}, "shares": 4}
RULES: list[dict[str, Any]] = [
    {"match": {"minor": 0}, "shares": "disabled"},
    {**T4, "maxPerClaim": 1},
    {"match": {"uuid": "GPU-9d159503-00e7-5521-b84f-79f5c9a382b1"}, "shares": "10"},
    {"match": {"migProfile": "1g.10gb+me"}, "shares": "memory"},
]
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}


def render(**values: Any) -> list[helm.Json]:
    return helm.render({"featureGates": GATES, **values})


def profile_text(objects: list[helm.Json]) -> str:
    """What the driver finds in the file that it is told of."""
    path = Path(helm.environment(objects)["SHARING_PROFILE"])
    (mount,) = [m for m in helm.container(objects)["volumeMounts"] if m["mountPath"] == str(path.parent)]
    assert "subPath" not in mount
    (volume,) = [v for v in helm.pod(objects)["volumes"] if v["name"] == mount["name"]]
    config_map = helm.one(objects, "ConfigMap")
    assert (volume["configMap"]["name"], helm.NAMESPACE) == (
        config_map["metadata"]["name"],
        config_map["metadata"]["namespace"],
    )
    return str(config_map["data"][path.name])


def classes(**values: Any) -> dict[str, helm.Json]:
    """Specs of the DeviceClasses, by name."""
    objects = render(deviceClasses=values)
    return {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "DeviceClass"}


def resources(found: dict[str, helm.Json]) -> dict[str, str | None]:
    """Class -> its extended resource."""
    return {name: spec.get("extendedResourceName") for name, spec in found.items()}


def picked(spec: helm.Json, kind: str, shared: bool, profile: str = "") -> bool:
    """Whether a class takes a device."""
    attributes = {"type": {"string": kind}} | ({"profile": {"string": profile}} if profile else {})
    device = {"name": "d", "attributes": attributes} | ({"allowMultipleAllocations": True} if shared else {})
    (selector,) = spec["selectors"]
    return compile_selector(selector["cel"]["expression"])("gpu.nvidia.com", device)


# The profile.


def test_rules_of_the_values_are_the_rules_of_the_driver() -> None:
    written = yaml.safe_dump({"rules": RULES})
    found, wanted = (
        parse_profile(text, 48).rules for text in (profile_text(render(sharingProfile={"rules": RULES})), written)
    )
    assert [(rule.match, rule.shares) for rule in found] == [(rule.match, rule.shares) for rule in wanted]
    assert len(found) == len(RULES)


def test_changed_rule_changes_nothing_of_the_pods_so_that_none_is_restarted() -> None:
    before, after = ({"rules": [{"match": {"minor": 0}, "shares": number}]} for number in (2, 3))
    assert helm.one(render(sharingProfile=before), "DaemonSet") == helm.one(render(sharingProfile=after), "DaemonSet")


def test_profile_without_rules_is_mounted_so_that_the_first_rule_needs_no_restart() -> None:
    assert parse_profile(profile_text(render(sharingProfile={"rules": []})), 48).rules == ()


def test_there_is_no_profile_unless_one_is_given() -> None:
    objects = helm.render()
    assert "ConfigMap" not in {item["kind"] for item in objects}
    assert "SHARING_PROFILE" not in helm.environment(objects)


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ({"shares": 4}, "missing property 'match'"),
        ({"match": {"minor": 0}}, "missing property 'shares'"),
        ({"match": {}, "shares": 4}, "/match"),
        ({"match": {"nodeLabels": {}}, "shares": 4}, "/match/nodeLabels"),
        ({"match": {"nodeLabels": {"pool": True}}, "shares": 4}, "/match/nodeLabels/pool"),
        ({"match": {"minor": -1}, "shares": 4}, "/match/minor"),
        ({"match": {"index": 0}, "shares": 4}, "'index' not allowed"),
        ({"match": {"minor": 0}, "shares": 0}, "/shares"),
        ({"match": {"minor": 0}, "shares": "some"}, "/shares"),
        ({"match": {"minor": 0}, "shares": 4, "maxPerClaim": 0}, "/maxPerClaim"),
        ({"match": {"minor": 0}, "shares": 4, "maxPerClam": 1}, "'maxPerClam' not allowed"),
    ],
)
def test_wrong_rule_is_refused_with_its_place(rule: Any, place: str) -> None:
    with pytest.raises(helm.Refused, match=r"sharingProfile/rules/0.*" + re.escape(place)):
        render(sharingProfile={"rules": [rule]})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"consumableShares": 49}, "consumableShares is 49, and maxClientsPerGpu is 48"),
        ({"consumableShares": "5", "maxClientsPerGpu": 4}, "consumableShares is 5, and maxClientsPerGpu is 4"),
        ({"sharingProfile": {"rules": [{**T4, "shares": 49}]}}, r"rules\[0\].shares is 49, and maxClientsPerGpu is 48"),
        ({"sharingProfile": {"rules": [{**T4, "maxPerClaim": 5}]}}, r"rules\[0\].maxPerClaim is 5, .* has 4 shares"),
        (
            {"sharingProfile": {"rules": [{**T4, "shares": "memory", "maxPerClaim": 1}]}},
            r"rules\[0\].maxPerClaim is given with shares memory",
        ),
        (
            {"featureGates": {}, "sharingProfile": {"rules": []}},
            "sharingProfile requires featureGates.ConsumableShares",
        ),
        ({"featureGates": {}, "shareMemory": "even"}, 'shareMemory is "even", which requires featureGates.Consumable'),
        ({"featureGates": {}, "deviceClasses": {"sharing": LONG}}, "requires featureGates.TimeSlicingSettings=true"),
    ],
)
def test_numbers_and_gates_that_do_not_fit_are_refused_before_the_driver_would(values: Any, said: str) -> None:
    with pytest.raises(helm.Refused, match=said):
        render(**values)


def test_more_clients_are_taken_where_the_ceiling_is_raised() -> None:
    assert helm.environment(render(consumableShares=49, maxClientsPerGpu=49))["MAX_CLIENTS_PER_GPU"] == "49"


# DeviceClasses.


@pytest.mark.parametrize("profile", ["mig-1g.10gb", "1g10gb", "1G.10GB", "1g.10gb+", "1g.10gb'", ""])
def test_what_is_no_mig_profile_is_refused_with_its_place(profile: str) -> None:
    with pytest.raises(helm.Refused, match="at '/deviceClasses/migProfiles/0'"):
        classes(migProfiles=[profile])


def test_whole_gpus_and_shares_go_by_one_name_unless_shares_are_renamed() -> None:
    found = classes()
    assert resources(found) == {"gpu.nvidia.com": "nvidia.com/gpu", "mig.nvidia.com": None}
    assert [picked(found["gpu.nvidia.com"], "gpu", shared) for shared in (False, True)] == [True, True]


@pytest.mark.parametrize("kind", ["gpu", "mig"])
def test_renamed_shares_have_a_class_of_their_own_and_the_other_has_whole_devices_only(kind: str) -> None:
    found = classes(renameByDefault=True)
    whole, shared = found[f"{kind}.nvidia.com"], found[f"{kind}.shared.nvidia.com"]
    assert [picked(whole, kind, by_share) for by_share in (False, True)] == [True, False]
    assert [picked(shared, kind, by_share) for by_share in (False, True)] == [False, True]


def test_renamed_shares_are_asked_for_by_the_device_plugins_names() -> None:
    assert resources(classes(renameByDefault=True, migProfiles=["1g.10gb"])) == {
        "gpu.nvidia.com": "nvidia.com/gpu",
        "gpu.shared.nvidia.com": "nvidia.com/gpu.shared",
        "mig.nvidia.com": None,
        "mig.shared.nvidia.com": None,
        "mig-1g.10gb.nvidia.com": "nvidia.com/mig-1g.10gb",
        "mig-1g.10gb.shared.nvidia.com": "nvidia.com/mig-1g.10gb.shared",
    }


@pytest.mark.parametrize(
    ("profile", "name"),
    [("1g.10gb", "mig-1g.10gb"), ("1g.10gb+me", "mig-1g.10gb.me"), ("1g.12gb-me", "mig-1g.12gb-me")],
)
def test_mig_profile_is_asked_for_by_its_resource_and_gives_that_profile_only(profile: str, name: str) -> None:
    found = classes(migProfiles=[profile])[f"{name}.nvidia.com"]
    assert found["extendedResourceName"] == f"nvidia.com/{name}"
    assert [picked(found, "mig", False, each) for each in (profile, "7g.80gb")] == [True, False]


def test_without_an_extended_resource_shares_have_none_either() -> None:
    assert set(resources(classes(extendedResourceName="", renameByDefault=True)).values()) == {None}


@pytest.mark.parametrize(
    ("values", "sharing"),
    [({}, ["gpu.nvidia.com"]), ({"renameByDefault": True, "migProfiles": ["1g.10gb"]}, ["gpu.shared.nvidia.com"])],
    ids=["one name", "renamed"],
)
def test_sharing_of_the_values_is_the_config_of_the_gpus_that_can_be_shared(values: Any, sharing: list[str]) -> None:
    found = classes(sharing=LONG, **values)
    assert [name for name, spec in found.items() if "config" in spec] == sharing
    (config,) = found[sharing[0]]["config"]
    assert config["opaque"]["driver"] == "gpu.nvidia.com"
    assert json.loads(canonical(decode(config["opaque"]["parameters"], Mode.STRICT))) == LONG


def test_example_of_a_fleet_that_is_shared_card_by_card_is_one_that_the_driver_takes(tmp_path: Path) -> None:
    objects = helm.documents(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    path = tmp_path / "profile.yaml"
    path.write_text(profile_text(objects), encoding="utf-8")
    assert [str(rule.shares) for rule in ProfileFile(path, 48).read().rules] == ["4", "10", "3"]
    names = [item["spec"].get("extendedResourceName") for item in objects if item["kind"] == "DeviceClass"]
    assert {"nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb.shared"} < set(names)


# Notes.


def test_notes_name_the_gate_of_kubernetes_that_shares_need() -> None:
    assert "DRAConsumableCapacity" in helm.notes({"featureGates": GATES})
    assert "DRAConsumableCapacity" not in helm.notes()


@pytest.mark.parametrize("on", [True, False])
def test_drivers_of_shared_gpus_see_the_hosts_processes_and_may_tell_any_pod_and_no_others_do(on: bool) -> None:
    objects = helm.render({"featureGates": {"ConsumableShares": on}})
    rules = helm.one(objects, "ClusterRole")["rules"]
    events = [sorted(rule["verbs"]) for rule in rules if rule["resources"] == ["events"]]
    assert events == ([["create", "patch"]] if on else [])
    assert helm.pod(objects).get("hostPID", False) is on
