"""The driver on real cards in observe mode, with the demo's API server and kubelet: prepare, unprepare, refuse.

``pytest -m hardware tests/hardware``. ``DRIVER_ROOT`` names the driver's root where it is not ``/``. The cards'
settings are read before and after, and must be the same.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import EVENTS

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on this machine"),
    pytest.mark.timeout(300),
]

_POD = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: gpu, namespace: default}}
spec:
  devices:
    requests: [{{name: gpu, exactly: {{deviceClassName: gpu.nvidia.com}}}}]
    config: {config}
---
apiVersion: v1
kind: Pod
metadata: {{name: pod, namespace: default}}
spec:
  resourceClaims: [{{name: gpu, resourceClaimName: gpu}}]
  containers: [{{name: main, image: none, resources: {{claims: [{{name: gpu}}]}}}}]
"""


def config(interval: str) -> str:
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }
    entry = {"requests": ["gpu"], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    return yaml.safe_dump([entry], default_flow_style=True, width=1000).strip()


def settings_of_cards() -> str:
    query = "--query-gpu=uuid,compute_mode,persistence_mode,mig.mode.current"
    return subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], check=True, capture_output=True, text=True, timeout=120
    ).stdout


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    before = settings_of_cards()
    with (
        tempfile.TemporaryDirectory(prefix="dra-") as directory,
        SimulatedCluster(Path(directory), simulated_node="") as cluster,
    ):
        root = os.environ.get("DRIVER_ROOT", "/")
        cluster.start_driver("--gpu-control=observe", f"--nvidia-driver-root={root}", gates="TimeSlicingSettings=true")
        cluster.wait_ready(60)
        yield cluster
    assert settings_of_cards() == before


def records(cluster: SimulatedCluster) -> list[str]:
    store = Store.open_read_only(cluster.paths.plugin / STATE_FILE)
    try:
        return [record.claim.name for record in store.records()]
    finally:
        store.close()


@pytest.mark.parametrize("configs", ["[]", config("Default")], ids=["no config", "what the card has"])
def test_a_claim_is_prepared_and_unprepared_on_a_real_card(cluster: SimulatedCluster, configs: str) -> None:
    objects = cluster.apply(_POD.format(config=configs))
    containers = cluster.wait_for(lambda: cluster.kubelet.containers("pod"), 60, "the container")
    published = {device["attributes"]["uuid"]["string"] for device in cluster.devices()}
    (device,) = containers[0].devices
    assert device.gpu_uuid in published
    assert records(cluster) == ["gpu"]
    (spec,) = cluster.paths.cdi.glob("k8s.gpu.nvidia.com-claim_*.yaml")
    document = yaml.safe_load(spec.read_text())
    nodes = [node["path"] for node in document["devices"][0]["containerEdits"]["deviceNodes"]]
    assert all(Path(node).is_char_device() for node in nodes)
    mounts = [mount["hostPath"] for mount in document["containerEdits"]["mounts"]]
    assert any("libcuda.so" in mount for mount in mounts)
    assert all(Path(mount).exists() for mount in mounts)
    cluster.delete(objects)
    cluster.wait_for(lambda: not records(cluster), 60, "the claim to be unprepared")
    assert list(cluster.paths.cdi.iterdir()) == []


def test_a_claim_that_would_change_the_card_is_refused_with_the_reason(cluster: SimulatedCluster) -> None:
    cluster.apply(_POD.format(config=config("Long")))
    event = cluster.wait_for(lambda: cluster.store.find(EVENTS), 60, "the event")[0]
    assert "time slice 3 on gpu-" in event["message"]
    assert "--gpu-control=observe" in event["message"]
    assert records(cluster) == []
