"""The load's door to an API server: nodes, claims and slices as JSON. Knows nothing of the driver's processes."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dra_driver.cluster.connection import Connection, connect
from dra_driver.model.errors import ApiError, DriverError
from dra_driver_api import names
from hack.bench import objects
from hack.bench.errors import BenchError
from hack.bench.objects import Claim, Device, Json

RESOURCES: Final = f"/apis/{names.RESOURCE_API_VERSION}"
NODES: Final = "/api/v1/nodes"
_AGENT: Final = "dra-driver-bench"
_TIMEOUT_S: Final = 30.0
_WATCH_S: Final = 300
_WRITERS: Final = 4


class Cluster:
    """An API server, reached as a kubeconfig says. Requests raise ApiError. Safe for threads."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        """Raises BenchError when the kubeconfig cannot be used."""
        self._kubeconfig = str(kubeconfig)
        self._connection = self._connect()
        self._namespace = namespace

    def version(self) -> str:
        """What it calls its version, as ``v1.36.3``."""
        return str(self._ask("GET", "/version")["gitVersion"])

    def add_node(self, name: str) -> None:
        """Create the Node if it is not there."""
        try:
            self._ask("POST", NODES, body=objects.node(name))
        except ApiError as error:
            if error.status != 409:
                raise

    def remove_node(self, name: str) -> None:
        """Delete the Node. Missing is fine."""
        self._delete(f"{NODES}/{name}")

    def remove_slices(self, name: str) -> None:
        """Delete the driver's slices of a node, which say nothing once the driver has ended. Missing is fine."""
        for found in self.slices(name)[0]:
            self._delete(f"{RESOURCES}/resourceslices/{found['metadata']['name']}")

    def slices(self, node: str) -> tuple[list[Json], str]:
        """The driver's slices of a node, and the resourceVersion to watch from."""
        found = self._ask("GET", f"{RESOURCES}/resourceslices", _of_node(node))
        ours = [item for item in found.get("items") or [] if item["spec"]["driver"] == names.DRIVER_NAME]
        return ours, found["metadata"]["resourceVersion"]

    def allocated_claims(self, devices: Sequence[Device], node: str, run: str, sharing: str) -> list[Claim]:
        """One new claim for each entry of ``devices``, allocated to it, in that order."""
        path = f"{RESOURCES}/namespaces/{self._namespace}/resourceclaims"
        prefix = f"{run}-{sharing.lower().replace(',', '').replace(' ', '-')}"

        def make(number: int, device: Device) -> Claim:
            created = self._ask("POST", path, body=objects.claim(f"{prefix}-{number:04d}", run, sharing))
            name, uid = created["metadata"]["name"], created["metadata"]["uid"]
            self._ask("PUT", f"{path}/{name}/status", body=objects.allocated(created, device, node, sharing))
            return Claim(self._namespace, name, uid)

        with ThreadPoolExecutor(_WRITERS) as writers:
            return list(writers.map(make, range(len(devices)), devices))

    def get(self, claim: Claim) -> Json:
        """Read one claim, as the driver does for each prepare."""
        return self._ask("GET", f"{RESOURCES}/namespaces/{claim.namespace}/resourceclaims/{claim.name}")

    def remove_claims(self, run: str) -> None:
        """Delete the claims of one run of the bench."""
        query = {"labelSelector": f"{objects.LABEL}={run}"}
        self._ask("DELETE", f"{RESOURCES}/namespaces/{self._namespace}/resourceclaims", query)

    @contextmanager
    def watching(self, node: str, devices: int) -> Iterator["SliceWatch"]:
        """A watch that notes when slices with this many devices are published for the node."""
        found, version = self.slices(node)
        connection = self._connect()
        watch = SliceWatch(connection, node, found, devices)
        watch.begin(version)
        try:
            yield watch
        finally:
            connection.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._connection.close()

    def _connect(self) -> Connection:
        try:
            return connect(self._kubeconfig, _AGENT)
        except DriverError as error:
            raise BenchError(f"kubeconfig {self._kubeconfig} cannot be used: {error}") from error

    def _ask(self, method: str, path: str, query: dict[str, str] | None = None, body: Json | None = None) -> Json:
        return self._connection.request(method, path, query, body, _TIMEOUT_S)

    def _delete(self, path: str) -> None:
        try:
            self._ask("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise


class SliceWatch:
    """Follows a node's slices in a thread of its own; ``complete_at`` is a ``time.monotonic`` value."""

    def __init__(self, connection: Connection, node: str, found: Sequence[Json], devices: int) -> None:
        self.complete_at: float | None = None
        self.devices: tuple[Device, ...] = ()
        self._connection = connection
        self._node = node
        self._wanted = devices
        self._slices = {item["metadata"]["name"]: item for item in found}
        self._complete = threading.Event()

    def begin(self, version: str) -> None:
        """Watch from a resourceVersion."""
        threading.Thread(target=self._follow, args=(version,), name="slice-watch", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether all slices are there by then."""
        return self._complete.wait(seconds)

    def _follow(self, version: str) -> None:
        query = {**_of_node(self._node), "watch": "true", "resourceVersion": version}
        query["timeoutSeconds"] = str(_WATCH_S)
        try:
            for event in self._connection.stream(f"{RESOURCES}/resourceslices", query, _WATCH_S):
                self._take(event)
        except ApiError:
            return  # closed, or broken: then the waiting side says what is missing

    def _take(self, event: Json) -> None:
        obj = event["object"]
        if event["type"] == "DELETED":
            self._slices.pop(obj["metadata"]["name"], None)
        elif event["type"] in ("ADDED", "MODIFIED") and obj["spec"]["driver"] == names.DRIVER_NAME:
            self._slices[obj["metadata"]["name"]] = obj
        found = objects.devices_of(list(self._slices.values()))
        if found is not None and len(found) >= self._wanted and not self._complete.is_set():
            self.complete_at, self.devices = time.monotonic(), found
            self._complete.set()


def _of_node(name: str) -> dict[str, str]:
    return {"fieldSelector": f"spec.nodeName={name}"}
