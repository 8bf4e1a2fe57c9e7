"""The chart's DaemonSet on Nodes without kubelets: the controller places its pods, and nobody runs them."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hack.cluster.cluster import Cluster
from tests.e2e.manifests import Json
from tests.e2e.release import CHART
from tests.e2e.waiting import until

NAMESPACE: Final = "placed-nodes"
_NODES: Final = "/api/v1/nodes"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NOW: Final = {"gracePeriodSeconds": 0}
_TEMPLATES: Final = ("daemonset", "serviceaccount")


class Placed:
    """Objects in a namespace of their own, once ``open`` has made them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._added: list[str] = []

    def open(self, values: Mapping[str, Any]) -> None:
        """Make the DaemonSet as the chart renders it with these values."""
        self._cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, "values.json")
            file.write_text(json.dumps(values), encoding="utf-8")
            only = [f"--show-only=templates/{name}.yaml" for name in _TEMPLATES]
            flags = (f"--namespace={NAMESPACE}", f"--values={file}", *only)
            self._cluster.apply(self._cluster.helm("template", "gpus", str(CHART), *flags))

    def add(self, name: str, labels: Mapping[str, str], taints: Sequence[Json]) -> None:
        """Make a Node."""
        metadata = {"name": name, "labels": dict(labels)}
        self._cluster.api.apply(
            {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": list(taints)}}
        )
        self._added.append(name)

    def wait_on(self, names: set[str]) -> None:
        """Wait until the controller wants a pod on each of these nodes, and on no other, and has made them."""

        def so() -> bool:
            (status,) = [each["status"] for each in self._sets()]
            current = status.get("observedGeneration") == 1
            return current and status["desiredNumberScheduled"] == len(names) and self._on() == names

        until(so, lambda: f"driver pods on {sorted(names)}, not {sorted(self._on())}; {self._sets()}")

    def close(self) -> None:
        """Remove all of it. Nobody would end the pods, so they are not waited for."""
        self._cluster.api.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets")
        until(lambda: not self._sets(), "the DaemonSet to go")
        for pod in self._cluster.api.get(_PODS)["items"]:
            self._cluster.api.delete(f"{_PODS}/{pod['metadata']['name']}", _NOW)
        for name in self._added:
            self._cluster.api.delete(f"{_NODES}/{name}")
        self._cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
        until(lambda: self._cluster.api.find(f"/api/v1/namespaces/{NAMESPACE}") is None, "the namespace to go")

    def _sets(self) -> list[Json]:
        found: list[Json] = self._cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets")["items"]
        return found

    def _on(self) -> set[str]:
        """Nodes that pods are bound to by the affinity that the controller gives them."""
        return {_target(pod) for pod in self._cluster.api.get(_PODS)["items"]}


def _target(pod: Json) -> str:
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (name,) = {field["values"][0] for term in required["nodeSelectorTerms"] for field in term["matchFields"]}
    return str(name)
