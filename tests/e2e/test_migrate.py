"""From a device plugin's config and a Deployment that asks for ``nvidia.com/gpu: 1`` to pods of this driver."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.driver import environment
from tests.e2e import clusters
from tests.e2e.manifests import Json, asking
from tests.e2e.release import installed
from tests.e2e.scheduler import extended, looking_again
from tests.e2e.world import World, in_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CONFIG: Final = {
    "version": "v1",
    "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 10}]}},
}


@pytest.fixture
def cluster(report_image: Path) -> Iterator[Cluster]:
    """A cluster of its own for each move: what is read is all of it, and the scheduler knows of no devices yet."""
    with clusters.running(clusters.DIRECTORY.with_name(f"{clusters.DIRECTORY.name}-move"), 1, report_image) as made:
        yield made


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """A namespace of its own."""
    with in_namespace(cluster, "migrated") as made:
        yield made


def server(replicas: int) -> Json:
    """An inference server as it ran with the device plugin."""
    pod = asking("server")
    labels = {"app": "server"}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "server"}, "spec": spec}


def migrate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it; what it writes is in ``folder``."""
    command = [sys.executable, "-m", "dra_driver", "migrate", "-o", str(folder), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


def values(folder: Path) -> dict[str, Any]:
    """The values that were written, for GPUs that are simulated."""
    found: dict[str, Any] = yaml.safe_load((folder / "values.yaml").read_text())
    return {**found, "simulatedNode": "l4x1"}


@extended
def test_deployment_runs_unchanged_in_as_many_shares_as_it_had_replicas(
    cluster: Cluster, world: World, tmp_path: Path
) -> None:
    old = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin"}, "data": {"any": json.dumps(CONFIG)}}
    files = tmp_path / "old.yaml"
    files.write_text(yaml.safe_dump_all([old, server(10)]))
    done = migrate(tmp_path / "new", str(files))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "new/workloads").exists()
    with installed(cluster, tmp_path, values(tmp_path / "new")), looking_again(cluster.api):
        world.apply(server(11))
        running = world.wait_number_running(10, "app=server")
        reports = [world.report(name) for name in running]
        assert {tuple(report.cards) for report in reports} == {("/dev/nvidia0",)}
        (waiting,) = {each["metadata"]["name"] for each in world.all("Pod", "app=server")} - set(running)
        assert "cannot allocate all claims" in world.wait_unschedulable(waiting)
        world.request_deletion(f"/apis/apps/v1/namespaces/{world.namespace}/deployments/server")
        for name in (*running, waiting):
            world.wait_gone("Pod", name)


def test_cluster_is_read_and_its_workloads_get_claims_that_they_run_with(
    cluster: Cluster, world: World, tmp_path: Path
) -> None:
    # Without pods, as they would take the GPU by its resource's name as soon as a class serves that.
    world.apply(server(0))
    done = migrate(tmp_path / "new", "--from-cluster", f"--kubeconfig={cluster.files.kubeconfig}", "--workloads=claims")
    assert done.returncode == 0, done.stdout + done.stderr
    written = tmp_path / f"new/workloads/{world.namespace}-deployment-server.yaml"
    with installed(cluster, tmp_path, values(tmp_path / "new")), looking_again(cluster.api):
        # It was not made by kubectl apply, which would leave its old resources beside the claim.
        world.delete("Deployment", "server")
        cluster.kubectl("apply", "-f", str(written))
        cluster.kubectl("scale", "deployment/server", "--replicas=1", f"--namespace={world.namespace}")
        (name,) = world.wait_number_running(1, "app=server")
        claims = world.all("ResourceClaim")
        assert [each["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"] for each in claims] == ["gpu"]
        assert tuple(world.report(name).cards) == ("/dev/nvidia0",)
        cluster.kubectl("apply", "-f", str(tmp_path / f"new/before/{world.namespace}-deployment-server.yaml"))
        back = world.get("Deployment", "server")["spec"]["template"]["spec"]
        assert "resourceClaims" not in back
        assert back["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
        world.request_deletion(f"/apis/apps/v1/namespaces/{world.namespace}/deployments/server")
        for each in world.all("Pod", "app=server"):
            world.wait_gone("Pod", each["metadata"]["name"])
