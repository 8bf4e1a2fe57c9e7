"""Pods and claims through the stand-in scheduler, without kubelet and driver."""

from typing import Any

import pytest

from dra_driver.simulator.kinds import CLAIM_TEMPLATES, DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.simulator.scheduler import FINALIZER, Scheduler
from dra_driver.simulator.store import Store
from tests.unit.simulator.builders import NODE, claim, device_class, gpu_slice, pod

Json = dict[str, Any]


def cluster(gpus: int = 2) -> Store:
    store = Store()
    store.create(NODES, {"metadata": {"name": NODE}})
    store.create(DEVICE_CLASSES, device_class())
    store.create(RESOURCE_SLICES, gpu_slice(gpus))
    return store


@pytest.fixture
def store() -> Store:
    return cluster()


def template(store: Store, name: str = "single-gpu") -> None:
    spec = claim()["spec"]
    store.create(CLAIM_TEMPLATES, {"metadata": {"name": name, "namespace": "default"}, "spec": {"spec": spec}})


def one_pass(store: Store) -> None:
    Scheduler(store).look()


def devices(store: Store) -> list[str]:
    allocations = [c["status"]["allocation"] for c in store.find(RESOURCE_CLAIMS) if c.get("status")]
    return [result["device"] for allocation in allocations for result in allocation["devices"]["results"]]


def get_pod(store: Store, name: str) -> Json:
    return store.get(PODS, name, "default")


def test_pods_that_name_one_claim_get_one_gpu(store: Store) -> None:
    store.create(RESOURCE_CLAIMS, claim("shared"))
    for name in ("a", "b"):
        store.create(PODS, pod(name, claim_name="shared"))
    one_pass(store)
    assert devices(store) == ["gpu-0"]
    assert [c["name"] for c in store.get(RESOURCE_CLAIMS, "shared", "default")["status"]["reservedFor"]] == ["a", "b"]


def test_pods_from_one_template_get_a_gpu_each(store: Store) -> None:
    template(store)
    for name in ("a", "b"):
        store.create(PODS, pod(name, template="single-gpu"))
    one_pass(store)
    assert sorted(devices(store)) == ["gpu-0", "gpu-1"]


def test_pod_from_a_template_waits_when_the_gpus_are_out() -> None:
    store = cluster(gpus=1)
    template(store)
    for name in ("a", "b"):
        store.create(PODS, pod(name, template="single-gpu"))
    one_pass(store)
    assert get_pod(store, "a")["spec"]["nodeName"] == NODE
    (condition,) = get_pod(store, "b")["status"]["conditions"]
    assert condition["message"] == "0/1 nodes are available: 1 cannot allocate all claims."


def test_waiting_pod_gets_the_gpu_when_it_is_free() -> None:
    store = cluster(gpus=1)
    template(store)
    for name in ("a", "b"):
        store.create(PODS, pod(name, template="single-gpu"))
    one_pass(store)
    store.delete(PODS, "a", "default", grace_seconds=0)
    one_pass(store)
    assert get_pod(store, "b")["spec"]["nodeName"] == NODE


def test_claim_of_a_template_belongs_to_its_pod(store: Store) -> None:
    template(store)
    made = store.create(PODS, pod("a", template="single-gpu"))
    one_pass(store)
    (found,) = store.find(RESOURCE_CLAIMS)
    assert found["metadata"]["name"].startswith("a-gpu-")
    assert found["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert get_pod(store, "a")["status"]["resourceClaimStatuses"] == [
        {"name": "gpu", "resourceClaimName": found["metadata"]["name"]}
    ]


def test_claim_of_a_template_goes_with_its_pod(store: Store) -> None:
    template(store)
    store.create(PODS, pod("a", template="single-gpu"))
    one_pass(store)
    store.delete(PODS, "a", "default", grace_seconds=0)
    one_pass(store)
    assert store.find(RESOURCE_CLAIMS) == []


def test_named_claim_is_deallocated_after_its_last_pod(store: Store) -> None:
    store.create(RESOURCE_CLAIMS, claim("shared"))
    for name in ("a", "b"):
        store.create(PODS, pod(name, claim_name="shared"))
    one_pass(store)
    store.delete(PODS, "a", "default", grace_seconds=0)
    one_pass(store)
    assert store.get(RESOURCE_CLAIMS, "shared", "default")["status"]["allocation"]
    store.delete(PODS, "b", "default", grace_seconds=0)
    one_pass(store)
    left = store.get(RESOURCE_CLAIMS, "shared", "default")
    assert (left["status"], left["metadata"]["finalizers"]) == ({}, [])


def test_claim_in_use_outlives_its_deletion(store: Store) -> None:
    store.create(RESOURCE_CLAIMS, claim("shared"))
    store.create(PODS, pod("a", claim_name="shared"))
    one_pass(store)
    marked = store.delete(RESOURCE_CLAIMS, "shared", "default")
    assert marked["metadata"]["finalizers"] == [FINALIZER]
    store.delete(PODS, "a", "default", grace_seconds=0)
    one_pass(store)
    assert store.find(RESOURCE_CLAIMS) == []


def test_pod_waits_for_a_claim_that_is_not_there(store: Store) -> None:
    store.create(PODS, pod("a", claim_name="nowhere"))
    one_pass(store)
    (condition,) = get_pod(store, "a")["status"]["conditions"]
    assert 'resourceclaims.resource.k8s.io "nowhere" not found' in condition["message"]


def test_pod_waits_for_a_template_that_is_not_there(store: Store) -> None:
    store.create(PODS, pod("a", template="nowhere"))
    one_pass(store)
    assert "nodeName" not in get_pod(store, "a")["spec"]


def test_second_look_changes_nothing(store: Store) -> None:
    template(store)
    store.create(PODS, pod("a", template="single-gpu"))
    store.create(PODS, pod("b", claim_name="nowhere"))
    one_pass(store)
    version = store.version
    one_pass(store)
    assert store.version == version


def test_runs_by_itself(store: Store) -> None:
    scheduler = Scheduler(store).start()
    try:
        store.create(RESOURCE_CLAIMS, claim("shared"))
        store.create(PODS, pod("a", claim_name="shared"))
        assert store.wait_for(lambda: get_pod(store, "a")["spec"].get("nodeName"), 20) == NODE
    finally:
        scheduler.stop()
