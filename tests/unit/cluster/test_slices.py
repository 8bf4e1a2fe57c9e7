"""ApiSlices, and the same behaviour of it and of the fake that the publisher's tests rely on."""

import json
import threading
from collections.abc import Iterator

import pytest

from dra_driver.cluster.connection import Connection
from dra_driver.cluster.slices import ApiSlices
from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.ports import Json, SliceStore
from dra_driver.slices.build import build_slices, slice_objects
from dra_driver.slices.pacing import Timing
from dra_driver.slices.publisher import SlicePublisher
from tests.fakes.cluster import FakeEvents, FakeNode, FakeReadiness, FakeSliceStore
from tests.unit.cluster.server import Answer, Request, Server, status
from tests.unit.slices.devices import DRIVER, gpu

PATH = "/apis/resource.k8s.io/v1/resourceslices"


def wanted(*minors: int) -> Json:
    return slice_objects(build_slices([gpu(minor) for minor in minors], DRIVER, "node-1"), "node-1", "uid-1", 1)[0]


class Served:
    """An HTTP API in front of the fake."""

    def __init__(self, store: FakeSliceStore) -> None:
        self._store = store

    def __call__(self, request: Request) -> Answer:
        try:
            return {"GET": self._get, "POST": self._post, "PUT": self._put, "DELETE": self._delete}[request.method](
                request
            )
        except ApiError as error:
            return status(error.status, str(error))

    def _get(self, request: Request) -> Answer:
        if request.query.get("watch"):
            return Answer(200, self._events(request))
        items, version = self._store.list()
        bare = [{name: item[name] for name in ("metadata", "spec")} for item in items]
        return Answer(200, {"metadata": {"resourceVersion": version}, "items": bare})

    def _events(self, request: Request) -> Iterator[bytes]:
        limit = float(request.query["timeoutSeconds"])
        for kind, item in self._store.watch(request.query["resourceVersion"], limit):
            yield json.dumps({"type": kind, "object": item}).encode() + b"\n"

    def _post(self, request: Request) -> Answer:
        return Answer(201, self._store.create(request.body))

    def _put(self, request: Request) -> Answer:
        assert request.path == f"{PATH}/{request.body['metadata']['name']}"
        return Answer(200, self._store.replace(request.body))

    def _delete(self, request: Request) -> Answer:
        name = request.path.rpartition("/")[2]
        if all(item["metadata"]["name"] != name for item in self._store.objects):
            return status(404, "not found")
        self._store.delete({"metadata": {"name": name, **request.body["preconditions"]}})
        return Answer(200, {"kind": "Status", "status": "Success"})


@pytest.fixture
def memory() -> Iterator[FakeSliceStore]:
    store = FakeSliceStore()
    yield store
    store.close()


@pytest.fixture(params=["fake", "http"])
def store(request: pytest.FixtureRequest, memory: FakeSliceStore, server: Server, connection: Connection) -> SliceStore:
    if request.param == "fake":
        return memory
    server.answer = Served(memory)
    return ApiSlices(connection, "node-1")


def test_created_slice_is_returned_as_stored_and_listed(store: SliceStore) -> None:
    created = store.create(wanted(0))
    assert created["metadata"]["name"].startswith("00000-gpu.nvidia.com-node-1-")
    assert store.list()[0] == [created]


def test_replaced_slice_has_a_new_version(store: SliceStore) -> None:
    created = store.create(wanted(0))
    replaced = store.replace({**created, "spec": wanted(0, 1)["spec"]})
    assert replaced["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]
    assert store.list()[0] == [replaced]


def test_replacing_an_old_version_is_a_conflict(store: SliceStore) -> None:
    created = store.create(wanted(0))
    store.replace(created)
    with pytest.raises(ApiError) as raised:
        store.replace(created)
    assert raised.value.status == 409


def test_replacing_what_is_gone_is_not_found(store: SliceStore) -> None:
    created = store.create(wanted(0))
    store.delete(created)
    with pytest.raises(ApiError) as raised:
        store.replace(created)
    assert raised.value.status == 404


def test_deleting_what_changed_meanwhile_is_a_conflict(store: SliceStore) -> None:
    created = store.create(wanted(0))
    store.replace(created)
    with pytest.raises(ApiError) as raised:
        store.delete(created)
    assert raised.value.status == 409


def test_deleting_twice_is_success(store: SliceStore) -> None:
    created = store.create(wanted(0))
    store.delete(created)
    store.delete(created)
    assert store.list()[0] == []


def test_watch_tells_what_happens_after_the_list(store: SliceStore) -> None:
    first = store.create(wanted(0))
    _, version = store.list()
    store.replace(first)
    second = store.create(wanted(1))
    store.delete(second)
    events = store.watch(version, 1.0)
    assert [next(events)[0] for _ in range(3)] == ["MODIFIED", "ADDED", "DELETED"]


def test_list_and_watch_ask_for_this_nodes_slices_of_this_driver_only(server: Server, connection: Connection) -> None:
    slices = ApiSlices(connection, "node-1")
    server.answer = lambda request: Answer(200, {} if not request.query.get("watch") else b"")
    slices.list()
    list(slices.watch("7", 30.0))
    selectors = [request.query["fieldSelector"] for request in server.requests]
    assert selectors == ["spec.driver=gpu.nvidia.com,spec.nodeName=node-1"] * 2


def test_watch_asks_for_bookmarks_and_an_end(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, b"")
    list(ApiSlices(connection, "node-1").watch("7", 30.2))
    query = server.requests[0].query
    assert (query["resourceVersion"], query["allowWatchBookmarks"], query["timeoutSeconds"]) == ("7", "true", "30")


def test_missing_api_is_explained(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(404, b"404 page not found")
    with pytest.raises(ApiError, match=r"404 page not found; .*resource.k8s.io/v1.*1\.34"):
        ApiSlices(connection, "node-1").list()


def watched(server: Server, connection: Connection, *events: object) -> Iterator[tuple[str, Json]]:
    text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    server.answer = lambda request: Answer(200, text)
    return ApiSlices(connection, "node-1").watch("7", 5.0)


def test_bookmarks_are_passed_on(server: Server, connection: Connection) -> None:
    bookmark = {"metadata": {"resourceVersion": "12"}}
    events = watched(server, connection, {"type": "BOOKMARK", "object": bookmark})
    assert list(events) == [("BOOKMARK", bookmark)]


def test_error_within_a_watch_is_raised_with_its_status(server: Server, connection: Connection) -> None:
    expired = {"kind": "Status", "code": 410, "message": "too old resource version"}
    with pytest.raises(ApiError, match="too old") as raised:
        list(watched(server, connection, {"type": "ERROR", "object": expired}))
    assert raised.value.status == 410


@pytest.mark.parametrize("event", [{}, {"type": "ADDED"}, {"type": 1, "object": {}}, {"type": "ERROR", "object": {}}])
def test_odd_watch_event_is_unreachable(server: Server, connection: Connection, event: object) -> None:
    with pytest.raises(ApiUnreachable):
        list(watched(server, connection, event))


def test_publisher_restores_deleted_slices_over_http(
    memory: FakeSliceStore, server: Server, connection: Connection
) -> None:
    server.answer = Served(memory)
    publisher = SlicePublisher(
        ApiSlices(connection, "node-1"),
        FakeNode(),
        "node-1",
        FakeEvents(),
        FakeReadiness(),
        timing=Timing(debounce_s=0.01, rewatch_s=0.01),
    )
    publisher.start()
    publisher.publish(build_slices([gpu(0)], DRIVER, "node-1"))
    assert publisher.wait(5.0)
    before = memory.objects[0]["metadata"]["uid"]
    memory.remove_all()
    pause = threading.Event()
    for _ in range(500):
        if memory.objects:
            break
        pause.wait(0.01)
    assert memory.objects[0]["metadata"]["uid"] != before
    publisher.stop()
