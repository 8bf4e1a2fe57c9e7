"""Refusals of the simulated API server, worded as the real one words them. No HTTP and no storage here."""

from collections.abc import Sequence
from typing import Any

from dra_driver.model.errors import ApiError
from dra_driver.simulator.kinds import Kind

_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class StatusError(ApiError):
    """An answer other than success. ``body`` is the ``metav1.Status`` object that goes over the wire."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message, code)
        self.reason = reason
        self.details = details or {}

    @property
    def body(self) -> dict[str, Any]:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.status,
        }


def _details(kind: Kind, name: str) -> dict[str, Any]:
    return {"name": name, "group": kind.group, "kind": kind.plural}


def not_found(kind: Kind, name: str) -> StatusError:
    """404: no such object."""
    return StatusError(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def no_such_path(path: str) -> StatusError:
    """404: no such resource type."""
    return StatusError(404, "NotFound", f"the server could not find the requested resource ({path})")


def already_exists(kind: Kind, name: str) -> StatusError:
    """409: the name is taken."""
    return StatusError(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', _details(kind, name))


def conflict(kind: Kind, name: str, why: str = _MODIFIED) -> StatusError:
    """409: another write came first, or a precondition does not hold."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(kind, name))


def invalid(kind: Kind, name: str, errors: Sequence[str]) -> StatusError:
    """422: the object breaks a rule; ``errors`` are ``field: reason`` texts."""
    title = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    joined = errors[0] if len(errors) == 1 else "[" + ", ".join(errors) + "]"
    causes = [{"field": e.partition(": ")[0], "message": e.partition(": ")[2]} for e in errors]
    return StatusError(
        422, "Invalid", f'{title} "{name}" is invalid: {joined}', {**_details(kind, name), "causes": causes}
    )


def bad_request(message: str) -> StatusError:
    """400: the request itself makes no sense."""
    return StatusError(400, "BadRequest", message)


def expired(asked: int, oldest: int) -> StatusError:
    """410: the history back to ``asked`` is gone."""
    return StatusError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, current: int) -> StatusError:
    """504: a resourceVersion from the future."""
    return StatusError(504, "Timeout", f"Too large resource version: {asked}, current: {current}")
