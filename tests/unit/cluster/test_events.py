import threading
from collections.abc import Iterator

import pytest

from dra_driver.cluster.connection import Connection
from dra_driver.cluster.events import ApiEvents, cut
from dra_driver.model.claims import PodRef
from tests.unit.cluster.server import Answer, Request, Server, status


@pytest.fixture
def events(connection: Connection) -> Iterator[ApiEvents]:
    sink = ApiEvents(connection, "node-1")
    yield sink
    sink.close()


def test_event_is_about_the_node(server: Server, events: ApiEvents) -> None:
    events.warning("ResourceSlicesRefused", "no")
    events.close()
    (seen,) = server.requests
    assert (seen.method, seen.path) == ("POST", "/api/v1/namespaces/default/events")
    assert seen.body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}


@pytest.mark.parametrize("kind", ["Warning", "Normal"])
def test_event_has_type_reason_and_message(server: Server, events: ApiEvents, kind: str) -> None:
    (events.warning if kind == "Warning" else events.normal)("Why", "what")
    events.close()
    body = server.requests[0].body
    assert (body["type"], body["reason"], body["message"], body["count"]) == (kind, "Why", "what", 1)
    assert body["source"] == {"component": "dra-driver-gpu", "host": "node-1"}


def test_same_event_again_is_only_counted(server: Server, events: ApiEvents) -> None:
    for _ in range(5):
        events.warning("Why", "what")
    events.close()
    assert len(server.requests) == 1


def test_same_event_after_a_while_raises_the_count_of_the_stored_one(server: Server, connection: Connection) -> None:
    events = ApiEvents(connection, "node-1", repeat_s=0.0)
    for _ in range(3):
        events.warning("Why", "what")
    events.close()
    created, *repeated = server.requests
    assert [(request.method, request.body["count"]) for request in repeated] == [("PATCH", 2), ("PATCH", 3)]
    assert repeated[0].path == f"/api/v1/namespaces/default/events/{created.body['metadata']['name']}"


def test_event_that_expired_is_made_anew(server: Server, connection: Connection) -> None:
    server.answer = lambda request: status(404, "gone") if request.method == "PATCH" else Answer(201, {})
    events = ApiEvents(connection, "node-1", repeat_s=0.0)
    events.warning("Why", "what")
    events.warning("Why", "what")
    events.close()
    assert [request.method for request in server.requests] == ["POST", "PATCH", "POST"]


def test_flood_of_events_is_cut_off(server: Server, events: ApiEvents) -> None:
    for number in range(40):
        events.warning("Why", f"what {number}")
    events.close()
    assert len(server.requests) == 25


def test_caller_is_not_held_up_by_a_silent_api_server(server: Server, events: ApiEvents) -> None:
    release = threading.Event()

    def silent(request: Request) -> Answer:
        release.wait(10.0)
        return Answer(201, {})

    server.answer = silent
    for number in range(200):
        events.warning("Why", f"what {number}")
    assert len(server.requests) <= 1
    release.set()


def test_refused_event_is_logged_and_the_next_is_written(
    server: Server, events: ApiEvents, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [status(403, "cannot create events"), Answer(201, {})]
    server.answer = lambda request: answers.pop(0)
    events.warning("Why", "one")
    events.warning("Why", "two")
    events.close()
    assert "cannot create events" in caplog.text
    assert [request.body["message"] for request in server.requests] == ["one", "two"]


def test_close_without_events_is_nothing(events: ApiEvents) -> None:
    events.close()


def test_name_is_valid_for_the_longest_node_name(server: Server, connection: Connection) -> None:
    events = ApiEvents(connection, "a" * 229 + "." + "b" * 23)
    events.warning("Why", "what")
    events.close()
    name = server.requests[0].body["metadata"]["name"]
    assert len(name) <= 253
    assert ".." not in name


@pytest.mark.parametrize(
    ("message", "written"),
    [("a\n b\t c", "a b c"), ("x" * 2000, "x" * 1024), ("x" * 1023 + "é", "x" * 1023), ("", "")],
)
def test_message_is_one_line_of_1024_bytes(message: str, written: str) -> None:
    assert cut(message) == written


POD = PodRef("team-a", "greedy", "0b1c2d3e-4f50-4a61-8b72-93a4b5c6d7e8")


def test_event_about_a_pod_is_in_its_namespace(server: Server, events: ApiEvents) -> None:
    events.pod_warning(POD, "Why", "what")
    events.close()
    (seen,) = server.requests
    assert (seen.method, seen.path) == ("POST", "/api/v1/namespaces/team-a/events")
    assert seen.body["metadata"]["namespace"] == "team-a"
    assert (seen.body["type"], seen.body["reason"], seen.body["message"]) == ("Warning", "Why", "what")
    assert seen.body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team-a",
        "name": "greedy",
        "uid": POD.uid,
    }


def test_same_words_about_node_and_pod_are_two_events(server: Server, events: ApiEvents) -> None:
    events.warning("Why", "what")
    events.pod_warning(POD, "Why", "what")
    events.close()
    assert [request.body["involvedObject"]["kind"] for request in server.requests] == ["Node", "Pod"]
