"""The driver as a process on a simulated node: stories beyond the demo's scenes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import PODS, RESOURCE_CLAIMS
from dra_driver.simulator.stage import GATES_ON, example_text
from dra_driver_api.kubelet import dra_pb2
from dra_driver_api.names import DRIVER_NAME, cdi_spec_file

Json = dict[str, Any]
SECONDS = 30.0
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, since sockets are made inside."""
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        yield Path(name)


def run(cluster: SimulatedCluster, example: str) -> list[Json]:
    objects = cluster.apply(example_text(example))
    names = [obj["metadata"]["name"] for obj in objects if obj["kind"] == PODS.kind]
    cluster.wait_for(lambda: all(map(cluster.kubelet.containers, names)), SECONDS, "the pods to run")
    return objects


def test_two_containers_share_the_only_gpu_of_a_node(directory: Path) -> None:
    with SimulatedCluster(directory, simulated_node="l4x1") as cluster:
        cluster.start_driver()
        cluster.wait_ready(SECONDS)
        run(cluster, "two-containers.yaml")
        model, sidecar = cluster.kubelet.containers("model-and-sidecar")
    assert model.devices == sidecar.devices
    assert model.edits.device_nodes == sidecar.edits.device_nodes
    assert "/dev/nvidia0" in model.edits.device_nodes


def other_claim(cluster: SimulatedCluster, device: str) -> dra_pb2.Claim:
    """A claim that a scheduler with an old view has put on the same device."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    made = cluster.store.create(RESOURCE_CLAIMS, {"metadata": {"name": "late"}, "spec": spec})
    result = {"request": "gpu", "driver": DRIVER_NAME, "pool": cluster.node_name, "device": device}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    cluster.store.replace(RESOURCE_CLAIMS, made, status=True)
    return dra_pb2.Claim(namespace="default", name="late", uid=made["metadata"]["uid"])


def test_restarted_driver_still_knows_who_holds_the_gpu(directory: Path) -> None:
    with SimulatedCluster(directory) as cluster:
        driver = cluster.start_driver(gates=GATES_ON)
        cluster.wait_ready(SECONDS)
        claim, *pods = run(cluster, "shared-claim.yaml")
        spec = cluster.paths.cdi / cdi_spec_file(claim["metadata"]["uid"])
        driver.kill()
        cluster.start_driver(gates=GATES_ON)
        cluster.wait_ready(SECONDS)
        assert spec.is_file()

        late = other_claim(cluster, "gpu-0")
        plugin = cluster.kubelet.plugins.plugin(DRIVER_NAME)
        refusal = plugin.prepare([late]).claims[late.uid].error
        assert "default/trainer-gpu" in refusal

        cluster.delete(pods)
        cluster.wait_for(lambda: cluster.gone(pods), SECONDS, "the pods to go")
        assert not spec.exists()
        assert plugin.prepare([late]).claims[late.uid].error == ""
