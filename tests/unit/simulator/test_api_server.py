"""The simulated API server over real HTTP."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model.errors import DriverError
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.faults import Fault
from dra_driver.simulator.kinds import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.unit.simulator.builders import claim, gpu_slice

Json = dict[str, Any]
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class Client:
    """One keep-alive connection."""

    def __init__(self, server: ApiServer) -> None:
        self.connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Json]:
        content = None if body is None else json.dumps(body)
        self.connection.request(method, path, content, {"Content-Type": kind})
        response = self.connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else {}

    def events(self, path: str) -> Iterator[Json]:
        self.connection.request("GET", path)
        response = self.connection.getresponse()
        while line := response.readline():
            yield json.loads(line)


@pytest.fixture(scope="module")
def running() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def server(running: ApiServer) -> Iterator[ApiServer]:
    yield running
    for kind in (NODES, RESOURCE_CLAIMS, RESOURCE_SLICES):
        for left in running.store.find(kind):
            running.store.delete(kind, left["metadata"]["name"], left["metadata"].get("namespace", ""))
    running.faults.clear()
    running.forget_seen()


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    one = Client(server)
    yield one
    one.connection.close()


def test_create_answers_201_with_the_object(client: Client) -> None:
    status, made = client.call("POST", SLICES, gpu_slice())
    assert (status, made["metadata"]["name"]) == (201, "00000-node-a")


def test_get_gives_what_was_stored(server: ApiServer, client: Client) -> None:
    made = server.store.create(RESOURCE_CLAIMS, claim())
    assert client.call("GET", f"{CLAIMS}/claim") == (200, made)


def test_missing_object_is_a_status(client: Client) -> None:
    status, body = client.call("GET", f"{CLAIMS}/none")
    assert (status, body["kind"], body["reason"]) == (404, "Status", "NotFound")
    assert body["message"] == 'resourceclaims.resource.k8s.io "none" not found'


@pytest.mark.parametrize("path", ["/apis/apps/v1/deployments", "/api/v1/secrets", "/api/v1/nodes/n/exec", "/nowhere"])
def test_unknown_path_is_404(client: Client, path: str) -> None:
    assert client.call("GET", path)[0] == 404


def test_list_items_carry_no_type(server: ApiServer, client: Client) -> None:
    server.store.create(RESOURCE_SLICES, gpu_slice())
    _, listed = client.call("GET", SLICES)
    assert (listed["kind"], listed["metadata"]["resourceVersion"]) == ("ResourceSliceList", str(server.store.version))
    assert "kind" not in listed["items"][0]


def test_list_selects_by_fields(server: ApiServer, client: Client) -> None:
    server.store.create(RESOURCE_SLICES, gpu_slice())
    _, listed = client.call("GET", f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-b")
    assert listed["items"] == []


def test_list_goes_on_where_the_page_ended(server: ApiServer, client: Client) -> None:
    for number in range(3):
        server.store.create(NODES, {"metadata": {"name": f"n{number}"}})
    _, first = client.call("GET", "/api/v1/nodes?limit=2")
    _, rest = client.call("GET", f"/api/v1/nodes?limit=2&continue={first['metadata']['continue']}")
    assert [n["metadata"]["name"] for n in first["items"] + rest["items"]] == ["n0", "n1", "n2"]
    assert "continue" not in rest["metadata"]


def test_replace_with_an_old_version_is_409(client: Client) -> None:
    _, made = client.call("POST", SLICES, gpu_slice())
    client.call("PUT", f"{SLICES}/00000-node-a", {**made, "spec": gpu_slice(1)["spec"]})
    assert client.call("PUT", f"{SLICES}/00000-node-a", made)[0] == 409


def test_replace_under_another_name_is_400(client: Client) -> None:
    client.call("POST", SLICES, gpu_slice())
    assert client.call("PUT", f"{SLICES}/other", gpu_slice())[0] == 400


def test_bad_slice_is_422(client: Client) -> None:
    status, body = client.call("POST", SLICES, gpu_slice(resourceSliceCount=0))
    assert (status, body["reason"]) == (422, "Invalid")


def test_status_goes_through_its_own_path(client: Client) -> None:
    _, made = client.call("POST", CLAIMS, claim())
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    assert client.call("PUT", f"{CLAIMS}/claim/status", made)[1]["status"] == made["status"]


def test_merge_patch_is_the_only_patch(client: Client) -> None:
    client.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    patch = {"metadata": {"labels": {"a": "b"}}}
    assert client.call("PATCH", "/api/v1/nodes/n", patch, "application/json-patch+json")[0] == 415
    _, patched = client.call("PATCH", "/api/v1/nodes/n", patch, "application/merge-patch+json")
    assert patched["metadata"]["labels"] == {"a": "b"}


def test_delete_checks_the_preconditions_of_its_body(client: Client) -> None:
    _, made = client.call("POST", SLICES, gpu_slice())
    wrong = {"preconditions": {"uid": made["metadata"]["uid"], "resourceVersion": "1"}}
    right = {"preconditions": {"uid": made["metadata"]["uid"]}}
    statuses = [client.call("DELETE", f"{SLICES}/00000-node-a", body)[0] for body in (wrong, right, right)]
    assert statuses == [409, 200, 404]


@pytest.mark.parametrize(
    "body", ["[]", "{", "3", '{"metadata": 3}', "\xff"], ids=["list", "broken", "number", "bad metadata", "bytes"]
)
def test_body_that_is_no_object_is_400(client: Client, body: str) -> None:
    client.connection.request("POST", SLICES, body.encode("latin-1"))
    response = client.connection.getresponse()
    response.read()
    assert response.status == 400


@pytest.mark.parametrize(
    "path",
    [
        f"{SLICES}?limit=many",
        f"{SLICES}?continue=%21",
        f"{SLICES}?watch=1&resourceVersion=-3",
        f"{SLICES}?watch=1&timeoutSeconds=x",
        f"{SLICES}?fieldSelector=spec.pool.name%3Dx",
    ],
)
def test_query_that_makes_no_sense_is_400(client: Client, path: str) -> None:
    assert client.call("GET", path)[0] == 400


def test_watch_from_a_version_shows_what_came_after(server: ApiServer, client: Client) -> None:
    server.store.create(RESOURCE_SLICES, gpu_slice(name="before"))
    since = server.store.version
    server.store.create(RESOURCE_SLICES, gpu_slice(name="after"))
    server.store.delete(RESOURCE_SLICES, "after")
    events = list(client.events(f"{SLICES}?watch=true&resourceVersion={since}&timeoutSeconds=0"))
    assert [(e["type"], e["object"]["metadata"]["name"]) for e in events] == [("ADDED", "after"), ("DELETED", "after")]


def test_watch_sees_writes_while_it_runs(server: ApiServer, client: Client) -> None:
    events = client.events(f"{SLICES}?watch=true&resourceVersion={server.store.version}&timeoutSeconds=20")
    server.store.create(RESOURCE_SLICES, gpu_slice())
    assert next(events)["type"] == "ADDED"


def test_watch_without_a_version_begins_with_what_is_there(server: ApiServer, client: Client) -> None:
    server.store.create(RESOURCE_SLICES, gpu_slice())
    assert [e["type"] for e in client.events(f"{SLICES}?watch=true&timeoutSeconds=0")] == ["ADDED"]


def test_watch_with_a_selector_turns_leaving_into_deleted(server: ApiServer, client: Client) -> None:
    server.store.create(NODES, {"metadata": {"name": "n", "labels": {"a": "b"}}})
    since = server.store.version
    server.store.patch(NODES, "n", {"metadata": {"labels": {"a": "c"}}})
    path = f"/api/v1/nodes?watch=true&resourceVersion={since}&labelSelector=a%3Db&timeoutSeconds=0"
    assert [e["type"] for e in client.events(path)] == ["DELETED"]


def test_watch_from_a_forgotten_version_is_an_error_event(server: ApiServer, client: Client) -> None:
    since = server.store.version
    server.store.create(RESOURCE_SLICES, gpu_slice())
    server.store.forget_history()
    (event,) = client.events(f"{SLICES}?watch=true&resourceVersion={since}&timeoutSeconds=20")
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_watch_sends_bookmarks_when_asked(server: ApiServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.simulator.watches.BOOKMARK_SECONDS", 0.05)
    path = f"{SLICES}?watch=true&allowWatchBookmarks=true&resourceVersion={server.store.version}&timeoutSeconds=20"
    event = next(client.events(path))
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", str(server.store.version))


def test_stop_ends_watches_and_the_port_can_be_used_again(server: ApiServer, client: Client) -> None:
    events = client.events(f"{SLICES}?watch=true&resourceVersion={server.store.version}")
    server.store.create(RESOURCE_SLICES, gpu_slice())
    next(events)
    server.stop()
    assert list(events) == []
    server.start()
    again = Client(server)
    assert again.call("GET", f"{SLICES}/00000-node-a")[0] == 200
    again.connection.close()


def test_ordered_refusals_come_and_end(server: ApiServer, client: Client) -> None:
    server.faults.order(Fault(status=503, retry_after=1), times=2, method="GET", path="resourceslices")
    assert [client.call("GET", SLICES)[0] for _ in range(3)] == [503, 503, 200]


def test_ordered_refusal_leaves_other_requests_alone(server: ApiServer, client: Client) -> None:
    server.faults.order(Fault(status=500), method="POST")
    assert client.call("GET", SLICES)[0] == 200


def test_ordered_drop_breaks_the_answer_off(server: ApiServer, client: Client) -> None:
    server.faults.order(Fault(drop=True))
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        client.call("GET", SLICES)


def test_requests_are_remembered(server: ApiServer, client: Client) -> None:
    client.call("GET", f"{SLICES}?limit=1")
    assert [(r.method, r.path, r.query) for r in server.seen] == [("GET", SLICES, {"limit": "1"})]


def test_kubeconfig_points_at_the_server(server: ApiServer, tmp_path: Path) -> None:
    written = json.loads(server.kubeconfig(tmp_path / "kubeconfig").read_text())
    assert written["clusters"][0]["cluster"]["server"] == server.url


def test_taken_port_is_named(server: ApiServer) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(DriverError, match=f"cannot listen on 127.0.0.1:{port}"):
        ApiServer(port=port).start()


def test_discovery_lists_what_is_served(client: Client) -> None:
    _, found = client.call("GET", "/apis/resource.k8s.io/v1")
    assert {"resourceslices", "resourceclaims", "resourceclaims/status"} <= {r["name"] for r in found["resources"]}


def test_version_is_a_kubernetes_version(client: Client) -> None:
    assert client.call("GET", "/version")[1]["gitVersion"] == "v1.36.3"
