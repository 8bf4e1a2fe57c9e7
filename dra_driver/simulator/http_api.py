"""The Kubernetes REST API over a store, as an ASGI application. No sockets and no threads here."""

import asyncio
import base64
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dra_driver.simulator import routes
from dra_driver.simulator.faults import Fault, Faults
from dra_driver.simulator.routes import Target
from dra_driver.simulator.selectors import field_match, label_match
from dra_driver.simulator.statuses import StatusError, bad_request
from dra_driver.simulator.store import Store, Stored
from dra_driver.simulator.watches import Watch, Watches

Json = dict[str, Any]

WATCH_SECONDS = 1800
"""How long a watch lasts that names no ``timeoutSeconds``."""

MAX_BODY = 3 * 1024 * 1024
MERGE_PATCH = "application/merge-patch+json"
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived, for tests that count calls."""

    method: str
    path: str
    query: Mapping[str, str]


class HttpApi:
    """The application. ``seen`` keeps the latest requests, oldest first."""

    def __init__(self, store: Store, faults: Faults, git_version: str) -> None:
        self.seen: deque[Seen] = deque(maxlen=50_000)
        self._store = store
        self._faults = faults
        self._git_version = git_version
        self._watches = Watches(store)

    def close(self) -> None:
        """End all watches. To be called in the event loop's thread."""
        self._watches.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        path = request.url.path
        self.seen.append(Seen(request.method, path, dict(request.query_params)))
        fault = self._faults.take(request.method, path)
        try:
            response = await self._faulty(fault) or await self._answer(request)
        except StatusError as error:
            response = _json(error.body, error.status)
        except ClientDisconnect:
            return
        if fault is not None and fault.drop:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
            return
        await response(scope, receive, send)

    async def _faulty(self, fault: Fault | None) -> Response | None:
        if fault is None:
            return None
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if not fault.status:
            return None
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        reason = {429: "TooManyRequests", 410: "Expired", 409: "Conflict", 403: "Forbidden", 404: "NotFound"}
        error = StatusError(fault.status, reason.get(fault.status, "InternalError"), fault.message)
        return _json(error.body, fault.status, headers)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path in _HEALTH_PATHS:
            return PlainTextResponse("ok")
        if document := routes.document(path.rstrip("/"), self._git_version):
            return _json(document)
        target = routes.target_of(path)
        match request.method, bool(target.name):
            case "GET", True:
                stored = self._store.stored(target.kind, target.name, target.namespace)
                return Response(stored.text, media_type="application/json")
            case "GET", False:
                return self._collection(request, target)
            case "POST", False:
                created = self._store.create(target.kind, await _body(request), target.namespace)
                return _json(created, 201)
            case "PUT", True:
                return await self._put(request, target)
            case "PATCH", True:
                return await self._patch(request, target)
            case "DELETE", True:
                return await self._delete(request, target)
            case "DELETE", False:
                return self._delete_collection(request, target)
        message = f"{request.method} is not supported on {path}"
        raise StatusError(405, "MethodNotAllowed", message)

    async def _put(self, request: Request, target: Target) -> Response:
        sent = await _body(request)
        metadata = sent.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if name != target.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
        stored = self._store.replace(target.kind, sent, target.namespace, status=target.status)
        return _json(stored)

    async def _patch(self, request: Request, target: Target) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind != MERGE_PATCH:
            message = f"the body of the request was in an unknown format - accepted media types: {MERGE_PATCH}"
            raise StatusError(415, "UnsupportedMediaType", message)
        patch = await _body(request)
        patched = self._store.patch(target.kind, target.name, patch, target.namespace, status=target.status)
        return _json(patched)

    async def _delete(self, request: Request, target: Target) -> Response:
        options = await _body(request, optional=True)
        conditions = options.get("preconditions") or {}
        grace = request.query_params.get("gracePeriodSeconds", options.get("gracePeriodSeconds", ""))
        last = self._store.delete(
            target.kind,
            target.name,
            target.namespace,
            uid=conditions.get("uid"),
            resource_version=conditions.get("resourceVersion"),
            grace_seconds=_number("gracePeriodSeconds", grace) if grace != "" else None,
        )
        if last["metadata"].get("deletionTimestamp"):
            return _json(last)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        details["uid"] = last["metadata"]["uid"]
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})

    def _delete_collection(self, request: Request, target: Target) -> Response:
        chosen, _ = self._chosen(request, target)
        for stored in chosen:
            metadata = stored.content["metadata"]
            self._store.delete(target.kind, metadata["name"], metadata.get("namespace", ""))
        return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _chosen(self, request: Request, target: Target) -> tuple[list[Stored], int]:
        query = request.query_params
        return self._store.snapshot(
            target.kind,
            target.namespace,
            fields=query.get("fieldSelector", ""),
            labels=query.get("labelSelector", ""),
        )

    def _collection(self, request: Request, target: Target) -> Response:
        if request.query_params.get("watch", "").lower() in ("true", "1"):
            return self._watch(request, target)
        chosen, version = self._chosen(request, target)
        chosen, metadata = _page(chosen, request.query_params)
        metadata["resourceVersion"] = str(version)
        items = b",".join(_without_type(target, stored) for stored in chosen)
        head = {
            "kind": f"{target.kind.kind}List",
            "apiVersion": target.kind.api_version,
            "metadata": metadata,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        return Response(text[:-1] + b',"items":[' + items + b"]}", media_type="application/json")

    def _watch(self, request: Request, target: Target) -> Response:
        query = request.query_params
        if "sendInitialEvents" in query:
            raise StatusError(422, "Invalid", "sendInitialEvents: Forbidden: WatchList is not enabled")
        since = query.get("resourceVersion", "")
        watch = Watch(
            target=target,
            since=_number("resourceVersion", since or "0"),
            seconds=_number("timeoutSeconds", query.get("timeoutSeconds") or str(WATCH_SECONDS)),
            bookmarks=query.get("allowWatchBookmarks", "").lower() in ("true", "1"),
            by_field=field_match(target.kind, query.get("fieldSelector", "")),
            by_label=label_match(query.get("labelSelector", "")),
        )
        return StreamingResponse(self._watches.lines(watch), media_type="application/json")


def _without_type(target: Target, stored: Stored) -> bytes:
    """An item of a list: the real server leaves ``kind`` and ``apiVersion`` out there."""
    prefix = f'{{"kind":"{target.kind.kind}","apiVersion":"{target.kind.api_version}",'.encode()
    return b"{" + stored.text.removeprefix(prefix)


def _page(chosen: list[Stored], query: Mapping[str, str]) -> tuple[list[Stored], Json]:
    """The part of a list that ``limit`` and ``continue`` ask for, and the list's metadata."""
    start = 0
    if token := query.get("continue"):
        try:
            start = int(base64.b64decode(token, validate=True))
        except ValueError as error:
            raise bad_request(f"continue key is not valid: {error}") from error
    end = start + _number("limit", query.get("limit") or "0")
    if end == start or end >= len(chosen):
        return chosen[start:], {}
    token = base64.b64encode(str(end).encode()).decode()
    return chosen[start:end], {"continue": token, "remainingItemCount": len(chosen) - end}


def _number(name: str, value: object) -> int:
    """A whole number of a request. Raises StatusError 400."""
    text = str(value)
    if not text.isascii() or not text.isdigit():
        raise bad_request(f"invalid {name}: {text!r} is not a whole number")
    return int(text)


async def _body(request: Request, *, optional: bool = False) -> Json:
    raw = await request.body()
    if len(raw) > MAX_BODY:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
    if not raw and optional:
        return {}
    try:
        parsed = json.loads(raw)
    except ValueError as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from error
    if not isinstance(parsed, dict):
        raise bad_request("the object provided is unrecognized: not a JSON object")
    return parsed


def _json(content: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return Response(text, status, headers, "application/json")
