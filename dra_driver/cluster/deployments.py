"""Deployments of the driver's own namespace, and their pods: MPS control daemons are run by them."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from dra_driver.cluster.connection import Connection
from dra_driver.model.errors import ApiError
from dra_driver.ports import Json

_TIMEOUT_S = 8.0
"""A prepare waits for it, and the kubelet gives one 45 s."""

_FORBIDDEN = 403
_NOT_FOUND = 404
_PAGE = "500"
_REMEDY = "give the driver's service account this right, as the chart does with featureGates.MPSSupport=true"


class ApiDeployments:
    """DeploymentApi on an API server. Not paced where pods wait for it."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        self.namespace = namespace
        space = quote(namespace, safe="")
        self._deployments = f"/apis/apps/v1/namespaces/{space}/deployments"
        self._pods = f"/api/v1/namespaces/{space}/pods"

    def get(self, name: str) -> Json | None:
        """See ports.DeploymentApi."""
        try:
            return self._request("GET", self._path(name))
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
        return None

    def labelled(self, labels: Mapping[str, str]) -> Sequence[Json]:
        """See ports.DeploymentApi."""
        return self._list(self._deployments, labels, paced=True)

    def create(self, deployment: Json) -> Json:
        """See ports.DeploymentApi."""
        return self._request("POST", self._deployments, body=deployment)

    def delete(self, deployment: Json) -> None:
        """See ports.DeploymentApi."""
        metadata = deployment["metadata"]
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # The Deployment stays until its pods are gone, so that its absence says something.
            "propagationPolicy": "Foreground",
            "preconditions": {"uid": metadata["uid"]},
        }
        try:
            self._request("DELETE", self._path(metadata["name"]), body=options)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise

    def pods(self, labels: Mapping[str, str]) -> Sequence[Json]:
        """See ports.DeploymentApi."""
        return self._list(self._pods, labels, paced=False)

    def _path(self, name: str) -> str:
        return f"{self._deployments}/{quote(name, safe='')}"

    def _list(self, path: str, labels: Mapping[str, str], *, paced: bool) -> Sequence[Json]:
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        query = {"labelSelector": selector, "limit": _PAGE}
        found: list[Json] = []
        while True:
            page = self._request("GET", path, query, paced=paced)
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            query = {**query, "continue": str(following)}

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        *,
        paced: bool = False,
    ) -> Json:
        try:
            return self._connection.request(method, path, query, body, _TIMEOUT_S, paced=paced)
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            # The API server's words name user, verb and resource; an admission's refusal has the same status.
            remedy = f": {_REMEDY}" if "cannot " in str(error) else ""
            raise ApiError(f"{error}{remedy}", error.status) from error
