import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.kubelet.healthcheck import HealthServer
from dra_driver.kubelet.plugin import KubeletPlugin, Sockets, WatchTimes
from dra_driver.model.errors import SettingError
from dra_driver.observe.readiness import Conditions
from tests.grpc.helpers import Remembering, Service, register, services, wait_until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(["registration"])


@pytest.fixture
def plugin(
    short_path: Path, service: Service, recorder: Remembering, conditions: Conditions
) -> Iterator[KubeletPlugin]:
    (short_path / "reg").mkdir()
    times = WatchTimes(poll=0.02, longest_wait=0.05, unasked=0.2)
    offered = services(service)
    sockets = Sockets.of(short_path / "reg", short_path / "plugin")
    plugin = KubeletPlugin(sockets, offered, recorder, conditions, times)
    plugin.start()
    yield plugin
    plugin.stop(0)


@pytest.fixture
def health(plugin: KubeletPlugin) -> Iterator[HealthServer]:
    health = HealthServer(0, plugin.registration_socket, plugin.dra_socket, "127.0.0.1")
    health.start()
    yield health
    health.stop()


def check(health: HealthServer, service: str = "") -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{health.port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status


@pytest.mark.parametrize("service_name", ["", "liveness"])
def test_serving_when_both_sockets_answer(health: HealthServer, service_name: str) -> None:
    assert check(health, service_name) == SERVING


def test_unknown_service_is_not_found(health: HealthServer) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(health, "readiness")

    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_not_serving_when_the_plugin_has_stopped(health: HealthServer, plugin: KubeletPlugin) -> None:
    assert check(health) == SERVING

    plugin.stop(0)

    assert check(health) == NOT_SERVING


def test_serving_while_the_sockets_are_left_to_another_driver(short_path: Path) -> None:
    health = HealthServer(0, short_path / "none", short_path / "none", "127.0.0.1", aside=lambda: True)
    health.start()
    assert check(health) == SERVING
    health.stop()


@pytest.mark.parametrize("lost", ["registration_socket", "dra_socket"])
def test_not_serving_when_one_socket_cannot_be_found(plugin: KubeletPlugin, lost: str) -> None:
    paths = {"registration_socket": plugin.registration_socket, "dra_socket": plugin.dra_socket}
    paths[lost] = Path("/nonexistent/some.sock")
    health = HealthServer(0, paths["registration_socket"], paths["dra_socket"], "127.0.0.1")
    health.start()

    status = check(health)
    health.stop()

    assert status == NOT_SERVING


def test_not_serving_when_a_socket_is_there_and_does_not_answer(
    plugin: KubeletPlugin, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_driver.kubelet.healthcheck.CALL_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(short_path / "mute.sock"))
        mute.listen()
        health = HealthServer(0, plugin.registration_socket, short_path / "mute.sock", "127.0.0.1")
        health.start()
        status = check(health)
        health.stop()

    assert status == NOT_SERVING


def test_serving_again_when_a_lost_socket_is_back(health: HealthServer, plugin: KubeletPlugin) -> None:
    plugin.dra_socket.unlink()

    # The socket for registration follows it, and a call that is on its way there then is cut off.
    wait_until(plugin.dra_socket.exists)
    wait_until(lambda: check(health) == SERVING)


def test_health_check_does_not_pass_for_the_kubelet(health: HealthServer, conditions: Conditions) -> None:
    check(health)

    wait_until(lambda: "no kubelet has asked" in str(conditions.report()))


def test_kubelet_that_asked_is_not_reported_missing(
    health: HealthServer, plugin: KubeletPlugin, conditions: Conditions
) -> None:
    register(plugin.registration_socket)
    check(health)

    assert conditions.ready


def test_checks_are_not_counted_as_requests(health: HealthServer, recorder: Remembering) -> None:
    check(health)

    assert (recorder.calls, recorder.errors) == ({}, [])


def test_negative_port_is_off(plugin: KubeletPlugin) -> None:
    health = HealthServer(-1, plugin.registration_socket, plugin.dra_socket)

    health.start()
    health.stop()

    assert health.port is None


def test_default_host_is_reached_over_ipv4(plugin: KubeletPlugin) -> None:
    health = HealthServer(0, plugin.registration_socket, plugin.dra_socket)
    health.start()

    status = check(health)
    health.stop()

    assert status == SERVING


def test_port_in_use_is_refused_naming_it(health: HealthServer, plugin: KubeletPlugin) -> None:
    assert health.port is not None
    second = HealthServer(health.port, plugin.registration_socket, plugin.dra_socket, "127.0.0.1")

    with pytest.raises(SettingError, match=f"127.0.0.1:{health.port} cannot be used"):
        second.start()
