"""Where the objects come from: manifests, or a cluster that is only read."""

from collections.abc import Iterator

from dra_driver.cluster.connection import Connection
from dra_driver.explain.state import Json, State
from dra_driver.model.errors import ApiError, DriverError
from dra_driver_api.names import RESOURCE_API_VERSION

_PAGE = "500"
_ABSENT = (403, 404)
_GROUP = f"/apis/{RESOURCE_API_VERSION}"


class Unreadable(DriverError):
    """The cluster does not let what is needed be read."""


def from_cluster(connection: Connection) -> State:
    """Everything that counts, of all namespaces: claims elsewhere hold devices too. Raises Unreadable, ApiError."""
    objects: list[Json] = []
    for path, kind in (
        (f"{_GROUP}/resourceslices", "ResourceSlice"),
        (f"{_GROUP}/deviceclasses", "DeviceClass"),
        (f"{_GROUP}/resourceclaims", "ResourceClaim"),
        (f"{_GROUP}/resourceclaimtemplates", "ResourceClaimTemplate"),
        ("/api/v1/pods", "Pod"),
        ("/api/v1/nodes", "Node"),
    ):
        try:
            objects += [{"kind": kind, **item} for item in list_all(connection, path)]
        except ApiError as error:
            if error.status in _ABSENT:
                needs = f"the right to list {path.rsplit('/', 1)[1]} in all namespaces, on Kubernetes 1.34 or later"
                raise Unreadable(f"{kind}s cannot be listed: {error}; an explanation needs {needs}") from error
            raise
    return State.of([*objects, *_taint_rules(connection)])


def _taint_rules(connection: Connection) -> Iterator[Json]:
    """Of whichever version is served; most clusters have none."""
    for version in ("v1", "v1beta2", "v1alpha3"):
        try:
            found = list(list_all(connection, f"/apis/resource.k8s.io/{version}/devicetaintrules"))
        except ApiError as error:
            if error.status not in _ABSENT:
                raise
            continue
        yield from ({"kind": "DeviceTaintRule", **item} for item in found)
        return


def list_all(connection: Connection, path: str) -> Iterator[Json]:
    """All objects of a collection, page by page, without their kind. Raises ApiError."""
    query = {"limit": _PAGE}
    while True:
        page = connection.request("GET", path, query)
        yield from page.get("items") or []
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return
        query = {"limit": _PAGE, "continue": str(following)}
