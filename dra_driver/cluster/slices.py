"""This node's ResourceSlices of this driver in the API server: list, watch and write. Decides nothing."""

from collections.abc import Iterator
from urllib.parse import quote

from dra_driver.cluster.connection import Connection, refusal
from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.ports import Json
from dra_driver_api.names import DRIVER_NAME, RESOURCE_API_VERSION

_PATH = f"/apis/{RESOURCE_API_VERSION}/resourceslices"
_NOT_FOUND = 404
_SILENCE_S = 30.0
"""How long after its end a watch may stay silent before its connection is taken for dead."""


class ApiSlices:
    """SliceStore on an API server; field selectors keep other nodes' slices out."""

    def __init__(self, connection: Connection, node_name: str) -> None:
        self._connection = connection
        self._selector = {"fieldSelector": f"spec.driver={DRIVER_NAME},spec.nodeName={node_name}"}

    def list(self) -> tuple[list[Json], str]:
        """The slices and the resourceVersion to watch from. Raises ApiError."""
        try:
            found = self._connection.request("GET", _PATH, self._selector)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                hint = f"the API server does not serve {RESOURCE_API_VERSION}, Kubernetes 1.34 or later is needed"
                raise ApiError(f"{error}; {hint}", _NOT_FOUND) from error
            raise
        metadata = found.get("metadata") or {}
        # A list leaves these out of its items; a PUT needs them.
        kind = {"apiVersion": RESOURCE_API_VERSION, "kind": "ResourceSlice"}
        return [{**kind, **item} for item in found.get("items") or []], str(metadata.get("resourceVersion", ""))

    def watch(self, resource_version: str, timeout_seconds: float) -> Iterator[tuple[str, Json]]:
        """(event type, object) with bookmarks until the time is over. Raises ApiError, status 410 when too old."""
        query = self._selector | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_seconds))),
        }
        for event in self._connection.stream(_PATH, query, timeout_seconds + _SILENCE_S):
            kind, item = event.get("type"), event.get("object")
            if not isinstance(kind, str) or not isinstance(item, dict):
                raise ApiUnreachable(f"GET {_PATH}: not a watch event: {str(event)[:100]}")
            if kind == "ERROR":
                raise refusal(f"GET {_PATH}", int(item.get("code") or 500), str(item.get("message")))
            if isinstance(item.get("metadata"), dict):
                yield kind, item

    def create(self, resource_slice: Json) -> Json:
        """Create and return as stored. Raises ApiError."""
        return self._connection.request("POST", _PATH, body=resource_slice)

    def replace(self, resource_slice: Json) -> Json:
        """PUT with the resourceVersion in the object; as stored. Raises ApiError, status 409 when it changed."""
        return self._connection.request("PUT", _path_of(resource_slice), body=resource_slice)

    def delete(self, resource_slice: Json) -> None:
        """Delete if it is still this very object; missing is success. Raises ApiError."""
        metadata = resource_slice["metadata"]
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {name: metadata[name] for name in ("uid", "resourceVersion")},
        }
        try:
            self._connection.request("DELETE", _path_of(resource_slice), body=options)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise


def _path_of(resource_slice: Json) -> str:
    return f"{_PATH}/{quote(resource_slice['metadata']['name'], safe='')}"
