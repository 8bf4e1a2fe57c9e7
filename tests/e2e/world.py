"""A namespace of the cluster, as a user works in it: objects in, pods' states and what their containers saw out."""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hack.cluster.cluster import Cluster
from hack.cluster.errors import ClusterError
from tests.e2e.manifests import RESOURCE, Json
from tests.e2e.waiting import SECONDS, until

CARD: Final = re.compile(r"/dev/nvidia\d+")
_NOT_FOUND: Final = 404
_numbers: Final = itertools.count(1)
_COLLECTIONS: Final = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ResourceClaim": f"/apis/{RESOURCE}/namespaces/{{}}/resourceclaims",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a container found. devices: path -> (major, minor)."""

    devices: dict[str, tuple[int, int]]
    environment: dict[str, str]
    mounts: tuple[str, ...]

    @property
    def cards(self) -> dict[str, tuple[int, int]]:
        """The device files of GPUs, without those that all GPUs have in common."""
        return {path: number for path, number in self.devices.items() if CARD.fullmatch(path)}


class World:
    """One namespace. Methods raise ClusterError when the API server does not answer, AssertionError after a wait."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._api = cluster.api

    # Namespace.

    def open(self, **labels: str) -> None:
        """Make it, and wait until pods are allowed."""
        name = {"name": self.namespace, "labels": labels}
        self._api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": name})
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        until(lambda: self._api.find(account), f"service account of namespace {self.namespace}")

    def close(self) -> None:
        """Delete all that is in it, wait until that is gone, and have the empty namespace deleted."""
        self.request_deletion(_COLLECTIONS["Deployment"].format(self.namespace))
        for kind in ("Pod", "ResourceClaim"):
            self.request_deletion(_COLLECTIONS[kind].format(self.namespace))
            until(partial(self._none, kind), self._in_vain(f"each {kind} to go"))
        self.request_deletion(f"/api/v1/namespaces/{self.namespace}")

    def delete_namespace(self) -> None:
        """Delete the namespace with all that is in it, and wait until it is gone."""
        path = f"/api/v1/namespaces/{self.namespace}"
        self.request_deletion(path)
        until(lambda: self._api.find(path) is None, self._in_vain(f"namespace {self.namespace} to go"))

    def request_deletion(self, path: str, grace_s: int | None = None) -> None:
        """DELETE; that it is gone already is fine."""
        self._api.delete(path, None if grace_s is None else {"gracePeriodSeconds": grace_s})

    # Objects.

    def apply(self, *documents: Json) -> None:
        """Create or change objects of this namespace."""
        for document in documents:
            self._api.apply({**document, "metadata": {**document["metadata"], "namespace": self.namespace}})

    def all(self, kind: str, selector: str = "") -> list[Json]:
        """Objects of a kind, by label selector."""
        found: list[Json] = self._api.get(_COLLECTIONS[kind].format(self.namespace), labelSelector=selector)["items"]
        return found

    def get(self, kind: str, name: str) -> Json:
        """An object."""
        return self._api.get(self.path(kind, name))

    def delete(self, kind: str, *names: str, grace_s: int | None = None, wait: bool = True) -> None:
        """Delete objects; grace_s 0 is a forced deletion."""
        for name in names:
            self.request_deletion(self.path(kind, name), grace_s)
        for name in names if wait else ():
            self.wait_gone(kind, name)

    def wait_gone(self, kind: str, name: str) -> None:
        """Wait until an object is gone."""
        path = self.path(kind, name)
        until(lambda: self._api.find(path) is None, lambda: f"{kind} {name} to go\n{self.describe()}")

    def path(self, kind: str, name: str) -> str:
        """Path of an object."""
        return f"{_COLLECTIONS[kind].format(self.namespace)}/{name}"

    # Pods.

    def wait_running(self, *names: str, seconds: float = SECONDS) -> list[Json]:
        """Wait until all containers of these pods run; the pods."""
        return [until(partial(self._running, name), self._in_vain(f"pod {name} to run"), seconds) for name in names]

    def wait_number_running(self, count: int, selector: str, seconds: float = SECONDS) -> list[str]:
        """Wait until so many pods run; their names."""

        def enough() -> list[str]:
            found = [each["metadata"]["name"] for each in self.all("Pod", selector) if runs(each)]
            return sorted(found) if len(found) >= count else []

        return until(enough, self._in_vain(f"{count} pods {selector} to run"), seconds)

    def wait_unschedulable(self, name: str) -> str:
        """Wait until the scheduler has found no place for a pod; its message."""

        def message() -> str:
            conditions = self.get("Pod", name).get("status", {}).get("conditions", ())
            return next((str(each["message"]) for each in conditions if each.get("reason") == "Unschedulable"), "")

        return until(message, self._in_vain(f"pod {name} to be unschedulable"))

    def wait_event(self, reason: str, pod: str) -> str:
        """Wait for an event about a pod; its message."""

        def message() -> str:
            found = [
                str(each["message"])
                for each in self.all("Event")
                if each["reason"] == reason and each["involvedObject"]["name"] == pod
            ]
            return found[0] if found else ""

        return until(message, self._in_vain(f"event {reason} of pod {pod}"))

    def report(self, pod: str, container: str = "main") -> Report:
        """What a container that runs has reported."""
        path = f"{self.path('Pod', pod)}/log?container={container}"
        line = until(lambda: self._api.raw("GET", path), f"output of {pod}/{container}").splitlines()[0]
        found = json.loads(line)
        devices = {each["path"]: (each["major"], each["minor"]) for each in found["devices"]}
        return Report(devices, found["environment"], tuple(found["mounts"]))

    # Claims.

    def allocated(self, claim: str) -> list[tuple[str, str]]:
        """(request, device) of each result of a claim."""
        results = self.get("ResourceClaim", claim)["status"]["allocation"]["devices"]["results"]
        return [(result["request"], result["device"]) for result in results]

    def claim_of(self, pod: str) -> str:
        """Name of the claim that was made for a pod from a template, or by an extended resource."""
        status = self.get("Pod", pod)["status"]
        made = [each["resourceClaimName"] for each in status.get("resourceClaimStatuses", ())]
        return str((made or [status["extendedResourceClaimStatus"]["resourceClaimName"]])[0])

    # For messages.

    def describe(self) -> str:
        """Pods with their states, claims and warnings, a line each."""
        try:
            lines = [*map(_pod_line, self.all("Pod")), *map(_claim_line, self.all("ResourceClaim"))]
            warnings = [each for each in self.all("Event") if each.get("type") == "Warning"]
        except ClusterError as error:
            return str(error)
        lines += [f"{each['involvedObject']['name']}: {each['reason']}: {each['message']}" for each in warnings[-20:]]
        return "\n".join(lines)

    def _none(self, kind: str) -> bool:
        return not self.all(kind)

    def _running(self, name: str) -> Json | None:
        found = self.get("Pod", name)
        return found if runs(found) else None

    def _in_vain(self, what: str) -> Callable[[], str]:
        return lambda: f"{what}\n{self.describe()}"


@contextmanager
def in_namespace(cluster: Cluster, name: str) -> Iterator[World]:
    """A new namespace whose name begins so, as long as the block takes."""
    made = World(cluster, f"{name}-{next(_numbers)}")
    made.open()
    yield made
    made.close()


def runs(pod: Json) -> bool:
    """Whether all containers of a pod run, and it is not being deleted."""
    states = pod.get("status", {}).get("containerStatuses") or [{}]
    return "deletionTimestamp" not in pod["metadata"] and all("running" in each.get("state", {}) for each in states)


def container_ids(pods: Iterable[Json]) -> list[str]:
    """Ids of the containers of pods: a container that was restarted has another."""
    return [str(each["containerID"]) for found in pods for each in found["status"]["containerStatuses"]]


def _pod_line(pod: Json) -> str:
    status: dict[str, Any] = pod.get("status", {})
    states = [each.get("state") for each in status.get("containerStatuses", ())]
    leaving = " (being deleted)" if "deletionTimestamp" in pod["metadata"] else ""
    return f"pod {pod['metadata']['name']}: {status.get('phase')}{leaving} {states}"


def _claim_line(claim: Json) -> str:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    devices = ", ".join(f"{each['request']}={each['device']}" for each in results)
    leaving = " (being deleted)" if "deletionTimestamp" in claim["metadata"] else ""
    return f"claim {claim['metadata']['name']}: {devices or 'not allocated'}{leaving}"
