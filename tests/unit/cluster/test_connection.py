import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dra_driver.cluster.connection import Connection, connect
from dra_driver.model.errors import ApiError, ApiUnreachable
from tests.unit.cluster.server import Answer, Request, Server, status


def answer(server: Server, reply: Answer) -> None:
    server.answer = lambda request: reply


def test_request_returns_the_object(server: Server, connection: Connection) -> None:
    answer(server, Answer(200, {"kind": "Node"}))
    assert connection.request("GET", "/api/v1/nodes/n") == {"kind": "Node"}


def test_request_sends_method_path_query_body_and_who_we_are(server: Server, connection: Connection) -> None:
    connection.request("POST", "/a/b", {"x": "1=2&y"}, {"c": "ü"})
    (seen,) = server.requests
    assert (seen.method, seen.path, seen.query, seen.body) == ("POST", "/a/b", {"x": "1=2&y"}, {"c": "ü"})
    assert seen.headers["User-Agent"] == "dra-driver/test"
    assert seen.headers["Content-Type"] == "application/json"


def test_patch_is_a_merge_patch(server: Server, connection: Connection) -> None:
    connection.request("PATCH", "/a", body={"count": 2})
    assert server.requests[0].headers["Content-Type"] == "application/merge-patch+json"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 410, 422])
def test_refusal_has_the_servers_status_and_words(server: Server, connection: Connection, code: int) -> None:
    answer(server, status(code, 'User "x" cannot\n create'))
    with pytest.raises(ApiError) as raised:
        connection.request("POST", "/a", body={})
    assert type(raised.value) is ApiError
    assert raised.value.status == code
    assert str(raised.value) == f'POST /a: HTTP {code}: User "x" cannot create'


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_answer_that_asks_to_come_back_is_unreachable(server: Server, connection: Connection, code: int) -> None:
    answer(server, status(code, "try later"))
    with pytest.raises(ApiUnreachable, match="try later") as raised:
        connection.request("GET", "/a")
    assert raised.value.status == code


@pytest.mark.parametrize("code", [429, 503])
def test_server_cannot_make_us_wait_beyond_the_time_limit(server: Server, connection: Connection, code: int) -> None:
    reply = status(code, "try later")
    reply.headers["Retry-After"] = "3600"
    answer(server, reply)
    with pytest.raises(ApiUnreachable):
        connection.request("GET", "/a")
    assert len(server.requests) == 1


def test_refusal_that_is_no_status_object_shows_its_text(server: Server, connection: Connection) -> None:
    answer(server, Answer(403, b"<html>blocked by proxy</html>"))
    with pytest.raises(ApiError, match="blocked by proxy"):
        connection.request("GET", "/a")


def test_long_refusal_is_cut(server: Server, connection: Connection) -> None:
    answer(server, status(422, "x" * 100_000))
    with pytest.raises(ApiError) as raised:
        connection.request("GET", "/a")
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'"text"', b"\xff\xfe"])
def test_answer_that_is_no_object_is_unreachable(server: Server, connection: Connection, content: bytes) -> None:
    answer(server, Answer(200, content))
    with pytest.raises(ApiUnreachable, match="not a JSON object"):
        connection.request("GET", "/a")


@pytest.mark.parametrize("status_code", [200, 403])
def test_answer_nested_too_deeply_is_an_api_error(server: Server, connection: Connection, status_code: int) -> None:
    answer(server, Answer(status_code, b'{"a":' * 100_000 + b"1" + b"}" * 100_000))
    with pytest.raises(ApiError, match=r"^GET /a: (the answer is nested too deeply|HTTP 403)"):
        connection.request("GET", "/a")


def test_answer_that_breaks_off_is_unreachable(server: Server, connection: Connection) -> None:
    answer(server, Answer(200, {"a": 1}, half=True))
    with pytest.raises(ApiUnreachable):
        connection.request("POST", "/a", body={})


def test_nobody_listening_is_unreachable_and_says_where(server: Server, connection: Connection) -> None:
    server.close()
    with pytest.raises(ApiUnreachable, match=r"GET /a: http://127\.0\.0\.1:\d+: .*[Cc]onnection refused") as raised:
        connection.request("GET", "/a")
    assert raised.value.status == 0
    assert "object at 0x" not in str(raised.value)


def test_silent_server_is_unreachable_after_the_time_limit(server: Server, connection: Connection) -> None:
    release = threading.Event()

    def silent(request: Request) -> Answer:
        release.wait(10.0)
        return Answer(200, {})

    server.answer = silent
    with pytest.raises(ApiUnreachable, match="timed out"):
        connection.request("POST", "/a", body={}, timeout_s=0.1)
    release.set()


def test_server_that_drips_is_given_up_at_the_time_limit(server: Server, connection: Connection) -> None:
    release = threading.Event()

    def drops() -> Iterator[bytes]:
        for _ in range(1000):
            yield b" "
            if release.wait(0.02):
                return

    server.answer = lambda request: Answer(200, drops())
    with pytest.raises(ApiUnreachable, match="did not end in time"):
        connection.request("GET", "/a", timeout_s=0.1)
    release.set()


def test_connection_is_kept_between_requests(server: Server, connection: Connection) -> None:
    for _ in range(5):
        connection.request("GET", "/a")
    assert server.connections == 1


def test_connection_that_the_server_closed_is_opened_again(server: Server, connection: Connection) -> None:
    answer(server, Answer(200, {}, headers={"Connection": "close"}))
    for _ in range(3):
        connection.request("GET", "/a")
    assert server.connections == 3


def test_kept_connection_that_breaks_under_a_read_is_tried_once_more(server: Server, connection: Connection) -> None:
    broken = [True]

    def once(request: Request) -> Answer:
        if request.path == "/b" and broken:
            broken.pop()
            raise ConnectionAbortedError
        return Answer(200, {})

    server.answer = once
    connection.request("GET", "/a")
    assert connection.request("GET", "/b") == {}


def test_broken_creation_is_not_repeated(server: Server, connection: Connection) -> None:
    def broken(request: Request) -> Answer:
        raise ConnectionAbortedError

    server.answer = broken
    with pytest.raises(ApiUnreachable):
        connection.request("POST", "/a", body={})
    assert len(server.requests) == 1


def test_sixteen_threads_share_a_connection_object(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, {"path": request.path})
    gate = threading.Barrier(16)

    def ask(number: int) -> bool:
        gate.wait(10.0)
        return all(connection.request("GET", f"/{number}") == {"path": f"/{number}"} for _ in range(10))

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(ask, range(16)))
    assert server.connections <= 16


def test_limit_on_requests_that_is_used_up_is_unreachable(kubeconfig: str) -> None:
    connection = connect(kubeconfig, "dra-driver/test", qps=0.001, burst=1)
    connection.request("GET", "/a")
    with pytest.raises(ApiUnreachable, match="limit on requests per second"):
        connection.request("GET", "/a")
    connection.close()


def test_requests_that_pods_wait_for_have_no_limit(kubeconfig: str) -> None:
    connection = connect(kubeconfig, "dra-driver/test", qps=0.001, burst=1)
    for _ in range(3):
        assert connection.request("GET", "/a", paced=False) == {}
    connection.close()


@pytest.mark.parametrize("qps", [None, 0.0, -1.0])
def test_no_limit_on_requests_unless_one_is_set(kubeconfig: str, qps: float | None) -> None:
    connection = connect(kubeconfig, "dra-driver/test", qps=qps, burst=1)
    for _ in range(3):
        assert connection.request("GET", "/a") == {}
    connection.close()


def lines(*objects: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in objects)


def test_stream_yields_an_object_a_line_however_it_is_cut(server: Server, connection: Connection) -> None:
    text = lines({"a": 1}, {"b": 2}, {"c": 3})
    server.answer = lambda request: Answer(200, (text[at : at + 5] for at in range(0, len(text), 5)))
    assert list(connection.stream("/w", {"watch": "true"}, 5.0)) == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_stream_yields_each_object_as_it_comes(server: Server, connection: Connection) -> None:
    more = threading.Event()

    def chunks() -> Iterator[bytes]:
        yield lines({"a": 1})
        more.wait(10.0)
        yield lines({"b": 2})

    server.answer = lambda request: Answer(200, chunks())
    stream = connection.stream("/w", {}, 5.0)
    assert next(stream) == {"a": 1}
    more.set()
    assert next(stream) == {"b": 2}
    assert list(stream) == []


def test_refused_stream_has_the_servers_status(server: Server, connection: Connection) -> None:
    answer(server, status(410, "too old resource version"))
    with pytest.raises(ApiError, match="too old") as raised:
        list(connection.stream("/w", {}, 5.0))
    assert raised.value.status == 410


@pytest.mark.parametrize("tail", [b'{"b": ', b'{"b": 2'])
def test_stream_that_ends_within_a_line_is_unreachable(server: Server, connection: Connection, tail: bytes) -> None:
    answer(server, Answer(200, lines({"a": 1}) + tail))
    stream = connection.stream("/w", {}, 5.0)
    assert next(stream) == {"a": 1}
    with pytest.raises(ApiUnreachable):
        next(stream)


def test_stream_of_garbage_is_unreachable(server: Server, connection: Connection) -> None:
    answer(server, Answer(200, b"garbage\n"))
    with pytest.raises(ApiUnreachable):
        list(connection.stream("/w", {}, 5.0))


def test_silent_stream_is_unreachable_after_the_time_limit(server: Server, connection: Connection) -> None:
    release = threading.Event()

    def chunks() -> Iterator[bytes]:
        yield lines({"a": 1})
        release.wait(10.0)

    server.answer = lambda request: Answer(200, chunks())
    stream = connection.stream("/w", {}, 0.1)
    next(stream)
    with pytest.raises(ApiUnreachable, match="timed out"):
        next(stream)
    release.set()


def test_close_ends_an_open_stream(server: Server, connection: Connection) -> None:
    release = threading.Event()

    def chunks() -> Iterator[bytes]:
        yield lines({"a": 1})
        release.wait(10.0)

    server.answer = lambda request: Answer(200, chunks())
    stream = connection.stream("/w", {}, 60.0)
    next(stream)
    ended = threading.Event()

    def follow() -> None:
        with contextlib.suppress(ApiUnreachable):
            list(stream)
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    connection.close()
    assert ended.wait(5.0)
    release.set()


def test_closed_connection_sends_nothing(server: Server, connection: Connection) -> None:
    connection.close()
    with pytest.raises(ApiUnreachable, match="closed"):
        connection.request("GET", "/a")
    assert server.requests == []


def test_garbage_instead_of_http_is_unreachable(tmp_path: Path, kubeconfig: str, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        path = tmp_path / "other"
        path.write_text(Path(kubeconfig).read_text().replace(server.url, url))
        connection = connect(str(path), "dra-driver/test")

        def speak() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(ApiUnreachable):
            connection.request("POST", "/a", body={})
        connection.close()
