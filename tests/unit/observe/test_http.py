import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from dra_driver.model.errors import SettingError
from dra_driver.observe import http as status_pages
from dra_driver.observe.http import StatusServer
from dra_driver.observe.metrics import PrometheusRecorder
from dra_driver.observe.readiness import Conditions, Liveness

ANY_PORT = ("127.0.0.1", 0)


class BrokenExposition:
    def exposition(self, accept: str) -> tuple[bytes, str]:
        raise ZeroDivisionError


class WaitingExposition:
    """Metrics that take until ``go_on``."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def exposition(self, accept: str) -> tuple[bytes, str]:
        self.asked.set()
        self.go_on.wait(10)
        return b"metrics", "text/plain"


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(["devices"])


@pytest.fixture
def server(conditions: Conditions) -> Iterator[StatusServer]:
    server = StatusServer(ANY_PORT, "/metrics", PrometheusRecorder("node-a"), conditions)
    server.start()
    yield server
    server.stop()


def ask(server: StatusServer, path: str, method: str = "GET") -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_healthz_is_ok(server: StatusServer) -> None:
    status, _, body = ask(server, "/healthz")

    assert (status, body) == (200, b"ok\n")


def test_healthz_names_the_thread_that_ended(conditions: Conditions) -> None:
    thread = threading.Thread(target=lambda: None, name="watcher")
    thread.start()
    thread.join()
    liveness = Liveness()
    liveness.watch(thread)
    server = StatusServer(ANY_PORT, "", None, conditions, liveness)
    server.start()

    status, _, body = ask(server, "/healthz")
    server.stop()

    assert status == 500
    assert b"watcher" in body


def test_readyz_is_503_with_the_reason_until_all_conditions_hold(server: StatusServer) -> None:
    status, headers, body = ask(server, "/readyz")

    assert status == 503
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body)["conditions"]["devices"]["message"] == "not yet"


def test_readyz_is_200_when_all_conditions_hold(server: StatusServer, conditions: Conditions) -> None:
    conditions.set("devices", True)

    status, _, body = ask(server, "/readyz")

    assert status == 200
    assert json.loads(body)["ready"] is True


def test_metrics_are_served_as_prometheus_text(server: StatusServer) -> None:
    status, headers, body = ask(server, "/metrics")

    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert b'nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="prepare"} 0.0' in body


def test_metrics_are_off_when_the_path_is_empty(conditions: Conditions) -> None:
    server = StatusServer(ANY_PORT, "", PrometheusRecorder("node-a"), conditions)
    server.start()

    status, _, _ = ask(server, "/metrics")
    server.stop()

    assert status == 404


@pytest.mark.parametrize("path", ["metrics", "/healthz", "/readyz", "/m?x"])
def test_metrics_path_that_cannot_work_is_refused_naming_it(conditions: Conditions, path: str) -> None:
    with pytest.raises(SettingError, match="metrics path") as caught:
        StatusServer(ANY_PORT, path, PrometheusRecorder("node-a"), conditions)

    assert repr(path) in str(caught.value)


def test_head_has_the_headers_without_the_body(server: StatusServer) -> None:
    status, headers, body = ask(server, "/healthz", "HEAD")

    assert (status, headers["Content-Length"], body) == (200, "3", b"")


def test_unknown_page_is_404_naming_the_pages(server: StatusServer) -> None:
    status, _, body = ask(server, "/nothing")

    assert status == 404
    assert b"/readyz" in body


def test_query_does_not_hide_a_page(server: StatusServer) -> None:
    assert ask(server, "/healthz?verbose=1")[0] == 200


def test_post_is_405(server: StatusServer) -> None:
    status, headers, _ = ask(server, "/healthz", "POST")

    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_page_that_fails_is_500_and_the_server_goes_on(conditions: Conditions) -> None:
    server = StatusServer(ANY_PORT, "/metrics", BrokenExposition(), conditions)
    server.start()

    statuses = [ask(server, page)[0] for page in ("/metrics", "/healthz")]
    server.stop()

    assert statuses == [500, 200]


@pytest.mark.parametrize(
    ("family", "host", "shown"), [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")]
)
def test_port_in_use_is_refused_naming_the_endpoint(
    conditions: Conditions, family: socket.AddressFamily, host: str, shown: str
) -> None:
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match="Address already in use") as caught:
            StatusServer((host, port), "", None, conditions)

    assert f"'{shown}:{port}'" in str(caught.value)


def test_endpoint_without_host_is_reached_over_ipv4(conditions: Conditions) -> None:
    server = StatusServer(("", 0), "", None, conditions)
    server.start()

    with socket.create_connection(("127.0.0.1", server.address[1]), timeout=10) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = client.recv(100)
    server.stop()

    assert b" 200 " in answer


def test_silent_client_blocks_nobody(server: StatusServer) -> None:
    with socket.create_connection(server.address), socket.create_connection(server.address):
        status, _, _ = ask(server, "/healthz")

    assert status == 200


def test_garbage_gets_an_error_and_the_server_goes_on(server: StatusServer) -> None:
    with socket.create_connection(server.address, timeout=10) as client:
        client.sendall(b"\x16\x03\x01\x02\x00 \x00 garbage \xff\n\n")
        answer = client.recv(1000)

    assert b"400" in answer
    assert ask(server, "/healthz")[0] == 200


def test_client_that_only_trickles_is_cut_at_the_deadline(
    conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_pages, "REQUEST_SECONDS", 0.0)
    server = StatusServer(ANY_PORT, "", None, conditions)
    server.start()

    with socket.create_connection(server.address, timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        left_over = client.recv(100)
    server.stop()

    assert left_over == b""


def test_probe_is_answered_while_hundreds_of_clients_never_finish_their_request(server: StatusServer) -> None:
    with contextlib.ExitStack() as clients:
        for number in range(300):
            client = clients.enter_context(socket.create_connection(server.address, timeout=10))
            if number % 2:
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost:")
        answers = [ask(server, "/healthz")[0] for _ in range(20)]
        threads = sum("process_request_thread" in thread.name for thread in threading.enumerate())

    assert answers == [200] * 20
    assert threads <= 2 * status_pages.MAX_CONNECTIONS


def test_connection_that_keeps_a_thread_waiting_makes_room_for_the_next(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_pages, "MAX_CONNECTIONS", 1)
    with socket.create_connection(server.address, timeout=10) as first:
        first.sendall(b"GET /he")
        status, _, _ = ask(server, "/healthz")
        answer_of_first = first.recv(100)

    assert status == 200
    assert answer_of_first == b""


def test_answer_that_is_on_its_way_is_not_cut_off_by_clients_that_come_later(
    conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_pages, "MAX_CONNECTIONS", 2)
    metrics = WaitingExposition()
    server = StatusServer(ANY_PORT, "/metrics", metrics, conditions)
    server.start()

    with contextlib.ExitStack() as clients:
        scraper = clients.enter_context(socket.create_connection(server.address, timeout=10))
        scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert metrics.asked.wait(10)
        for _ in range(3):
            clients.enter_context(socket.create_connection(server.address, timeout=10)).sendall(b"GET /he")
        assert ask(server, "/healthz")[0] == 200
        metrics.go_on.set()
        answer = scraper.recv(1000)
    server.stop()

    assert b" 200 " in answer


def test_stop_frees_the_port_and_may_be_repeated(conditions: Conditions) -> None:
    server = StatusServer(ANY_PORT, "", None, conditions)
    server.start()
    address = server.address

    server.stop()
    server.stop()

    with socket.create_server(address):
        pass


def test_stop_without_start_frees_the_port(conditions: Conditions) -> None:
    server = StatusServer(ANY_PORT, "", None, conditions)
    address = server.address

    server.stop()

    with socket.create_server(address):
        pass
