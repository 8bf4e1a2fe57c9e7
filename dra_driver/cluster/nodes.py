"""The Node object of this node: UID for owner references, labels for a sharing profile, what a device plugin offers."""

from collections.abc import Mapping
from urllib.parse import quote

from dra_driver.cluster.connection import Connection
from dra_driver.model.errors import ApiError
from dra_driver.ports import Json

_SOON_S = 3.0
"""Time limit for labels, which who looks after the GPUs waits for."""


class ApiNode:
    """NodeReader on an API server."""

    def __init__(self, connection: Connection, node_name: str) -> None:
        self._connection = connection
        self._node_name = node_name

    def uid(self) -> str:
        """UID of the Node. Raises ApiError, status 404 when ``--node-name`` names no Node of the cluster."""
        uid = self._metadata().get("uid")
        if not isinstance(uid, str) or not uid:
            raise ApiError(f"Node {self._node_name}: the API server gave no uid")
        return uid

    def labels(self) -> Mapping[str, str]:
        """Labels of the Node. Raises ApiError as ``uid`` does."""
        return {str(key): str(value) for key, value in (self._metadata(_SOON_S).get("labels") or {}).items()}

    def allocatable(self) -> Mapping[str, str]:
        """``status.allocatable``: what the kubelet counts, resources of device plugins among it. Raises ApiError."""
        status = self._get(_SOON_S).get("status") or {}
        return {str(name): str(amount) for name, amount in (status.get("allocatable") or {}).items()}

    def _metadata(self, timeout_s: float = 10.0) -> Json:
        return self._get(timeout_s).get("metadata") or {}

    def _get(self, timeout_s: float) -> Json:
        path = f"/api/v1/nodes/{quote(self._node_name, safe='')}"
        return self._connection.request("GET", path, timeout_s=timeout_s)
