"""A Node without a kubelet, whose slices are what ``dra-driver inventory`` prints: places for pods, and no containers.

The API server, the controllers and the scheduler are real, so that they can count hundreds of pods that nobody runs.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.driver import environment
from tests.e2e.manifests import Json
from tests.e2e.scheduler import looking_again
from tests.e2e.waiting import until
from tests.e2e.world import World

NAME: Final = "paper-node"
GATE: Final = "--feature-gates=ConsumableShares=true"
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_NODE: Final = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": NAME, "labels": {"kubernetes.io/hostname": NAME}},
}
_STATUS: Final = {
    "capacity": {"cpu": "1000", "memory": "1Ti", "pods": "1000"},
    "allocatable": {"cpu": "1000", "memory": "1Ti", "pods": "1000"},
    "conditions": [{"type": "Ready", "status": "True"}],
}


class PaperNode:
    """The Node, once ``open`` has made it. What it offers is changed by ``offer``."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._api = cluster.api
        self._world = world

    def open(self) -> None:
        """Make it."""
        self._api.apply(_NODE)
        path = f"/api/v1/nodes/{NAME}/status"
        self._api.raw("PATCH", path, json.dumps({"status": _STATUS}).encode(), "application/merge-patch+json")

    def close(self) -> None:
        """Remove it, and the pods on it, which nobody else would end."""
        self._world.request_deletion(f"/api/v1/namespaces/{self._world.namespace}/pods", grace_s=0)
        for found in self._offered():
            self._api.delete(f"{_SLICES}/{found['metadata']['name']}")
        self._api.delete(f"/api/v1/nodes/{NAME}")

    def offer(self, scenario: str, *flags: str) -> tuple[list[Json], list[Json]]:
        """Offer the GPUs of a scenario; the devices as the driver publishes them, and as the cluster keeps them."""
        command = [sys.executable, "-m", "dra_driver", "inventory", "-o", "slices", f"--node-name={NAME}"]
        command += [f"--simulated-node={scenario}", GATE, *flags]
        printed = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True, timeout=60)
        (sent,) = yaml.safe_load(printed.stdout)["items"]
        self._api.apply(sent)
        (kept,) = self._offered()
        return sent["spec"]["devices"], kept["spec"]["devices"]

    def apply(self, pods: Sequence[Json]) -> None:
        """Make pods that run here or nowhere."""
        for found in pods:
            here = {"nodeSelector": {"kubernetes.io/hostname": NAME}, "tolerations": [{"operator": "Exists"}]}
            self._world.apply({**found, "spec": {**found["spec"], **here}})

    def wait_placed(self, placed: int, waiting: int) -> list[str]:
        """Wait until so many pods have a place here and so many were found none; what these are told."""

        def settled() -> tuple[list[str], int] | None:
            pods = self._world.all("Pod")
            texts = [text for each in pods if (text := _why(each))]
            here = sum(each["spec"].get("nodeName") == NAME for each in pods)
            return (texts, here) if (here, len(texts)) == (placed, waiting) else None

        texts, _ = until(settled, lambda: f"{placed} pods placed, {waiting} waiting\n{self._counts()}")
        return texts

    def consumed(self) -> list[Json]:
        """``consumedCapacity`` of each device of each claim of the namespace that is allocated."""
        claims = self._world.all("ResourceClaim")
        results = [result for each in claims for result in _results(each)]
        return [result.get("consumedCapacity", {}) for result in results]

    def devices(self) -> list[str]:
        """The device of each of those."""
        return [result["device"] for each in self._world.all("ResourceClaim") for result in _results(each)]

    def _offered(self) -> list[Json]:
        found: list[Json] = self._api.get(_SLICES, fieldSelector=f"spec.nodeName={NAME}")["items"]
        return found

    def _counts(self) -> str:
        pods = self._world.all("Pod")
        here = sum(each["spec"].get("nodeName") == NAME for each in pods)
        return f"{here} of {len(pods)} placed; the others: {sorted(set(map(_why, pods)))}"


@contextmanager
def on_paper(cluster: Cluster, world: World, *documents: Json | Path) -> Iterator[PaperNode]:
    """The node, as long as the block takes, with these objects of the cluster, or files of them."""
    made = PaperNode(cluster, world)
    made.open()
    for document in documents:
        if isinstance(document, Path):
            cluster.apply(document)
        else:
            cluster.api.apply(document)
    with looking_again(cluster.api):
        yield made
    made.close()


def _why(pod: Json) -> str:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((str(each["message"]) for each in conditions if each.get("reason") == "Unschedulable"), "")


def _results(claim: Json) -> list[Json]:
    found: list[Json] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found
