"""The Node object of this node: only its UID is needed, for owner references."""

from urllib.parse import quote

from dra_driver.cluster.connection import Connection
from dra_driver.model.errors import ApiError


class ApiNode:
    """NodeReader on an API server."""

    def __init__(self, connection: Connection, node_name: str) -> None:
        self._connection = connection
        self._node_name = node_name

    def uid(self) -> str:
        """UID of the Node. Raises ApiError, status 404 when ``--node-name`` names no Node of the cluster."""
        found = self._connection.request("GET", f"/api/v1/nodes/{quote(self._node_name, safe='')}")
        uid = (found.get("metadata") or {}).get("uid")
        if not isinstance(uid, str) or not uid:
            raise ApiError(f"Node {self._node_name}: the API server gave no uid")
        return uid
