"""The requests of a claim, in the forms of the API's versions, as far as configs depend on them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dra_driver.features import closest
from dra_driver.validation.findings import Findings, Path

MAX_ENTRIES = 32
"""Most requests, configs and names in a config that a claim may have (resource.k8s.io: DeviceRequestsMaxSize, ...).
What is beyond is not looked at: entries are compared with each other, and a caller must not decide how often."""

_MAX_ALTERNATIVES = 8
_MAX_NAME = 127
"""``main/sub``, each a DNS label."""

_ALTERNATIVES = "firstAvailable"
_FLAT_VERSION = "v1beta1"


@dataclass(frozen=True, slots=True)
class Request:
    """What one allocation result can be for. name: ``main``, or ``main/sub`` for one of several alternatives."""

    name: str
    device_class: str
    admin_access: bool = False

    @property
    def main(self) -> str:
        """The name without the alternative's."""
        return self.name.partition("/")[0]


def read_requests(path: Path, requests: Any, version: str, findings: Findings) -> tuple[Request, ...]:
    """All requests and alternatives. version: of resource.k8s.io; v1beta1 has the fields of ``exactly`` inline."""
    if requests is None:
        return ()
    if not isinstance(requests, list):
        findings.error(path, "want a list of requests")
        return ()
    if len(requests) > MAX_ENTRIES:
        findings.error(path, f"{len(requests)} entries, at most {MAX_ENTRIES} are allowed")
    return tuple(
        request
        for index, entry in enumerate(requests[:MAX_ENTRIES])
        for request in _read_request((*path, index), entry, version, findings)
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely meant, None when none is near."""
    return closest(name, known) if len(name) <= _MAX_NAME else None


def _read_request(path: Path, entry: Any, version: str, findings: Findings) -> Iterator[Request]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        findings.error(path, "want a request with a name")
        return
    name: str = entry["name"]
    alternatives = entry.get(_ALTERNATIVES)
    if isinstance(alternatives, list):
        yield from (
            _request(f"{name}/{alternative.get('name')}", alternative)
            for alternative in alternatives[:_MAX_ALTERNATIVES]
            if isinstance(alternative, dict)
        )
        return
    exactly = entry.get("exactly")
    if version == _FLAT_VERSION:
        if exactly is not None:
            findings.error((*path, "exactly"), "resource.k8s.io/v1beta1 has its fields in the request itself")
        yield _request(name, exactly if isinstance(exactly, dict) else entry)
    elif isinstance(exactly, dict):
        yield _request(name, exactly)
    else:
        flat = next((key for key in ("deviceClassName", "adminAccess", "count", "selectors") if key in entry), None)
        if flat is not None:
            findings.error((*path, flat), f"in resource.k8s.io/{version} it belongs in exactly")
        else:
            findings.error(path, f'request "{name}" has neither exactly nor {_ALTERNATIVES}')
        yield _request(name, entry)


def _request(name: str, body: dict[str, Any]) -> Request:
    return Request(name, str(body.get("deviceClassName") or ""), body.get("adminAccess") is True)
