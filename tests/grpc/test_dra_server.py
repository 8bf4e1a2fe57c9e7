import contextlib
import socket
import stat
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dra_driver.kubelet.server import DraServer
from dra_driver.kubelet.sockets import target
from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import BadConfig, CdiError, ControlTimeout
from dra_driver.observe.metrics import PrometheusRecorder
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc
from tests.grpc.helpers import Remembering, Service, claim, prepare, prepared, services, unprepare, wait_until


@pytest.fixture
def path(short_path: Path) -> Path:
    return short_path / "plugins" / "gpu.nvidia.com" / "dra.sock"


@pytest.fixture
def server(path: Path, service: Service, recorder: Remembering) -> Iterator[DraServer]:
    server = DraServer(path, services(service), recorder)
    server.start()
    yield server
    server.stop(0)


def test_prepare_answers_the_devices_of_a_claim(server: DraServer, service: Service) -> None:
    service.on["uid-1"] = [prepared("gpu-0", "a"), prepared("gpu-1", "b")]

    answer = prepare(server.path, claim("uid-1"))["uid-1"]

    assert answer.error == ""
    assert [(list(d.request_names), d.pool_name, d.device_name, list(d.cdi_device_ids)) for d in answer.devices] == [
        (["a"], "node-a", "gpu-0", ["k8s.gpu.nvidia.com/claim=uid-gpu-0"]),
        (["b"], "node-a", "gpu-1", ["k8s.gpu.nvidia.com/claim=uid-gpu-1"]),
    ]


def test_prepare_hands_on_who_the_claim_is(server: DraServer, service: Service) -> None:
    prepare(server.path, claim("uid-1", "shared", "team-a"))

    assert service.calls == [("prepare", ClaimRef("team-a", "shared", "uid-1"))]


def test_unprepare_answers_without_error(server: DraServer, service: Service) -> None:
    answers = unprepare(server.path, claim("uid-1"))

    assert answers["uid-1"].error == ""
    assert service.calls == [("unprepare", ClaimRef("default", "claim-1", "uid-1"))]


def test_unprepare_failure_is_that_claims_answer(server: DraServer, service: Service) -> None:
    service.on["bad"] = CdiError("/var/run/cdi is read-only")

    answers = unprepare(server.path, claim("bad"), claim("good"))

    assert answers["bad"].error == "/var/run/cdi is read-only"
    assert answers["good"].error == ""


def test_request_names_lose_the_subrequest(server: DraServer, service: Service) -> None:
    service.on["uid-1"] = [prepared("gpu-0", "gpu/large", "gpu/small", "other")]

    (device,) = prepare(server.path, claim("uid-1"))["uid-1"].devices

    assert device.request_names == ["gpu", "other"]


def test_share_id_is_given_when_the_device_is_shared(server: DraServer, service: Service) -> None:
    service.on["uid-1"] = [prepared("gpu-0", share_id="share-7")]

    (device,) = prepare(server.path, claim("uid-1"))["uid-1"].devices

    assert device.share_id == "share-7"


def test_share_id_is_absent_when_the_device_is_not_shared(server: DraServer) -> None:
    (device,) = prepare(server.path, claim("uid-1"))["uid-1"].devices

    assert not device.HasField("share_id")


def test_one_bad_claim_does_not_void_the_batch(server: DraServer, service: Service) -> None:
    service.on["bad"] = BadConfig("unknown interval")

    answers = prepare(server.path, claim("good"), claim("bad"))

    assert [d.device_name for d in answers["good"].devices] == ["gpu-0"]
    assert (answers["bad"].error, len(answers["bad"].devices)) == ("unknown interval", 0)


def test_unexpected_exception_is_that_claims_answer_and_logged_with_traceback(
    server: DraServer, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.on["bad"] = ZeroDivisionError("division by zero")

    answers = prepare(server.path, claim("bad"), claim("good"))

    assert answers["bad"].error == "internal error: ZeroDivisionError: division by zero"
    assert len(answers["good"].devices) == 1
    assert any(record.exc_info for record in caplog.records)


def test_answer_that_cannot_be_encoded_is_that_claims_error(server: DraServer, service: Service) -> None:
    service.on["bad"] = [prepared("gpu-\udcff")]

    answers = prepare(server.path, claim("bad"), claim("good"))

    assert answers["bad"].error.startswith("internal error: ")
    assert answers["good"].error == ""


def test_error_text_is_one_short_line(server: DraServer, service: Service) -> None:
    service.on["bad"] = BadConfig("first line\n\tsecond \x00 line \udcff" + "x" * 5000)

    error = prepare(server.path, claim("bad"))["bad"].error

    assert error.startswith("first line second line ?xxx")
    assert len(error) < 1000


def test_error_text_carries_what_failed_afterwards(server: DraServer, service: Service) -> None:
    error = ControlTimeout("nvidia-smi did not answer")
    error.add_note("undoing failed as well")
    service.on["bad"] = error

    assert prepare(server.path, claim("bad"))["bad"].error == "nvidia-smi did not answer; undoing failed as well"


def test_error_without_text_is_named_by_its_type(server: DraServer, service: Service) -> None:
    service.on["bad"] = CdiError()

    assert prepare(server.path, claim("bad"))["bad"].error == "CdiError"


def test_empty_request_has_an_empty_answer(server: DraServer) -> None:
    assert prepare(server.path) == {}
    assert unprepare(server.path) == {}


@pytest.mark.parametrize("field", ["namespace", "name", "uid"])
def test_claim_without_a_field_gets_an_error_that_names_it(server: DraServer, service: Service, field: str) -> None:
    incomplete = claim("uid-1")
    incomplete.ClearField(field)

    answers = prepare(server.path, incomplete)

    assert f"without {field}" in answers[incomplete.uid].error
    assert service.calls == []


@pytest.mark.parametrize("field", ["namespace", "name", "uid"])
def test_field_that_is_longer_than_any_name_is_refused_and_not_logged(
    server: DraServer, service: Service, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    huge = dra_pb2.Claim(**{"namespace": "default", "name": "claim-1", "uid": "uid-1", field: "n" * 1_000_000})

    prepared, unprepared = prepare(server.path, huge), unprepare(server.path, huge)

    for answer in (prepared[huge.uid], unprepared[huge.uid]):
        assert f"{field} has 1000000 characters, at most 253" in answer.error
    assert service.calls == []
    assert len(caplog.messages) == 2
    assert max(map(len, caplog.messages)) < 1000


def test_name_of_253_characters_is_handed_on(server: DraServer, service: Service) -> None:
    assert prepare(server.path, claim("uid-1", "n" * 253))["uid-1"].error == ""


def test_line_break_in_a_name_makes_no_second_log_line(
    server: DraServer, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.on["uid-1"] = BadConfig("no")

    prepare(server.path, claim("uid-1", "a\nINFO forged"))

    assert caplog.messages == ["claim default/a INFO forged (uid uid-1): prepare failed: no"]


@pytest.fixture
def sixteen_busy(server: DraServer, service: Service, recorder: Remembering) -> Iterator[threading.Event]:
    """Prepares of claims busy-0 to busy-19 as calls of their own, which hang until the event is set."""
    go_on = threading.Event()
    service.on = {f"busy-{n}": go_on.wait for n in range(20)}

    def call(uid: str) -> None:
        with contextlib.suppress(grpc.RpcError):  # a server that stops drops the call
            prepare(server.path, claim(uid))

    callers = [threading.Thread(target=call, args=(uid,)) for uid in service.on]
    for caller in callers:
        caller.start()
    wait_until(lambda: recorder.now["prepare"] == 20 and len(service.calls) >= 16)
    yield go_on
    go_on.set()
    for caller in callers:
        caller.join()


@pytest.mark.usefixtures("sixteen_busy")
def test_empty_request_and_unprepares_wait_for_no_prepare(server: DraServer) -> None:
    assert prepare(server.path) == {}
    assert unprepare(server.path, claim("a"))["a"].error == ""
    assert sorted(unprepare(server.path, claim("b"), claim("c"))) == ["b", "c"]


def test_sixteen_claims_are_prepared_at_a_time_and_the_others_afterwards(
    service: Service, sixteen_busy: threading.Event, recorder: Remembering
) -> None:
    assert len([uid for what, uid in service.calls if what == "prepare"]) == 16
    sixteen_busy.set()
    wait_until(lambda: recorder.calls["prepare"] == 20)


def test_claims_that_wait_are_told_when_the_driver_stops(
    server: DraServer, service: Service, sixteen_busy: threading.Event, recorder: Remembering
) -> None:
    server.stop(0)

    wait_until(lambda: recorder.errors == [("prepare", "lock_acquire")] * 4)


def test_uid_named_twice_is_prepared_once(server: DraServer, service: Service) -> None:
    answers = prepare(server.path, claim("uid-1"), claim("uid-1"), claim("uid-2"))

    assert sorted(answers) == ["uid-1", "uid-2"]
    assert sorted(ref.uid for _, ref in service.calls) == ["uid-1", "uid-2"]


def test_claims_of_one_call_are_prepared_at_the_same_time(server: DraServer, service: Service) -> None:
    meeting = threading.Barrier(2, timeout=5)
    service.on = dict.fromkeys(("uid-1", "uid-2"), meeting.wait)

    answers = prepare(server.path, claim("uid-1"), claim("uid-2"))

    assert [answer.error for answer in answers.values()] == ["", ""]


def test_calls_are_served_at_the_same_time(server: DraServer, service: Service) -> None:
    meeting = threading.Barrier(3, timeout=5)
    service.on = dict.fromkeys(("uid-1", "uid-2"), meeting.wait)
    errors: list[str] = []
    callers = [
        threading.Thread(target=lambda u=uid: errors.append(prepare(server.path, claim(u))[u].error))
        for uid in ("uid-1", "uid-2")
    ]
    for caller in callers:
        caller.start()
    meeting.wait()
    for caller in callers:
        caller.join()

    assert errors == ["", ""]


def test_many_claims_in_one_call_all_get_an_answer(server: DraServer) -> None:
    uids = [str(uuid.uuid4()) for _ in range(500)]

    answers = prepare(server.path, *(claim(uid) for uid in uids))

    assert sorted(answers) == sorted(uids)


def test_success_is_counted_a_claim(server: DraServer, recorder: Remembering) -> None:
    prepare(server.path, claim("uid-1"), claim("uid-2"))
    unprepare(server.path, claim("uid-1"))

    assert recorder.calls == {"prepare": 2, "unprepare": 1}


def test_failures_are_counted_by_kind_and_not_as_success(
    server: DraServer, service: Service, recorder: Remembering
) -> None:
    service.on = {"bad": BadConfig("no"), "broken": ZeroDivisionError()}

    prepare(server.path, claim("bad"), claim("broken"))
    unprepare(server.path, claim("bad"))

    assert sorted(recorder.errors) == [("prepare", "bad_config"), ("prepare", "internal"), ("unprepare", "bad_config")]
    assert recorder.calls == {}


def test_call_in_flight_is_counted_until_it_ends(server: DraServer, service: Service, recorder: Remembering) -> None:
    go_on = threading.Event()
    service.on["uid-1"] = go_on.wait
    caller = threading.Thread(target=prepare, args=(server.path, claim("uid-1")))
    caller.start()

    wait_until(lambda: recorder.now["prepare"] == 1)
    go_on.set()
    caller.join()

    assert recorder.now["prepare"] == 0


def test_metrics_after_calls(path: Path, service: Service) -> None:
    recorder = PrometheusRecorder("node-a")
    service.on["bad"] = BadConfig("no")
    server = DraServer(path, services(service), recorder)
    server.start()

    prepare(path, claim("good"), claim("bad"))
    server.stop(0)

    labels = {"driver": "gpu.nvidia.com", "operation": "prepare"}
    get = recorder.registry.get_sample_value
    assert get("nvidia_dra_requests_total", labels) == 1
    assert get("nvidia_dra_requests_inflight", labels) == 0
    assert get("nvidia_dra_request_failures_total", labels | {"error_type": "bad_config"}) == 1


def test_socket_is_for_root_alone(server: DraServer) -> None:
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700


def test_garbage_on_the_socket_hurts_no_other_client(server: DraServer) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as noisy:
        for client in (silent, noisy):
            client.settimeout(5)
            client.connect(str(server.path))
        noisy.sendall(b"\x00\xffGET / HTTP/1.1\r\n\r\n" * 1000)

        answers = prepare(server.path, claim("uid-1"))

    assert answers["uid-1"].error == ""


def test_message_that_is_no_request_is_refused_and_the_server_goes_on(server: DraServer) -> None:
    with grpc.insecure_channel(target(server.path)) as channel:
        method = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        call = channel.unary_unary(method, lambda raw: raw, lambda raw: raw)
        with pytest.raises(grpc.RpcError):
            call(b"\xff\xff\xff", timeout=5)

    assert prepare(server.path, claim("uid-1"))["uid-1"].error == ""


def test_message_over_the_limit_is_refused_and_the_server_goes_on(server: DraServer) -> None:
    with grpc.insecure_channel(target(server.path)) as channel:
        stub = dra_pb2_grpc.DRAPluginStub(channel)
        request = dra_pb2.NodePrepareResourcesRequest(claims=[claim("u" * 5_000_000)])
        with pytest.raises(grpc.RpcError) as caught:
            stub.NodePrepareResources(request, timeout=5)

    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert prepare(server.path, claim("uid-1"))["uid-1"].error == ""


def test_stop_lets_a_call_in_flight_end(server: DraServer, service: Service, recorder: Remembering) -> None:
    go_on = threading.Event()
    service.on = dict.fromkeys(("uid-1", "uid-2"), go_on.wait)
    answers: list[str] = []

    def call() -> None:
        answers.extend(prepare(server.path, claim("uid-1"), claim("uid-2")))

    caller = threading.Thread(target=call)
    caller.start()
    wait_until(lambda: recorder.now["prepare"] == 2)
    stopper = threading.Thread(target=server.stop, args=(10,))
    stopper.start()
    go_on.set()
    stopper.join()
    caller.join()

    assert sorted(answers) == ["uid-1", "uid-2"]


def test_stop_removes_the_socket_and_may_be_repeated(server: DraServer) -> None:
    server.stop(0)
    server.stop(0)

    assert list(server.path.parent.iterdir()) == []
