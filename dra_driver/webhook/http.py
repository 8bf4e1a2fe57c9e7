"""The webhook's pages, as an ASGI application. No sockets and no threads here."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dra_driver.webhook.reviews import BadReview, Review, Verdict, answer, parse

log = logging.getLogger(__name__)

VALIDATE: Final = "/validate-resource-claim-parameters"
MAX_BODY: Final = 4 * 1024 * 1024
"""Bytes. An UPDATE has two objects, and etcd takes none above 1.5 MiB."""
BODY_SECONDS: Final = 10.0
"""How long a client may take to send it."""
_JSON: Final = "application/json"
_MAX_LOGGED: Final = 300


class _Refused(Exception):
    """The request is not looked at any further."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def application(judge: Callable[[Review], Verdict], trouble: Callable[[], str]) -> Starlette:
    """judge: the answer to a question. trouble: what the readiness page has to tell besides being ready, '' for
    nothing.
    """

    async def validate(request: Request) -> Response:
        try:
            review = parse(await _body(request))
        except _Refused as refused:
            return _turned_away(request, refused.status, str(refused))
        except BadReview as error:
            return _turned_away(request, 400, str(error))
        except ClientDisconnect:
            return Response(status_code=400)
        verdict = judge(review)
        if verdict.refused:
            shown = verdict.refused[:_MAX_LOGGED]
            log.info("refused %s of %s %s: %s", review.operation, review.resource[:100], review.name, shown)
        return JSONResponse(answer(review, verdict))

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        text = trouble()
        # Not unready for it: what was good before still serves, and this Pod is not worse than none.
        return PlainTextResponse(f"ok\n{text}\n" if text else "ok\n")

    return Starlette(
        routes=[
            Route(VALIDATE, validate, methods=["POST"]),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ]
    )


async def _body(request: Request) -> bytes:
    """The body, of the right type and size. Raises _Refused, ClientDisconnect."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise _Refused(415, f"Content-Type is {content_type[:100]!r}, want {_JSON}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise _Refused(413, f"the body is larger than {MAX_BODY} bytes")
    except TimeoutError:
        raise _Refused(408, f"the body was not here within {BODY_SECONDS:g} s") from None
    return bytes(body)


def _turned_away(request: Request, status: int, text: str) -> Response:
    client = request.client.host if request.client else "somebody"
    log.warning("request from %s turned away with %d: %s", client, status, text[:_MAX_LOGGED])
    # What is left of the body is not read: the connection cannot be used again.
    return PlainTextResponse(f"{text}\n", status_code=status, headers={"Connection": "close"})
