"""AdmissionReview of admission.k8s.io/v1, in and out. Pure; what is asked about is not judged here."""

import json
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.model.texts import in_one_line

_API_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_MAX_UID: Final = 128
_MAX_SHOWN: Final = 100
_MAX_WARNING: Final = 256
"""Runes; the API server may cut what is longer."""

CODES: Final = {"Invalid": 422, "BadRequest": 400}
"""HTTP status that a client gets with each reason."""


class BadReview(ValueError):
    """What came is no AdmissionReview that can be answered."""


@dataclass(frozen=True, slots=True)
class Review:
    """One question. ``object`` and ``old_object`` are None where there is none, as in a DELETE."""

    uid: str
    operation: str
    group: str
    version: str
    resource: str
    name: str
    object: dict[str, Any] | None
    old_object: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. refused: why not, '' to let it pass. reason: of a refusal, one of CODES. warnings: for the client."""

    refused: str = ""
    reason: str = "Invalid"
    warnings: tuple[str, ...] = ()


def parse(body: bytes) -> Review:
    """The question in a request's body. Raises BadReview."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise BadReview("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise BadReview(f"not JSON: {_shown(str(error))}") from None
    if not isinstance(found, dict) or (found.get("apiVersion"), found.get("kind")) != (_API_VERSION, _KIND):
        has = f"{found.get('apiVersion')} {found.get('kind')}" if isinstance(found, dict) else type(found).__name__
        raise BadReview(f"want {_API_VERSION} {_KIND}, found {_shown(has)}")
    asked = found.get("request")
    if not isinstance(asked, dict):
        raise BadReview(f"the {_KIND} has no request")
    uid, resource = asked.get("uid"), asked.get("resource")
    if not isinstance(uid, str) or not 0 < len(uid) <= _MAX_UID:
        raise BadReview(f"request.uid: want a text of 1 to {_MAX_UID} characters, found {_shown(repr(uid))}")
    if not isinstance(resource, dict):
        raise BadReview("request.resource: want group, version and resource")
    group, version, plural = (str(resource.get(key) or "") for key in ("group", "version", "resource"))
    return Review(
        uid=uid,
        operation=_shown(str(asked.get("operation") or "")),
        group=group,
        version=version,
        resource=plural,
        name=_shown("/".join(str(asked[key]) for key in ("namespace", "name") if asked.get(key))),
        object=_object(asked, "object"),
        old_object=_object(asked, "oldObject"),
    )


def answer(review: Review, verdict: Verdict) -> dict[str, Any]:
    """The AdmissionReview to send back."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": not verdict.refused}
    if verdict.refused:
        response["status"] = {
            "status": "Failure",
            "message": verdict.refused,
            "reason": verdict.reason,
            "code": CODES[verdict.reason],
        }
    if verdict.warnings:
        response["warnings"] = [
            text if len(text) <= _MAX_WARNING else f"{text[: _MAX_WARNING - 1]}…" for text in verdict.warnings
        ]
    return {"apiVersion": _API_VERSION, "kind": _KIND, "response": response}


def _object(asked: dict[str, Any], key: str) -> dict[str, Any] | None:
    found = asked.get(key)
    if found is None or isinstance(found, dict):
        return found
    raise BadReview(f"request.{key}: want an object or null, found {type(found).__name__}")


def _shown(text: str) -> str:
    """Foreign text for messages and the log: one line, of a bearable length."""
    return in_one_line(text[:_MAX_SHOWN])
