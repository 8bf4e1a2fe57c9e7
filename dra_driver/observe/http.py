"""The status server: /healthz, /readyz and the metrics path over plain HTTP.

It reads what ``metrics`` and ``readiness`` keep and changes nothing. Built for probes and scrapers: one request a
connection, a deadline for each, and a limit on connections at which those make room that keep a thread waiting. So
clients that are stuck cost a few threads, however many they are, and keep no probe from its answer.
"""

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from dra_driver.model.errors import SettingError
from dra_driver.observe.readiness import Conditions, Liveness

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 10.0
"""How long one connection may last, from accept to the last byte."""
MAX_CONNECTIONS: Final = 32
"""Connections served at the same time; one more ends the oldest whose request is not there yet."""

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"


class Exposition(Protocol):
    """Metrics ready to be served; ``PrometheusRecorder`` is one."""

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Body and content type for an ``Accept`` header."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


_Page = Callable[[str], _Answer]
"""Accept header -> answer."""


def _listen(host: str, port: int) -> socket.socket:
    try:
        if host:
            family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN)
        if socket.has_dualstack_ipv6():
            address = ("", port)
            return socket.create_server(address, family=socket.AF_INET6, dualstack_ipv6=True, backlog=socket.SOMAXCONN)
        return socket.create_server(("", port), backlog=socket.SOMAXCONN)
    except OSError as error:
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise SettingError(
            f"HTTP endpoint {shown!r} cannot be used: {error.strerror or error}; want an address of this machine "
            "(none means all) and a free port (0 picks one)"
        ) from error


@dataclass(slots=True)
class _Connection:
    deadline: float
    answering: bool = False


def _cut(request: socket.socket) -> None:
    """Its thread finds the end of the stream and closes it."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Deadlines end every handler; waiting for them on close would only delay the stop.
    block_on_close = False

    def __init__(self, listener: socket.socket, pages: dict[str, _Page]) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        # The base class made an unbound IPv4 socket; its own way of binding asks DNS for a host name.
        self.socket.close()
        self.socket = listener
        self.pages = pages
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Connection] = {}

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; without free file descriptors the next try must wait or the loop would spin."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for a connection and start its deadline, then its thread."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                # Not the newest: clients that never finish a request would lock out the probe that comes after them.
                oldest = min(self._open, key=lambda each: (self._open[each].answering, self._open[each].deadline))
                _cut(oldest)
                del self._open[oldest]
            self._open[request] = _Connection(time.monotonic() + REQUEST_SECONDS)
        super().process_request(request, client_address)

    def answering(self, request: Any) -> None:
        """The request of a connection has come in whole."""
        with self._lock:
            if request in self._open:
                self._open[request].answering = True

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection before it is closed."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by the accept loop twice a second: cut what is over its deadline, whatever it waits for."""
        now = time.monotonic()
        with self._lock:
            for request, connection in self._open.items():
                if connection.deadline <= now:
                    _cut(request)

    def cut_all(self) -> None:
        """End every open connection."""
        with self._lock:
            for request in self._open:
                _cut(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or was cut is no event; anything else is a bug worth its traceback."""
        if isinstance(sys.exception(), OSError):
            log.debug("request from %s ended early", client_address)
        else:
            log.error("request from %s failed", client_address, exc_info=True)  # noqa: LOG014 - called in one


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "dra-driver"
    sys_version = ""
    timeout = REQUEST_SECONDS
    error_content_type = _TEXT
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        """Answer a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer what GET would, without the body."""
        self._answer(with_body=False)

    def _not_allowed(self) -> None:
        self._send(_text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"), with_body=True)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed  # noqa: N815

    def _answer(self, *, with_body: bool) -> None:
        self.server.answering(self.connection)
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            known = " ".join(self.server.pages)
            answer = _text(HTTPStatus.NOT_FOUND, f"no such page; there are {known}")
        else:
            answer = self._render(page)
        self._send(answer, with_body=with_body)

    def _render(self, page: _Page) -> _Answer:
        try:
            return page(self.headers.get("Accept", ""))
        except Exception:  # a bug in one page must not look like a dead server
            log.exception("page %s cannot be made", self.path)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the log")

    def _send(self, answer: _Answer, *, with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Probes come every few seconds: requests are logged for debugging only."""
        log.debug("%s %s", self.address_string(), format % args)


def _text(status: HTTPStatus, text: str) -> _Answer:
    return _Answer(status, _TEXT, f"{text}\n".encode())


class StatusServer:
    """Serves /healthz, /readyz and metrics from a few daemon threads."""

    def __init__(
        self,
        endpoint: tuple[str, int],
        metrics_path: str,
        recorder: Exposition | None,
        conditions: Conditions,
        liveness: Liveness | None = None,
    ) -> None:
        """Bind at once, so that a bad setting ends the start; requests are answered after ``start``.

        endpoint: (host, port), host '' for all addresses, port 0 for any free one. metrics_path: absolute path; '' or
        no ``recorder`` means no metrics. Raises SettingError naming the value when it cannot be used.
        """
        self._conditions = conditions
        self._liveness = liveness or Liveness()
        pages: dict[str, _Page] = {"/healthz": self._healthz, "/readyz": self._readyz}
        if metrics_path and recorder is not None:
            if not metrics_path.startswith("/") or metrics_path in pages or "?" in metrics_path:
                raise SettingError(
                    f"metrics path {metrics_path!r} is not valid: want a path such as '/metrics', other than "
                    f"{' and '.join(pages)}, or '' for no metrics"
                )
            pages[metrics_path] = lambda accept: _metrics(recorder, accept)
        self._server = _Server(_listen(*endpoint), pages)
        self._thread = threading.Thread(target=self._server.serve_forever, name="status-server", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on, the real port where 0 was asked for."""
        host, port = self._server.socket.getsockname()[:2]
        return host, port

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        host, port = self.address
        log.info("status pages at %s port %d: %s", host, port, " ".join(self._server.pages))

    def stop(self) -> None:
        """Stop listening and cut what is open. Idempotent."""
        if self._thread.is_alive():
            # Wakes the accept loop, which would else notice the stop half a second later.
            with contextlib.suppress(OSError):
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
            self._thread.join()
        self._server.cut_all()
        self._server.server_close()

    def _healthz(self, accept: str) -> _Answer:
        dead = self._liveness.dead()
        if dead:
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, f"threads that have ended: {', '.join(dead)}")
        return _text(HTTPStatus.OK, "ok")

    def _readyz(self, accept: str) -> _Answer:
        report = self._conditions.report()
        status = HTTPStatus.OK if report["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status, _JSON, json.dumps(report, indent=2).encode() + b"\n")


def _metrics(recorder: Exposition, accept: str) -> _Answer:
    body, content_type = recorder.exposition(accept)
    return _Answer(HTTPStatus.OK, content_type, body)
