"""``dra-driver explain`` on files: what it says of pods, claims and templates, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.commands.main import main

Json = dict[str, Any]
Explain = Callable[..., tuple[int, str]]
OWN = "device.attributes['gpu.nvidia.com']"


def gpu(index: int, **parts: Any) -> Json:
    attributes = {"type": {"string": "gpu"}, "index": {"int": index}, "numa": {"int": index // 2}}
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "40Gi"}}, **parts}


def shared(index: int, shares: int = 2) -> Json:
    policy = {"default": "1", "validRange": {"min": "1", "max": "1"}}
    capacity = {"memory": {"value": "40Gi"}, "shares": {"value": str(shares), "requestPolicy": policy}}
    capacity["memory"]["requestPolicy"] = {"default": "0"}  # type: ignore[assignment]
    return gpu(index, allowMultipleAllocations=True, capacity=capacity)


def resource_slice(*devices: Json, node: str = "node-1", count: int = 1) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def device_class(name: str = "gpu.nvidia.com", expression: str = f"{OWN}.type == 'gpu'", **spec: Any) -> Json:
    selectors = [{"cel": {"expression": expression}}]
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}


def claim(name: str = "c", *requests: Json, constraints: tuple[Json, ...] = (), **exactly: Any) -> Json:
    asked = requests or ({"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", **exactly}},)
    devices = {"requests": list(asked), "constraints": list(constraints)}
    return {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


def held(device: str, name: str = "train", **result: Any) -> Json:
    made = claim(name)
    made["metadata"]["namespace"] = "other"
    found = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device, **result}
    made["status"] = {"allocation": {"devices": {"results": [found]}}, "reservedFor": [{"name": f"{name}-0"}]}
    return made


def pod(*claims: Json, **spec: Any) -> Json:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"resourceClaims": list(claims), **spec}}


def select(expression: str) -> list[Json]:
    return [{"cel": {"expression": expression}}]


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    def run(*objects: Json, target: str = "", arguments: tuple[str, ...] = ()) -> tuple[int, str]:
        file = tmp_path / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
        code = main(["explain", *([target] if target else []), "-f", str(file), *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_claim_that_fits_is_told_what_it_would_get(explain: Explain) -> None:
    code, told = explain(device_class(), resource_slice(gpu(0), gpu(1)), claim())
    assert code == 0
    assert told.splitlines() == ["ResourceClaim default/c: fits on node-1", "  node node-1: fits, would get gpu-0"]


def test_selector_that_is_false_is_told_with_what_the_device_has(explain: Explain) -> None:
    wish = claim(selectors=select(f"{OWN}.index == 7"))
    code, told = explain(device_class(), resource_slice(gpu(0)), wish)
    assert code == 1
    assert "node node-1: request gpu: none of 1 devices is selected" in told
    assert f"gpu-0: request gpu wants {OWN}.index == 7; here index is 0" in told


def test_attribute_that_a_device_lacks_is_missing(explain: Explain) -> None:
    wish = claim(selectors=select(f"has({OWN}.zone) && {OWN}.zone == 'a'"))
    assert "zone is missing" in explain(device_class(), resource_slice(gpu(0)), wish)[1]


def test_selector_of_the_class_is_told_as_such(explain: Explain) -> None:
    wish = claim("c", {"name": "m", "exactly": {"deviceClassName": "mig"}})
    told = explain(device_class("mig", f"{OWN}.type == 'mig'"), resource_slice(gpu(0)), wish)[1]
    assert f"gpu-0: DeviceClass mig wants {OWN}.type == 'mig'; here type is gpu" in told


def test_selector_that_fails_on_a_device_is_told(explain: Explain) -> None:
    code, told = explain(device_class(), resource_slice(gpu(0)), claim(selectors=select(f"{OWN}.zone == 'a'")))
    assert code == 1
    assert "fails on device gpu-0" in told
    assert "-> a selector that fails on one device fails the whole claim: let it ask has(...) first" in told


def test_node_without_devices_is_told_with_those_that_have_some(explain: Explain) -> None:
    code, told = explain(device_class(), resource_slice(gpu(0)), claim(), arguments=("--node=node-7",))
    assert code == 2
    assert "--node node-7: no ResourceSlice offers devices there; it does on node-1" in told


def test_resource_of_a_pod_that_no_class_stands_for_is_named(explain: Explain) -> None:
    asked = {"resources": {"limits": {"nvidia.com/gpu.shared": 1, "cpu": 1}}}
    classes = device_class(extendedResourceName="nvidia.com/gpu")
    code, told = explain(classes, resource_slice(gpu(0)), pod(containers=[asked]), target="pod/p")
    assert code == 2
    assert "It asks for nvidia.com/gpu.shared, for which DRA knows no DeviceClass" in told
    assert "classes stand for: nvidia.com/gpu\n" in told


def test_workload_in_files_is_told_to_count_by_its_pods(explain: Explain) -> None:
    code, told = explain({"kind": "Deployment", "metadata": {"name": "d"}})
    assert code == 2
    assert "Of Deployments and other workloads, give a pod" in told


def test_device_that_is_held_names_claim_and_pod_and_what_helps(explain: Explain) -> None:
    code, told = explain(device_class(), resource_slice(gpu(0)), held("gpu-0"), claim(), target="claim/c")
    assert code == 1
    assert "request gpu wants 1 device, 0 of 1 selected can be had" in told
    assert "gpu-0: held by claim other/train (pod train-0)" in told
    assert "-> end a pod that holds it, or offer GPUs in shares" in told


def test_claim_that_no_pod_uses_is_told_to_hold_a_device(explain: Explain) -> None:
    holder = held("gpu-0")
    holder["status"]["reservedFor"] = []
    told = explain(device_class(), resource_slice(gpu(0)), holder, claim(), target="claim/c")[1]
    assert "held by claim other/train, which no pod uses" in told


def test_share_that_is_left_is_found_and_shares_that_are_out_are_told_with_their_holders(explain: Explain) -> None:
    part = {"shareID": "x", "consumedCapacity": {"shares": "1", "memory": "0"}}
    one, two = held("gpu-0", "one", **part), held("gpu-0", "two", **part)
    slices = resource_slice(shared(0))
    assert explain(device_class(), slices, one, claim(), target="claim/c")[0] == 0
    code, told = explain(device_class(), slices, one, two, claim(), target="claim/c")
    assert code == 1
    holders = "claim other/one (pod one-0), claim other/two (pod two-0)"
    assert f"gpu-0: has 0 of 2 shares left, 1 needed, held by {holders}" in told
    assert "-> end a pod that has a share of it, or offer more shares" in told


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ({"shares": "2"}, "gives no 2 of shares to one request: 1 to 1"),
        ({"memory": "50Gi"}, "has 40Gi of 40Gi memory left, 50Gi needed"),
        ({"tokens": "1"}, "has no capacity tokens (it has: memory, shares)"),
    ],
)
def test_capacity_that_cannot_be_had_is_told_with_numbers(explain: Explain, requests: Json, told: str) -> None:
    wish = claim(capacity={"requests": requests})
    code, found = explain(device_class(), resource_slice(shared(0)), wish)
    assert code == 1
    assert f"gpu-0: {told}" in found


def test_taint_is_told_with_the_toleration_that_would_do(explain: Explain) -> None:
    taint = {"key": "ecc", "value": "lost", "effect": "NoSchedule"}
    slices = resource_slice(gpu(0, taints=[taint]))
    told = explain(device_class(), slices, claim())[1]
    assert "gpu-0: tainted ecc=lost:NoSchedule" in told
    toleration = "{key: ecc, operator: Equal, value: lost, effect: NoSchedule}"
    assert f"give request gpu the toleration {toleration}" in told
    assert explain(device_class(), slices, claim(tolerations=[yaml.safe_load(toleration)]))[0] == 0


def test_taint_of_a_rule_counts_for_the_devices_it_names(explain: Explain) -> None:
    taint = {"key": "drain", "effect": "NoExecute"}
    selector = {"driver": "gpu.nvidia.com", "device": "gpu-0"}
    rule = {"kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": taint}}
    told = explain(device_class(), resource_slice(gpu(0), gpu(1)), rule, claim())[1]
    assert "would get gpu-1" in told
    assert "gpu-0: tainted drain:NoExecute" in told


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        ({"matchAttribute": "gpu.nvidia.com/numa"}, "have the same gpu.nvidia.com/numa (constraint matchAttribute"),
        ({"distinctAttribute": "gpu.nvidia.com/type"}, "all differ in gpu.nvidia.com/type (constraint distinct"),
    ],
)
def test_constraint_that_makes_the_difference_is_named(explain: Explain, constraint: Json, told: str) -> None:
    wish = claim("c", count=2, constraints=(constraint,))
    slices = resource_slice(gpu(0), gpu(2))
    code, found = explain(device_class(), slices, wish)
    assert code == 1
    assert told in found
    assert explain(device_class(), slices, claim("c", count=2))[0] == 0


def test_requests_that_compete_for_one_device_are_told_so(explain: Explain) -> None:
    def request(name: str) -> Json:
        selectors = select(f"{OWN}.index == 0")
        return {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com", "selectors": selectors}}

    code, told = explain(device_class(), resource_slice(gpu(0), gpu(1)), claim("c", request("a"), request("b")))
    assert code == 1
    assert "each request could be served alone, but not all of them" in told


def test_class_that_is_not_there_is_told_with_the_nearest(explain: Explain) -> None:
    wish = claim("c", {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.comm"}})
    code, told = explain(device_class(), resource_slice(gpu(0)), wish)
    assert code == 1
    assert "request gpu: there is no DeviceClass 'gpu.nvidia.comm'; did you mean gpu.nvidia.com?" in told


def test_cluster_without_slices_is_told_to_have_no_driver(explain: Explain) -> None:
    assert "there is no ResourceSlice at all" in explain(device_class(), claim())[1]


def test_pool_that_is_being_changed_is_told(explain: Explain) -> None:
    told = explain(device_class(), resource_slice(gpu(0), count=2), claim())[1]
    assert "pool node-1 of gpu.nvidia.com has 1 of 2 slices" in told


def test_alternatives_are_tried_in_order(explain: Explain) -> None:
    options = [{"name": n, "deviceClassName": "gpu.nvidia.com", "count": c} for n, c in (("two", 2), ("one", 1))]
    code, told = explain(device_class(), resource_slice(gpu(0)), claim("c", {"name": "gpu", "firstAvailable": options}))
    assert code == 0
    assert "would get gpu-0" in told


# Pods.


def test_pod_is_explained_by_its_claims_and_their_templates(explain: Explain) -> None:
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": claim()["spec"]}}
    asked = pod({"name": "a", "resourceClaimName": "c"}, {"name": "b", "resourceClaimTemplateName": "t"})
    code, told = explain(device_class(), resource_slice(gpu(0)), claim(), template, asked, target="pod/p")
    assert "claim a of pod default/p (ResourceClaim c): fits on node-1" in told
    assert "claim b of pod default/p (from ResourceClaimTemplate t): fits on node-1" in told
    assert "all 2 claims of pod default/p together: fits on none of 1 nodes" in told
    assert code == 1


def test_pod_that_asks_for_an_extended_resource_is_explained_by_its_class(explain: Explain) -> None:
    asked = pod(containers=[{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}}])
    classes = device_class(extendedResourceName="nvidia.com/gpu")
    code, told = explain(classes, resource_slice(gpu(0)), asked)
    assert code == 1
    assert "extended resources of pod default/p: fits on none" in told
    assert "request container-0-request-0 wants 2 devices, 1 of 1 selected can be had" in told


@pytest.mark.parametrize(
    ("spec", "node", "told"),
    [
        ({}, {"unschedulable": True}, "the node is cordoned"),
        ({}, {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, "taint nvidia.com/gpu:NoSchedule"),
        ({"nodeSelector": {"zone": "b"}}, {}, "nodeSelector wants zone=b, the node has a"),
    ],
)
def test_what_keeps_a_pod_from_a_node_is_told_first(explain: Explain, spec: Json, node: Json, told: str) -> None:
    asked = pod({"name": "a", "resourceClaimName": "c"}, **spec)
    place = {"kind": "Node", "metadata": {"name": "node-1", "labels": {"zone": "a"}}, "spec": node}
    code, found = explain(device_class(), resource_slice(gpu(0)), claim(), place, asked)
    assert code == 1
    assert f"node node-1: {'' if told.startswith('the node') else 'the pod'}" in found
    assert told in found


def test_claim_that_is_allocated_shows_what_it_has(explain: Explain) -> None:
    mine = held("gpu-1", shareID="x", consumedCapacity={"memory": "0", "shares": "1"})
    code, told = explain(
        device_class(), resource_slice(gpu(0), gpu(1)), mine, target="claim/train", arguments=("-n", "other")
    )
    assert code == 0
    assert "request gpu has device gpu-1 of pool node-1 (gpu.nvidia.com), a share of it: shares 1" in told
    assert "request gpu (gpu.nvidia.com) selects gpu-0, gpu-1" in told


def test_json_says_the_same(explain: Explain) -> None:
    _, told = explain(
        device_class(), resource_slice(gpu(0)), held("gpu-0"), claim(), target="claim/c", arguments=("-o", "json")
    )
    said = json.loads(told)
    (answer,) = said["answers"]
    (request,) = answer["nodes"][0]["requests"]
    (device,) = request["devices"]
    assert (said["ok"], answer["fits"], answer["nodes"][0]["node"]) == (False, False, "node-1")
    assert (device["device"], device["fits"], device["obstacle"]) == ("gpu-0", False, "in use")
    assert device["reason"] == "held by claim other/train (pod train-0)"


# What cannot be asked.


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("claim/nope", "there is no ResourceClaim nope in namespace default; there are: c"),
        ("service/x", "'service/x' cannot be explained: give pod/NAME (of a workload, one of its pods), claim/NAME or"),
        ("pod/", "cannot be explained"),
        ("p", "there is no Pod p in namespace default"),
    ],
)
def test_target_that_is_wrong_is_told_in_one_line(explain: Explain, target: str, told: str) -> None:
    code, found = explain(claim(), target=target)
    assert (code, len(found.splitlines())) == (2, 1)
    assert told in found


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"name": "a", "resourceClaimName": "gone"}, "there is no ResourceClaim gone in namespace default: create it"),
        ({"name": "a", "resourceClaimTemplateName": "gone"}, "no ResourceClaimTemplate gone in namespace default"),
    ],
)
def test_pod_whose_claim_is_missing_is_told(explain: Explain, entry: Json, told: str) -> None:
    code, found = explain(device_class(), resource_slice(gpu(0)), pod(entry), target="pod/p")
    assert code == 2
    assert told in found


def test_nothing_to_explain_is_wrong_usage(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(device_class())[0] == 2
    assert main(["explain"]) == 2
    assert "say what to explain" in capsys.readouterr().err


def test_lists_as_kubectl_prints_them_are_read(explain: Explain) -> None:
    listed = {"kind": "List", "items": [device_class(), resource_slice(gpu(0)), claim()]}
    typed = {"kind": "ResourceSliceList", "items": [{k: v for k, v in resource_slice(gpu(0)).items() if k != "kind"}]}
    assert explain(listed)[0] == 0
    assert explain(device_class(), typed, claim())[0] == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"kind": "ResourceClaim", "metadata": {"name": "c"}}, "ResourceClaim c: spec: Field required"),
        (
            {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {"driver": "d"}},
            "ResourceSlice s: spec.pool: Field",
        ),
        ({"kind": "Pod", "metadata": {}, "spec": {}}, "Pod without a name: metadata.name: Field required"),
        ({"kind": "Node", "metadata": 1}, "Node without metadata: metadata: "),
        (claim(selectors=[{"cel": "x"}]), "ResourceClaim c: spec.devices.requests[0].exactly.selectors[0].cel: "),
        (
            resource_slice({"name": "g", "attributes": {"type": {}}}),
            "spec.devices[0].attributes.type: ",
        ),
        ({"kind": "PodList", "items": [1]}, "PodList: items is no list of objects"),
    ],
)
def test_object_that_is_none_of_its_kind_is_told_with_the_field(explain: Explain, content: Json, told: str) -> None:
    code, found = explain(content)
    assert (code, len(found.splitlines())) == (2, 1)
    assert told in found
