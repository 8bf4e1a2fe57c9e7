"""What an examination says: one finding a thing looked at. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """OK; WARNING: works, but not as well as it could, or nobody can tell; PROBLEM: claims will fail."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """check: what was looked at, one word. remedy: what to do; '' only when all is well. facts: the same for programs,
    keys in camelCase.
    """

    check: str
    status: Status
    message: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def remedy_for(error: Exception, otherwise: str) -> str:
    """What to do about a file that could not be looked at: rights help only who lacks them."""
    return "run as root" if isinstance(error.__cause__, PermissionError) else otherwise


def ok(check: str, message: str, **facts: Any) -> Finding:
    """A finding that needs nothing done."""
    return Finding(check=check, status=Status.OK, message=message, facts=facts)


def warning(check: str, message: str, remedy: str, **facts: Any) -> Finding:
    """A finding that limits what works."""
    return Finding(check=check, status=Status.WARNING, message=message, remedy=remedy, facts=facts)


def problem(check: str, message: str, remedy: str, **facts: Any) -> Finding:
    """A finding that makes claims fail, or gives a GPU away twice."""
    return Finding(check=check, status=Status.PROBLEM, message=message, remedy=remedy, facts=facts)
