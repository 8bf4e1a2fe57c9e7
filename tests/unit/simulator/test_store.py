"""Writing, reading and watching in memory by the API server's rules."""

import threading
from typing import Any

import pytest

from dra_driver.simulator.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.simulator.statuses import StatusError
from dra_driver.simulator.store import Store
from tests.unit.simulator.builders import claim, gpu_slice, pod


@pytest.fixture
def store() -> Store:
    return Store()


def allocated(store: Store) -> dict[str, Any]:
    made = store.create(RESOURCE_CLAIMS, claim())
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    return store.replace(RESOURCE_CLAIMS, made, status=True)


def test_create_fills_in_what_the_server_owns(store: Store) -> None:
    made = store.create(RESOURCE_SLICES, gpu_slice())
    assert set(made["metadata"]) == {"name", "uid", "resourceVersion", "creationTimestamp", "generation"}


def test_generate_name_cuts_the_prefix_to_58_characters(store: Store) -> None:
    body = gpu_slice()
    body["metadata"] = {"generateName": "a" * 70}
    name = store.create(RESOURCE_SLICES, body)["metadata"]["name"]
    assert (len(name), name[:58]) == (63, "a" * 58)


def test_create_refuses_a_name_that_is_taken(store: Store) -> None:
    store.create(RESOURCE_SLICES, gpu_slice())
    with pytest.raises(StatusError, match=r'resourceslices.resource.k8s.io "00000-node-a" already exists') as caught:
        store.create(RESOURCE_SLICES, gpu_slice())
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


def test_create_refuses_a_namespace_that_does_not_exist(store: Store) -> None:
    body = claim()
    body["metadata"]["namespace"] = "nowhere"
    with pytest.raises(StatusError, match='namespaces "nowhere" not found') as caught:
        store.create(RESOURCE_CLAIMS, body)
    assert caught.value.status == 404


def test_create_drops_the_status_of_a_claim(store: Store) -> None:
    body = claim() | {"status": {"reservedFor": [{"uid": "x"}]}}
    assert "status" not in store.create(RESOURCE_CLAIMS, body)


def test_create_defaults_the_count_of_a_request(store: Store) -> None:
    made = store.create(RESOURCE_CLAIMS, claim())
    assert made["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


def test_answers_are_copies(store: Store) -> None:
    store.create(NODES, {"metadata": {"name": "n"}})["metadata"]["name"] = "changed"
    assert store.get(NODES, "n")["metadata"]["name"] == "n"


def test_replace_refuses_an_old_resource_version(store: Store) -> None:
    old = store.create(RESOURCE_SLICES, gpu_slice(1))
    store.replace(RESOURCE_SLICES, {**old, "spec": gpu_slice(2)["spec"]})
    with pytest.raises(StatusError, match="the object has been modified") as caught:
        store.replace(RESOURCE_SLICES, old)
    assert caught.value.reason == "Conflict"


def test_replace_counts_generations_of_the_spec_only(store: Store) -> None:
    made = store.create(RESOURCE_SLICES, gpu_slice(1))
    made["metadata"]["labels"] = {"a": "b"}
    labelled = store.replace(RESOURCE_SLICES, made)
    changed = store.replace(RESOURCE_SLICES, {**labelled, "spec": gpu_slice(2)["spec"]})
    assert (labelled["metadata"]["generation"], changed["metadata"]["generation"]) == (1, 2)


def test_replace_without_a_change_writes_nothing(store: Store) -> None:
    made = store.create(RESOURCE_SLICES, gpu_slice())
    store.replace(RESOURCE_SLICES, made)
    assert str(store.version) == made["metadata"]["resourceVersion"]


def test_replace_of_the_object_leaves_the_status(store: Store) -> None:
    made = allocated(store)
    made["metadata"]["labels"] = {"a": "b"}
    made.pop("status")
    assert store.replace(RESOURCE_CLAIMS, made)["status"]["allocation"]


def test_replace_of_the_status_leaves_the_object(store: Store) -> None:
    made = store.create(RESOURCE_CLAIMS, claim())
    made["metadata"]["labels"] = {"a": "b"}
    assert "labels" not in store.replace(RESOURCE_CLAIMS, made, status=True)["metadata"]


def test_claim_spec_is_immutable(store: Store) -> None:
    made = store.create(RESOURCE_CLAIMS, claim())
    made["spec"]["devices"]["requests"][0]["name"] = "other"
    with pytest.raises(StatusError, match="spec: Invalid value: field is immutable") as caught:
        store.replace(RESOURCE_CLAIMS, made)
    assert caught.value.status == 422


def test_allocation_cannot_be_swapped(store: Store) -> None:
    made = allocated(store)
    made["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1"
    with pytest.raises(StatusError, match=r"status\.allocation: Invalid value"):
        store.replace(RESOURCE_CLAIMS, made, status=True)


def test_reservation_needs_an_allocation(store: Store) -> None:
    made = store.create(RESOURCE_CLAIMS, claim())
    made["status"] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]}
    with pytest.raises(StatusError, match=r"status\.reservedFor: Forbidden"):
        store.replace(RESOURCE_CLAIMS, made, status=True)


def test_patch_merges_and_null_removes(store: Store) -> None:
    store.create(NODES, {"metadata": {"name": "n", "labels": {"a": "1", "b": "2"}}})
    patched = store.patch(NODES, "n", {"metadata": {"labels": {"a": None, "c": "3"}}})
    assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}


@pytest.mark.parametrize("precondition", [{"uid": "another"}, {"resource_version": "1"}], ids=["uid", "version"])
def test_delete_refuses_a_precondition_that_does_not_hold(store: Store, precondition: dict[str, Any]) -> None:
    store.create(RESOURCE_SLICES, gpu_slice())
    with pytest.raises(StatusError, match="Precondition failed") as caught:
        store.delete(RESOURCE_SLICES, "00000-node-a", **precondition)
    assert caught.value.status == 409


def test_delete_waits_for_finalizers(store: Store) -> None:
    body = claim()
    body["metadata"]["finalizers"] = ["example.com/hold"]
    store.create(RESOURCE_CLAIMS, body)
    marked = store.delete(RESOURCE_CLAIMS, "claim", "default")
    assert store.get(RESOURCE_CLAIMS, "claim", "default")["metadata"]["deletionTimestamp"]
    marked["metadata"]["finalizers"] = []
    store.replace(RESOURCE_CLAIMS, marked)
    assert store.find(RESOURCE_CLAIMS) == []


def test_delete_of_a_bound_pod_waits_for_the_kubelet(store: Store) -> None:
    body = pod("p", claim_name="claim")
    body["spec"]["nodeName"] = "node-a"
    store.create(PODS, body)
    store.delete(PODS, "p", "default")
    assert store.get(PODS, "p", "default")["metadata"]["deletionGracePeriodSeconds"] == 30
    store.delete(PODS, "p", "default", grace_seconds=0)
    assert store.find(PODS) == []


def test_delete_of_an_unbound_pod_is_immediate(store: Store) -> None:
    store.create(PODS, pod("p", claim_name="claim"))
    store.delete(PODS, "p", "default")
    assert store.find(PODS) == []


def test_status_update_does_not_end_a_pod_that_is_leaving(store: Store) -> None:
    body = pod("p", claim_name="claim")
    body["spec"]["nodeName"] = "node-a"
    store.create(PODS, body)
    store.delete(PODS, "p", "default")
    store.patch(PODS, "p", {"status": {"phase": "Succeeded"}}, "default", status=True)
    assert store.get(PODS, "p", "default")["status"]["phase"] == "Succeeded"


def test_find_by_field(store: Store) -> None:
    store.create(RESOURCE_SLICES, gpu_slice(name="mine"))
    other = gpu_slice(name="other")
    other["spec"]["nodeName"] = "node-b"
    store.create(RESOURCE_SLICES, other)
    found = store.find(RESOURCE_SLICES, fields="spec.driver=gpu.nvidia.com,spec.nodeName=node-a")
    assert [s["metadata"]["name"] for s in found] == ["mine"]


def test_changes_since_a_version_are_in_order(store: Store) -> None:
    before = store.version
    store.create(NODES, {"metadata": {"name": "n"}})
    store.patch(NODES, "n", {"metadata": {"labels": {"a": "b"}}})
    store.delete(NODES, "n")
    assert [change.action for change in store.changes_since(NODES, before)] == ["ADDED", "MODIFIED", "DELETED"]


def test_changes_of_other_types_do_not_show(store: Store) -> None:
    before = store.version
    store.create(NODES, {"metadata": {"name": "n"}})
    assert store.changes_since(PODS, before) == []


def test_changes_older_than_the_history_are_gone() -> None:
    store = Store(history=2)
    before = store.version
    for number in range(3):
        store.create(NODES, {"metadata": {"name": f"n{number}"}})
    with pytest.raises(StatusError, match="too old resource version") as caught:
        store.changes_since(NODES, before)
    assert caught.value.status == 410


def test_wait_for_sees_a_write_of_another_thread(store: Store) -> None:
    writer = threading.Timer(0.05, store.create, (NODES, {"metadata": {"name": "n"}}))
    writer.start()
    assert store.wait_for(lambda: store.find(NODES), 10)
    writer.join()


def test_wait_for_gives_up(store: Store) -> None:
    assert store.wait_for(lambda: store.find(NODES), 0.05) is None
