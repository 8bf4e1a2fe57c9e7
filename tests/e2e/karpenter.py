"""Karpenter in a test cluster: its CRDs, and its core with the provider that makes Nodes without machines."""

import json
import os
import re
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest
import yaml

from hack.cluster import build, published
from hack.cluster.api import condition
from hack.cluster.cluster import Cluster
from tests.e2e.manifests import Json
from tests.e2e.waiting import until

_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_POOLS: Final = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"
_CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "no-machines"}
_STOP_S: Final = 30.0


@contextmanager
def crds_applied(cluster: Cluster) -> Iterator[None]:
    """Karpenter's CRDs are served as long as the block takes."""
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in published.karpenter_crds()]
    names = [each["metadata"]["name"] for each in found]
    cluster.api.apply_all(found)

    def served() -> bool:
        return all(
            condition(cluster.api.get(f"{_CRDS}/{name}"), "Established").get("status") == "True" for name in names
        )

    until(served, f"CRDs {', '.join(names)}")
    yield
    for name in names:
        cluster.api.delete(f"{_CRDS}/{name}")
    until(lambda: all(cluster.api.find(f"{_CRDS}/{name}") is None for name in names), "the CRDs to go")


class Karpenter:
    """Karpenter's core as a process of the host, and one NodePool. Both go at the end.

    The pool is as its file has it, but for the class: machines of a kind of the same name and zone come from nowhere.
    static: whether the gate StaticCapacity is on.
    """

    def __init__(self, cluster: Cluster, folder: Path, pool: Json, static: bool = True) -> None:
        self._cluster = cluster
        self._gates = f"StaticCapacity={str(static).lower()}"
        self._metrics_port = _free_port()
        self._log = folder / "karpenter.log"
        self._types = folder / "types.json"
        self._types.write_text(json.dumps([_instance_type(pool)]), encoding="utf-8")
        template = pool["spec"]["template"]
        spec = {**pool["spec"], "template": {**template, "spec": {**template["spec"], "nodeClassRef": _CLASS}}}
        self._pool = {**pool, "spec": spec}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Karpenter":
        metadata = {"name": _CLASS["name"]}
        self._cluster.api.apply_all(
            [
                {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": _CLASS["kind"], "metadata": metadata, "spec": {}},
                self._pool,
            ]
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([_program()], env=self._environment(), stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.api.delete(f"{_POOLS}/{self._pool['metadata']['name']}")
        assert self._process is not None
        try:
            until(
                lambda: not self._cluster.api.get(_CLAIMS)["items"] and not self.nodes(), self._said("the nodes to go")
            )
        finally:
            self._process.terminate()
            self._process.wait(_STOP_S)

    def wait_nodes(self, count: int) -> list[Json]:
        """The Nodes of the pool, once there are so many and all are registered with Karpenter."""

        def registered() -> list[Json] | None:
            found = self.nodes()
            labels = [node["metadata"]["labels"].get("karpenter.sh/registered") for node in found]
            return found if labels == ["true"] * count else None

        return until(registered, self._said(f"{count} nodes"))

    def wait_ready(self) -> Json:
        """The pool, once Karpenter says that it is Ready. Its controllers run by then."""

        def ready() -> Json | None:
            found = self._cluster.api.get(f"{_POOLS}/{self._pool['metadata']['name']}")
            return found if condition(found, "Ready").get("status") == "True" else None

        return until(ready, self._said("the pool to be Ready"))

    def controllers(self) -> set[str]:
        """Names of the controllers that run."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10) as answer:
            return set(
                re.findall(r'^controller_runtime_active_workers\{controller="([^"]+)"', answer.read().decode(), re.M)
            )

    def nodes(self) -> list[Json]:
        """The Nodes of the pool."""
        selector = f"karpenter.sh/nodepool={self._pool['metadata']['name']}"
        found: list[Json] = self._cluster.api.get("/api/v1/nodes", labelSelector=selector)["items"]
        return found

    def _said(self, what: str) -> Any:
        return lambda: f"{what}; Karpenter said\n{self._log.read_text(encoding='utf-8', errors='replace')[-4000:]}"

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": str(self._cluster.files.kubeconfig),
            "KUBERNETES_MIN_VERSION": "1.19.0-0",
            "SYSTEM_NAMESPACE": "kube-system",
            "DISABLE_LEADER_ELECTION": "true",
            "FEATURE_GATES": self._gates,
            "INSTANCE_TYPES_FILE_PATH": str(self._types),
            "METRICS_PORT": str(self._metrics_port),
            "HEALTH_PROBE_PORT": str(_free_port()),
        }


def _program() -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in published.NEWER_GO.items():
            patch.setenv(name, value)
        return build.have(build.tool_product("karpenter"), print) / "kwok"


def _instance_type(pool: Json) -> Json:
    """The type that a pool asks for, as it is offered by nobody."""
    required = {each["key"]: each["values"] for each in pool["spec"]["template"]["spec"]["requirements"]}
    offered = ("karpenter.sh/capacity-type", "topology.kubernetes.io/zone")
    requirements = [{"key": key, "operator": "In", "values": required[key]} for key in offered]
    return {
        "name": required["node.kubernetes.io/instance-type"][0],
        "offerings": [{"Price": 1.0, "Available": True, "Requirements": requirements}],
        "architecture": required["kubernetes.io/arch"][0],
        "operatingSystems": required["kubernetes.io/os"],
        "resources": {"cpu": "8", "memory": "32Gi", "pods": "58", "ephemeral-storage": "20Gi"},
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
        return port
