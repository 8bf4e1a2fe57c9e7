"""One connection to the API server: JSON in, JSON out, every call with a time limit and errors of our own tree.

Speaks HTTPS through the official client's REST layer and knows no resource. Safe for many threads.
"""

import http.client
import json
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3

from dra_driver.cluster import lean
from dra_driver.cluster.access import Access, find_access
from dra_driver.cluster.pace import Pace
from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.ports import Json

logger = logging.getLogger(__name__)

CONNECTIONS_KEPT = 32
"""Connections kept open: 16 parallel prepares, the watch, writes, and room."""

_CONNECT_TIMEOUT_S = 5.0
_MESSAGE_LIMIT = 700
_LINE_LIMIT = 32 * 1024 * 1024
_CHUNK = 256 * 1024
_TOO_MANY_REQUESTS = 429

# One more try when a kept connection turns out to have been closed. Waiting as the server's Retry-After asks would
# break the time limit; callers have their own back-off.
_RETRIES = urllib3.Retry(
    total=1, connect=0, read=1, redirect=0, status=0, other=0, backoff_factor=0, respect_retry_after_header=False
)
_LIBRARY_ERRORS = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)


def connect(kubeconfig: str | None, user_agent: str, *, qps: float | None = None, burst: int = 10) -> "Connection":
    """A connection by kubeconfig, or by service account when there is none. Sends nothing yet.

    qps, burst: limit on requests per second; None or 0 and less is no limit. Raises SettingError.
    """
    pace = Pace(qps, burst) if qps is not None and qps > 0 else None
    return Connection(find_access(kubeconfig), user_agent, pace)


class Connection:
    """Requests to one API server."""

    def __init__(self, access: Access, user_agent: str, pace: Pace | None = None) -> None:
        client = lean.load()
        configuration = access.configuration
        configuration.connection_pool_maxsize = CONNECTIONS_KEPT
        configuration.keep_alive = True
        configuration.retries = _RETRIES
        self.server: str = str(configuration.host).rstrip("/")
        self._access = access
        self._user_agent = user_agent
        self._pace = pace
        self._rest: Any = client.RESTClientObject(configuration)
        self._errors = (*_LIBRARY_ERRORS, client.ApiException)
        self._lock = threading.Lock()
        self._streams: set[Any] = set()
        self._closed = False

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        timeout_s: float = 10.0,
        *,
        paced: bool = True,
    ) -> Json:
        """Send and return the answer's object; a PATCH is a merge patch.

        The time limit counts for the answer; one repetition on a connection that was closed may double it.
        paced: heed the limit on requests per second. Raises ApiError with the server's status and message, or
        ApiUnreachable.
        """
        what = f"{method} {path}"
        self._wait_for_pace(what, timeout_s, paced)
        deadline = time.monotonic() + timeout_s
        try:
            response = self._open(method, self._url(path, query), body, timeout_s)
            content = _read(response, deadline)
        except self._errors as error:
            raise ApiUnreachable(f"{what}: {self.server}: {_reason(error)}") from error
        if not 200 <= response.status < 300:
            raise refusal(what, response.status, _server_message(content) or str(response.reason))
        return _object(what, content)

    def stream(self, path: str, query: Mapping[str, str], timeout_s: float) -> Iterator[Json]:
        """GET and yield one object a line, as watches send them, until the server ends it.

        timeout_s: longest silence. Raises ApiError, or ApiUnreachable when the connection breaks.
        """
        what = f"GET {path}"
        try:
            response = self._open("GET", self._url(path, query), None, timeout_s)
            if response.status != http.client.OK:
                content = _read(response, time.monotonic() + timeout_s)
                raise refusal(what, response.status, _server_message(content) or str(response.reason))
            with self._lock:
                self._streams.add(response)
            try:
                for line in _lines(response):
                    yield _object(what, line)
            finally:
                with self._lock:
                    self._streams.discard(response)
                response.close()
        except self._errors as error:
            raise ApiUnreachable(f"{what}: {self.server}: {_reason(error)}") from error

    def close(self) -> None:
        """End open streams and let go of all connections. Later requests fail. Idempotent."""
        with self._lock:
            self._closed = True
            streams = list(self._streams)
        for response in streams:
            try:
                response.shutdown()
            except (OSError, ValueError, RuntimeError, AttributeError) as error:
                logger.debug("stream could not be shut down: %s", error)
        self._rest.close()

    def _wait_for_pace(self, what: str, timeout_s: float, paced: bool) -> None:
        wait = self._pace.take() if self._pace is not None and paced else 0.0
        if wait > timeout_s:
            raise ApiUnreachable(f"{what}: not sent, the limit on requests per second is reached")
        if wait > 0:
            time.sleep(wait)

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self.server}{path}" + (f"?{urlencode(query)}" if query else "")

    def _open(self, method: str, url: str, body: Json | None, timeout_s: float) -> Any:
        """Send; the answer with its headers read and its body not."""
        if self._closed:
            raise OSError("the connection was closed")
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        if body is not None:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{kind}"
        authorization = self._access.authorization()
        if authorization:
            headers["Authorization"] = authorization
        limits = (min(_CONNECT_TIMEOUT_S, timeout_s), timeout_s)
        return self._rest.request(method, url, headers=headers, body=body, _request_timeout=limits).response


def refusal(what: str, status: int, message: str) -> ApiError:
    """The error for an HTTP status of the API server."""
    error = ApiUnreachable if status == _TOO_MANY_REQUESTS or status >= 500 else ApiError
    return error(f"{what}: HTTP {status}: {message[:_MESSAGE_LIMIT]}", status)


def _read(response: Any, deadline: float) -> bytes:
    """The whole body. A server that sends it drop by drop is given up at the deadline."""
    parts = []
    while part := response.read1(_CHUNK):
        parts.append(part)
        if time.monotonic() > deadline:
            response.close()
            raise TimeoutError("the answer did not end in time")
    return b"".join(parts)


def _lines(response: Any) -> Iterator[bytes]:
    """Lines as they come in. Raises OSError when the last one is not whole."""
    rest = b""
    while part := response.read1(_CHUNK):
        *lines, rest = (rest + part).split(b"\n")
        yield from (line for line in lines if line.strip())
        if len(rest) > _LINE_LIMIT:
            raise OSError(f"a line of the answer is longer than {_LINE_LIMIT} bytes")
    if rest.strip():
        raise OSError("the answer ended in the middle of a line")


def _object(what: str, content: bytes) -> Json:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    except RecursionError as error:
        raise ApiError(f"{what}: the answer is nested too deeply to be read") from error
    if not isinstance(found, dict):
        # Most likely a proxy's page, which may be gone the next time.
        raise ApiUnreachable(f"{what}: the answer is not a JSON object: {content[:100]!r}")
    return found


def _server_message(content: bytes) -> str:
    """``message`` of a Status object, else the start of the text."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    message = found.get("message") if isinstance(found, dict) else None
    text = message if isinstance(message, str) else content.decode("utf-8", errors="replace")
    return " ".join(text.split())


def _reason(error: BaseException) -> str:
    """The cause in words: without wrappers, and without object addresses that differ each time."""
    while isinstance(reason := getattr(error, "reason", None), BaseException):
        error = reason
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^(<[^>]*>|HTTPS?Connection(Pool)?\([^)]*\)): ", "", text)
