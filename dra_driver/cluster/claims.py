"""ResourceClaims: the one a prepare is about, and all that hold devices of this driver; DeviceClasses. Reads only."""

import logging
import re
import time
from collections.abc import Callable
from urllib.parse import quote

from dra_driver.cluster.connection import Connection
from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import ApiError, ClaimNotFound
from dra_driver.ports import Json
from dra_driver_api.names import DRIVER_NAME, RESOURCE_API_VERSION

_RESOURCE = f"/apis/{RESOURCE_API_VERSION}"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME_LIMIT = 253

_GET_TIMEOUT_S = 8.0
"""The kubelet gives a prepare 45 s; with one repetition and its backlog this leaves most of it."""

_LIST_TIMEOUT_S = 30.0
_PAGE = "500"
_NOT_FOUND = 404
_FORBIDDEN = 403

_CLASS_AGE_S = 60.0
"""How long a DeviceClass counts as it was read."""

log = logging.getLogger(__name__)


class ApiClaims:
    """ClaimReader on an API server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, claim: ClaimRef) -> Json:
        """The claim with this name and UID. Not paced: pods wait for it. Raises ClaimNotFound, ApiError."""
        _check(claim)
        path = f"{_RESOURCE}/namespaces/{quote(claim.namespace, safe='')}/resourceclaims/{quote(claim.name, safe='')}"
        try:
            found = self._connection.request("GET", path, timeout_s=_GET_TIMEOUT_S, paced=False)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            raise ClaimNotFound(f"ResourceClaim {claim} does not exist in the API server: {error}") from error
        metadata = found.get("metadata")
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if uid != claim.uid:
            raise ClaimNotFound(
                f"ResourceClaim {claim.namespace}/{claim.name} was replaced: the kubelet asks for uid {claim.uid}, "
                f"the API server has uid {uid}"
            )
        return found

    def list_allocated(self) -> list[Json]:
        """All claims of the cluster with a device of this driver allocated, page by page. Raises ApiError."""
        query = {"limit": _PAGE}
        found: list[Json] = []
        while True:
            page = self._connection.request("GET", f"{_RESOURCE}/resourceclaims", query, timeout_s=_LIST_TIMEOUT_S)
            found += [item for item in page.get("items") or [] if _is_ours(item)]
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            query = {"limit": _PAGE, "continue": str(following)}


class ApiClasses:
    """ClassReader on an API server. Thread-safe."""

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._known: dict[str, tuple[float, Json | None]] = {}
        self._refused = False

    def get(self, name: str) -> Json | None:
        """See ports.ClassReader. Not paced: pods wait for it."""
        known = self._known.get(name)
        if known is not None and self._clock() - known[0] < _CLASS_AGE_S:
            return known[1]
        path = f"{_RESOURCE}/deviceclasses/{quote(name, safe='')}"
        found: Json | None = None
        try:
            found = self._connection.request("GET", path, timeout_s=_GET_TIMEOUT_S, paced=False)
        except ApiError as error:
            if error.status not in (_FORBIDDEN, _NOT_FOUND):
                raise
            if error.status == _FORBIDDEN and not self._refused:
                self._refused = True
                log.warning(
                    "DeviceClasses must not be read (%s): a class that demands enforced memory limits cannot be told "
                    "from others; give this driver's account the right to get deviceclasses",
                    error,
                )
        self._known[name] = self._clock(), found
        return found


def _check(claim: ClaimRef) -> None:
    """Names that no API server can have given would only lead the request elsewhere."""
    parts = (("namespace", claim.namespace, _NAMESPACE), ("name", claim.name, _NAME))
    for what, value, form in parts:
        if not form.fullmatch(value) or len(value) > _NAME_LIMIT:
            raise ClaimNotFound(f"ResourceClaim with {what} {value[:100]!r} cannot exist: not a valid {what}")
    if not claim.uid:
        raise ClaimNotFound(f"ResourceClaim {claim.namespace}/{claim.name} was asked for without a uid")


def _is_ours(item: Json) -> bool:
    allocation = (item.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or []
    return any(result.get("driver") == DRIVER_NAME for result in results)
