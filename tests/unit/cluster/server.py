"""A small real HTTP server on loopback that answers as a test tells it to, and keeps what it was asked."""

import json
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    """One request as it came in; path and query decoded as little as the server's own router would."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """Status and content: an object is sent as JSON, bytes as they are, an iterable of bytes chunk by chunk.

    half: promise more bytes than are sent, and close.
    """

    status: int = 200
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    half: bool = False


def status(code: int, message: str) -> Answer:
    """A refusal as the API server words it."""
    return Answer(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code})


class Server:
    """Answers each request with ``answer(request)``; ``connections`` counts accepted connections."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.answer: Callable[[Request], Answer] = lambda request: Answer(200, {})
        self.requests: list[Request] = []
        self.connections = 0
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self._scheme = "https" if tls else "http"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            server.connections += 1

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), dict(self.headers.items()), body)
            server.requests.append(request)
            answer = server.answer(request)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if isinstance(answer.content, dict | list | bytes):
                self._send(answer)
            else:
                self._send_chunks(answer.content)

        def _send(self, answer: Answer) -> None:
            content = answer.content
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_header("Content-Length", str(len(data) + 10 if answer.half else len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = answer.half

        def _send_chunks(self, chunks: Iterable[bytes]) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the library's names

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
