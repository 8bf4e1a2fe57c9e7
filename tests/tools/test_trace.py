"""The recorder: what passes through the relay, what is told of it, and what is made of an audit log."""

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from dra_driver.kubelet.registration import Registrar
from dra_driver.kubelet.server import DraServer
from dra_driver.kubelet.sockets import target
from dra_driver.model.errors import BadConfig
from dra_driver.model.health import DeviceHealth, Health
from dra_driver_api.kubelet import dra_pb2, health_pb2, health_pb2_grpc, registration_pb2
from hack.trace import audit, events
from hack.trace.events import Event
from hack.trace.files import Files
from hack.trace.relay import Relay
from tests.grpc import helpers
from tests.grpc.helpers import Remembering, Service, wait_until

UID = "12345678-1234-1234-1234-123456789abc"
HEALTHY = DeviceHealth(pool="node-a", device="gpu-0", health=Health.HEALTHY)


class Node:
    """A driver's sockets, the kubelet's registry, a relay between them, and its record."""

    def __init__(self, home: Path) -> None:
        self.record: list[Event] = []
        self.service = Service()
        self.registration = home / "kubelet" / "gpu.nvidia.com-reg.sock"
        self._registry = home / "driver"
        self._dra_socket = home / "dra.sock"
        self._stopping = threading.Event()
        self.registration.parent.mkdir()
        self._relay = Relay(self._registry, self.registration.parent, self.record.append)
        self._thread = threading.Thread(target=self._relay.run, args=(self._stopping,))
        self._thread.start()
        wait_until(self._registry.is_dir)
        self.start_driver()

    def start_driver(self) -> None:
        self._dra = DraServer(self._dra_socket, helpers.services(self.service, lambda: [HEALTHY]), Remembering())
        self._registrar = Registrar(self._registry / self.registration.name, "gpu.nvidia.com", self._dra_socket)
        self._dra.start()
        self._registrar.start()
        wait_until(self.registration.exists)

    def stop_driver(self) -> None:
        self._registrar.stop(1)
        self._dra.stop(1)

    def close(self) -> None:
        self.stop_driver()
        self._stopping.set()
        self._thread.join(10)

    def said(self, beginning: str) -> list[Event]:
        return [event for event in self.record if event.what.startswith(beginning)]


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dra-") as home:  # tmp_path is too long for a socket below it
        made = Node(Path(home))
        try:
            yield made
        finally:
            made.close()


@contextmanager
def watched(directory: Path) -> Iterator[list[Event]]:
    found: list[Event] = []
    stopping = threading.Event()
    Files([directory], found.append).start(stopping)
    try:
        yield found
    finally:
        stopping.set()


def entry(**more: object) -> str:
    common = {
        "verb": "get",
        "stage": "ResponseComplete",
        "user": {"username": "system:serviceaccount:dra-driver-gpu:dra-driver-gpu"},
        "requestURI": "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/shared",
        "objectRef": {"resource": "resourceclaims", "namespace": "default", "name": "shared"},
        "responseStatus": {"code": 200},
        "requestReceivedTimestamp": "2026-01-01T00:00:01.500000Z",
        "stageTimestamp": "2026-01-01T00:00:01.502500Z",
    }
    return json.dumps(common | more)


def test_kubelet_is_led_to_the_relay_and_the_record_says_what_the_driver_answered(node: Node) -> None:
    info = helpers.register(node.registration)
    (told,) = node.said("GetInfo")
    assert info.endpoint != str(node._dra_socket)
    assert f"endpoint: {node._dra_socket}" in told.answer
    assert node.said("NotifyRegistrationStatus")[0].what == "NotifyRegistrationStatus {plugin_registered: true}"


def test_prepare_reaches_the_driver_and_its_answer_the_kubelet(node: Node) -> None:
    socket = Path(helpers.register(node.registration).endpoint)
    answer = helpers.prepare(socket, helpers.claim(UID))
    assert [device.device_name for device in answer[UID].devices] == ["gpu-0"]
    (told,) = node.said("NodePrepareResources")
    assert (f"uid: {UID}" in told.what, "device_name: gpu-0" in told.answer) == (True, True)
    assert told.ms is not None


def test_refusal_of_a_claim_is_recorded_in_words(node: Node) -> None:
    socket = Path(helpers.register(node.registration).endpoint)
    node.service.on[UID] = BadConfig("unknown strategy")
    assert helpers.prepare(socket, helpers.claim(UID))[UID].error == "unknown strategy"
    assert "error: unknown strategy" in node.said("NodePrepareResources")[0].answer


def test_failed_call_keeps_its_code_and_reason(node: Node) -> None:
    with grpc.insecure_channel(target(node.registration)) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/no.such.Service/Call", bytes, bytes)(b"", timeout=10)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    wait_until(lambda: bool(node.said("Call")))
    assert node.said("Call")[0].answer.startswith("UNIMPLEMENTED")


def test_health_stream_goes_on_until_the_driver_stops(node: Node) -> None:
    socket = Path(helpers.register(node.registration).endpoint)
    with helpers.health_stream(socket) as stream:
        assert helpers.healths(stream) == {"gpu-0": "HEALTHY"}
        node.stop_driver()
        assert list(stream) == []
    assert "device_name: gpu-0" in node.said("NodeWatchResources")[1].answer
    wait_until(lambda: bool(node.said("end of NodeWatchResources")))


def test_call_without_a_time_limit_is_passed_on_without_one(node: Node) -> None:
    socket = Path(helpers.register(node.registration).endpoint)
    with grpc.insecure_channel(target(socket)) as channel:
        stream = health_pb2_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
            health_pb2.NodeWatchResourcesRequest()
        )
        assert helpers.healths(stream) == {"gpu-0": "HEALTHY"}


def test_kubelet_sees_the_driver_go_and_come_back(node: Node) -> None:
    first = node.registration.lstat().st_ctime_ns
    socket = Path(helpers.register(node.registration).endpoint)
    node.stop_driver()
    wait_until(lambda: not node.registration.exists() and not socket.exists())
    node.start_driver()
    assert node.registration.lstat().st_ctime_ns != first
    assert helpers.prepare(Path(helpers.register(node.registration).endpoint), helpers.claim(UID))[UID].devices


def test_files_that_are_put_in_place_and_removed_are_told_by_their_names(tmp_path: Path) -> None:
    with watched(tmp_path) as found:
        (tmp_path / ".new").write_text("x")
        (tmp_path / ".new").rename(tmp_path / "claim.yaml")
        (tmp_path / "claim.yaml").unlink()
        wait_until(lambda: len(found) == 2)
    assert [event.what for event in found] == [
        f"puts in place {tmp_path}/claim.yaml",
        f"removes {tmp_path}/claim.yaml",
    ]


def test_audit_log_tells_what_the_driver_asked_and_how_long_it_took() -> None:
    (told,) = audit.events([entry()])
    assert (told.who, told.what) == ("driver -> API server", "get resourceclaims/default/shared")
    assert (told.answer, told.ms) == ("200", 2.5)


def test_watch_is_told_when_it_opens() -> None:
    lines = [entry(verb="watch", stage=stage) for stage in ("ResponseStarted", "ResponseComplete")]
    assert [told.ms for told in audit.events(lines)] == [None]


def test_of_the_kubelets_events_only_failed_prepares_are_told() -> None:
    kubelet = {"username": "system:node:node-1"}
    where = {"resource": "events", "namespace": "default", "name": "pod.1"}
    lines = [
        entry(verb="create", user=kubelet, objectRef=where, requestObject={"reason": reason, "message": "because"})
        for reason in ("Pulled", audit.FAILED)
    ]
    (told,) = audit.events(lines)
    assert told.what == f"create events/default/pod.1 {audit.FAILED}: because"


def test_answer_is_told_after_what_the_call_made_the_driver_do() -> None:
    call = Event(at=1.0, who=events.CALL, what="NodePrepareResources {}", answer="{claims: {}}", ms=500)
    read = Event(at=1.2, who="driver -> API server", what="get resourceclaims/default/shared", answer="200", ms=2)
    told = [(part.at, part.who, part.what, part.answer) for part in events.story([call, read])]
    assert told == [
        (1.0, "kubelet -> driver", "NodePrepareResources {}", ""),
        (1.2, "driver -> API server", "get resourceclaims/default/shared", "200"),
        (1.5, "driver -> kubelet", "NodePrepareResources", "{claims: {}}"),
    ]


def test_health_that_only_repeats_the_message_before_is_left_out() -> None:
    answers = [f"{{devices: [{'gpu-0, ' * 20}], health: {h}, last_updated_time: '{t}'}}" for t, h in enumerate("AAB")]
    told = [Event(at=0, who=events.ANSWER, what="NodeWatchResources", answer=answer) for answer in answers]
    assert list(events.story(told)) == [told[0], told[2]]


def test_refusal_that_is_repeated_is_told_once_but_each_call_is_shown() -> None:
    refused = [Event(at=at, who=events.CALL, what="NodePrepareResources", answer="no " * 50, ms=1.0) for at in (1, 2)]
    assert [part.answer for part in events.story(refused) if part.ms] == ["no " * 50, "as before"]


def test_shown_line_is_no_wider_than_asked() -> None:
    event = Event(at=3.5, who=events.CALL, what="NodePrepareResources", answer="word " * 40, ms=1.25)
    lines = events.show(event, 1.0, 80).splitlines()
    assert lines[0].startswith("  +2.500  kubelet -> driver")
    assert (len(lines) > 1, max(map(len, lines)) <= 80, lines[-1].endswith("(1.2 ms)")) == (True, True, True)


def test_event_survives_its_line_of_json() -> None:
    event = Event(at=time.time(), who="kubelet -> driver", what="GetInfo", answer="{}", ms=0.5)
    assert events.load([events.dump(event)]) == [event]


def test_what_cannot_be_decoded_is_told_by_its_size() -> None:
    assert events.answer_text("/no.such.Service/Call", b"123") == "3 bytes"
    assert "1 bytes that are no k8s.io" in events.request_text(
        "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", b"\xff"
    )


def test_shown_uid_is_cut_also_in_the_name_of_a_file() -> None:
    event = Event(at=0, who=events.DISK, what=f"removes /var/run/cdi/k8s.gpu.nvidia.com-claim_{UID}.yaml")
    assert events.show(event, 0).endswith("k8s.gpu.nvidia.com-claim_12345678….yaml")


def test_request_is_told_by_the_names_of_its_fields() -> None:
    claim = dra_pb2.NodePrepareResourcesRequest(claims=[helpers.claim("uid-1")]).SerializeToString()
    text = events.request_text("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", claim)
    assert text == "{claims: [{namespace: default, uid: uid-1, name: claim-1}]}"


def test_empty_message_is_no_text() -> None:
    assert (
        events.request_text(
            "/pluginregistration.Registration/GetInfo", registration_pb2.InfoRequest().SerializeToString()
        )
        == ""
    )
