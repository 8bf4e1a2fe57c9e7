import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from dra_driver.kubelet.device_health import REPEAT_SECONDS, STREAMS, TIMEOUT_SECONDS, DeviceHealthService
from dra_driver.kubelet.server import DraServer, Services
from dra_driver.kubelet.sockets import target
from dra_driver.model.errors import StateError
from dra_driver.model.health import DeviceHealth, Health
from dra_driver_api.kubelet import health_pb2, health_pb2_grpc
from tests.grpc.helpers import (
    HealthStream,
    Remembering,
    Service,
    claim,
    health_stream,
    healths,
    prepare,
    unprepare,
    wait_until,
)

NEVER = 3600.0
HEALTHY = {"gpu-0": "HEALTHY", "gpu-1": "HEALTHY"}


class Node:
    """Devices as the test sets them; None as long as nobody knows them, an error when they cannot be told."""

    def __init__(self) -> None:
        self.devices: Sequence[DeviceHealth] | StateError | None = [told("gpu-0"), told("gpu-1")]

    def look(self) -> Sequence[DeviceHealth] | None:
        if isinstance(self.devices, StateError):
            raise self.devices
        return self.devices


def told(device: str, health: Health = Health.HEALTHY, message: str = "") -> DeviceHealth:
    return DeviceHealth(pool="node-a", device=device, health=health, message=message)


MakeServer = Callable[..., DraServer]


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def health(node: Node) -> DeviceHealthService:
    """Tells what changes, and repeats nothing."""
    return DeviceHealthService(node.look, NEVER)


@pytest.fixture
def make_server(short_path: Path, service: Service, recorder: Remembering) -> Iterator[MakeServer]:
    made: list[DraServer] = []

    def make(health: DeviceHealthService) -> DraServer:
        made.append(DraServer(short_path / "dra.sock", Services(service, health), recorder))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.stop(0)


@pytest.fixture
def server(make_server: MakeServer, health: DeviceHealthService) -> DraServer:
    return make_server(health)


@contextmanager
def many_streams(path: Path, count: int) -> Iterator[list[HealthStream]]:
    """Streams over one connection, as many as are asked for; cancelled at the end."""
    with grpc.insecure_channel(target(path), options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub = health_pb2_grpc.DRAResourceHealthStub(channel)
        streams = [stub.NodeWatchResources(health_pb2.NodeWatchResourcesRequest()) for _ in range(count)]
        yield streams
        for stream in streams:
            stream.cancel()


def refusal(stream: HealthStream) -> tuple[grpc.StatusCode, str]:
    """How a stream ends that must give no message."""
    with pytest.raises(grpc.RpcError):
        next(stream)
    return stream.code(), stream.details()


def test_first_message_lists_every_device_at_once(server: DraServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.kubelet.device_health.time", SimpleNamespace(time=lambda: 1_790_000_000.9))

    with health_stream(server.path) as stream:
        message = next(stream)

    assert [
        (d.device.pool_name, d.device.device_name, d.health, d.last_updated_time, d.health_check_timeout_seconds)
        for d in message.devices
    ] == [
        ("node-a", "gpu-0", health_pb2.HEALTHY, 1_790_000_000, 30),
        ("node-a", "gpu-1", health_pb2.HEALTHY, 1_790_000_000, 30),
    ]
    assert [device.message for device in message.devices] == ["", ""]


def test_unhealthy_and_unknown_devices_come_with_their_reason(server: DraServer, node: Node) -> None:
    node.devices = [told("gpu-0", Health.UNHEALTHY, "it is gone"), told("gpu-1", Health.UNKNOWN, "NVML fails")]

    with health_stream(server.path) as stream:
        found = [(device.health, device.message) for device in next(stream).devices]

    assert found == [(health_pb2.UNHEALTHY, "it is gone"), (health_pb2.UNKNOWN, "NVML fails")]


def test_reason_is_one_line_that_the_kubelet_need_not_cut(server: DraServer, node: Node) -> None:
    node.devices = [told("gpu-0", Health.UNHEALTHY, "first\n\tsecond \udcff" + "x" * 5000)]

    with health_stream(server.path) as stream:
        (device,) = next(stream).devices

    assert device.message.startswith("first second ?xxx")
    assert len(device.message) < 1000


def test_change_is_told_to_every_stream_at_once(server: DraServer, health: DeviceHealthService, node: Node) -> None:
    with health_stream(server.path) as one, health_stream(server.path) as other:
        assert (healths(one), healths(other)) == (HEALTHY, HEALTHY)
        node.devices = [told("gpu-0"), told("gpu-1", Health.UNHEALTHY)]
        health.changed()

        assert healths(one) == healths(other) == {"gpu-0": "HEALTHY", "gpu-1": "UNHEALTHY"}


def test_devices_are_told_again_without_a_change_so_that_they_stay_known(make_server: MakeServer, node: Node) -> None:
    server = make_server(DeviceHealthService(node.look, 0.01))

    with health_stream(server.path) as stream:
        assert [healths(stream) for _ in range(4)] == [HEALTHY] * 4


def test_what_changes_without_a_word_is_told_with_the_next_message(make_server: MakeServer, node: Node) -> None:
    server = make_server(DeviceHealthService(node.look, 0.01))

    with health_stream(server.path) as stream:
        assert healths(stream) == HEALTHY
        node.devices = [told("gpu-0")]
        wait_until(lambda: healths(stream) == {"gpu-0": "HEALTHY"})


def test_default_repeats_twice_before_the_kubelet_takes_devices_for_unknown() -> None:
    assert 2 * REPEAT_SECONDS < TIMEOUT_SECONDS <= 30


def test_stream_waits_for_the_first_inventory_and_sends_no_empty_list(
    server: DraServer, health: DeviceHealthService, node: Node
) -> None:
    node.devices = None
    with health_stream(server.path) as stream:
        wait_until(lambda: health.streams == 1)
        health.changed()
        node.devices = [told("gpu-0")]
        health.changed()

        assert healths(stream) == {"gpu-0": "HEALTHY"}


def test_node_whose_last_gpu_left_says_so_with_an_empty_list(
    server: DraServer, health: DeviceHealthService, node: Node
) -> None:
    with health_stream(server.path) as stream:
        assert healths(stream) == HEALTHY
        node.devices = []
        health.changed()

        assert healths(stream) == {}


def test_stream_outlives_a_state_that_cannot_be_read_which_is_logged_once(
    make_server: MakeServer, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    looks = threading.Semaphore(0)
    node.devices = StateError("the database is locked")

    def look() -> Sequence[DeviceHealth] | None:
        looks.release()
        return node.look()

    server = make_server(DeviceHealthService(look, 0.01))

    with health_stream(server.path) as stream:
        for _ in range(3):
            assert looks.acquire(timeout=10)
        node.devices = [told("gpu-0")]

        assert healths(stream) == {"gpu-0": "HEALTHY"}
    told_so = [text for text in caplog.messages if "the database is locked" in text]
    assert told_so == ["the kubelet is not told how the devices are: the database is locked"]


def test_streams_beyond_the_most_are_refused_with_the_number(server: DraServer, health: DeviceHealthService) -> None:
    with many_streams(server.path, STREAMS) as streams:
        assert [healths(stream) for stream in streams] == [HEALTHY] * STREAMS

        with health_stream(server.path) as stream:
            code, text = refusal(stream)

    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert text == "8 health streams are open already, as many as may be: close another first"


def test_claims_are_prepared_and_unprepared_while_a_hundred_streams_are_asked_for(
    server: DraServer, health: DeviceHealthService
) -> None:
    with many_streams(server.path, 100) as streams:
        wait_until(lambda: health.streams == STREAMS)

        assert prepare(server.path, claim("a"))["a"].error == ""
        assert sorted(unprepare(server.path, claim("a"), claim("b"))) == ["a", "b"]
        wait_until(lambda: sum(stream.is_active() for stream in streams) == STREAMS)

    wait_until(lambda: health.streams == 0)
    with health_stream(server.path) as stream:
        assert healths(stream) == HEALTHY


def test_open_streams_take_no_thread_from_claims(
    make_server: MakeServer,
    health: DeviceHealthService,
    service: Service,
    recorder: Remembering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even when as many calls wait as may, whose number is made small here."""
    monkeypatch.setattr("dra_driver.kubelet.server.CALLS", 1)
    monkeypatch.setattr("dra_driver.kubelet.server._SPARE_WORKERS", 1)
    server = make_server(health)
    go_on = threading.Event()
    service.on = {"hangs": go_on.wait}
    with many_streams(server.path, STREAMS) as streams:
        assert [healths(stream) for stream in streams] == [HEALTHY] * STREAMS
        callers = [threading.Thread(target=call, args=(server.path, claim("hangs"))) for call in (prepare, unprepare)]
        for caller in callers:
            caller.start()
        wait_until(lambda: recorder.now["prepare"] == recorder.now["unprepare"] == 1)

        assert prepare(server.path) == {}
        go_on.set()
        for caller in callers:
            caller.join()


def test_streams_that_are_cancelled_or_whose_client_is_gone_leave_nothing(
    server: DraServer, health: DeviceHealthService
) -> None:
    for _ in range(3 * STREAMS):
        with health_stream(server.path) as stream:
            assert healths(stream) == HEALTHY
            stream.cancel()
        wait_until(lambda: health.streams == 0)
        with health_stream(server.path) as stream:
            assert healths(stream) == HEALTHY
        wait_until(lambda: health.streams == 0)


def test_stream_that_is_left_before_the_first_inventory_leaves_nothing(
    server: DraServer, health: DeviceHealthService, node: Node
) -> None:
    node.devices = None
    with health_stream(server.path):
        wait_until(lambda: health.streams == 1)

    wait_until(lambda: health.streams == 0)


def test_stop_ends_streams_without_waiting_for_the_end_of_the_grace(server: DraServer) -> None:
    with health_stream(server.path) as stream:
        assert healths(stream) == HEALTHY

        server.stop(NEVER)

        assert list(stream) == []
        assert stream.code() is grpc.StatusCode.OK


def test_stream_that_is_asked_for_while_the_driver_stops_is_refused(
    server: DraServer, health: DeviceHealthService
) -> None:
    health.close()

    with health_stream(server.path) as stream:
        assert refusal(stream) == (
            grpc.StatusCode.UNAVAILABLE,
            "the driver is stopping and opens no health stream",
        )


def test_health_is_told_over_a_socket_that_had_to_be_made_anew(server: DraServer) -> None:
    server.path.unlink()
    server.start()

    with health_stream(server.path) as stream:
        assert healths(stream) == HEALTHY
