"""The driver as users install it: image and Helm chart, with the rights that the chart gives and no more."""

import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from dra_driver.cdi.tools import HOOK
from dra_driver_api.names import DRIVER_NAME
from hack.cluster.cluster import Cluster
from hack.cluster.errors import ApiRefused, ClusterError
from hack.cluster.node import Node
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, from_template, named, pod, template, time_slicing
from tests.e2e.node_view import NodeView
from tests.e2e.release import (
    CHART,
    PODS,
    SLICES,
    Release,
    as_driver,
    bound_to,
    installed,
    restart_count,
)
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VALUES: Final = {
    "gpuResourcesEnabledOverride": True,
    "simulatedNode": "a10gx4",
    "featureGates": {"TimeSlicingSettings": True},
    "cdiHooks": HOOK,
}


@pytest.fixture(scope="module")
def chart(cluster: Cluster, session_driver: HostDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The release, with a driver pod that is Ready."""
    session_driver.stop()
    with installed(cluster, tmp_path_factory.mktemp("chart"), VALUES) as made:
        yield made


def slice_of(node: str) -> Json:
    """A small slice for a node."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"made-up-{node}"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": node,
            "pool": {"name": f"made-up-{node}", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


@pytest.mark.usefixtures("chart")
def test_installed_chart_serves_pods_that_share_a_gpu(namespace: World) -> None:
    namespace.apply(claim("shared"), pod("a", gpu=named("shared")), pod("b", gpu=named("shared")))
    namespace.wait_running("a", "b")
    assert namespace.report("a") == namespace.report("b")
    assert len(namespace.report("a").cards) == 1


@pytest.mark.usefixtures("chart")
def test_containers_are_finished_by_the_hook_program_of_the_drivers_image(
    cluster: Cluster, namespace: World, node: Node, node_view: NodeView
) -> None:
    namespace.apply(claim("single"), pod("a", gpu=named("single")))
    namespace.wait_running("a")
    (file,) = node_view.cdi_files()
    spec = yaml.safe_load((node.cdi_directory / file).read_text(encoding="utf-8"))
    assert {each["path"] for each in spec["containerEdits"]["hooks"]} == {
        f"/var/lib/kubelet/plugins/{DRIVER_NAME}/{HOOK}"
    }
    assert (node_view.folder / HOOK).read_bytes() == (cluster.programs / HOOK).read_bytes()


@pytest.mark.usefixtures("chart")
def test_time_slicing_works_where_the_chart_simulates_gpus(namespace: World, node_view: NodeView) -> None:
    namespace.apply(claim("sliced", config=[time_slicing("Long")]), pod("a", gpu=named("sliced")))
    namespace.wait_running("a")
    assert sorted(node_view.time_slices().values()) == ["0", "0", "0", "3"]


def test_chart_makes_the_classes_and_the_slices_are_its_pods(chart: Release, cluster: Cluster) -> None:
    classes = cluster.api.get("/apis/resource.k8s.io/v1/deviceclasses")["items"]
    assert {each["metadata"]["name"] for each in classes} >= {"gpu.nvidia.com", "mig.nvidia.com"}
    chart.ready_pod()
    (found,) = chart.published()
    assert [device["name"] for device in found["spec"]["devices"]] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


def test_rights_of_the_chart_are_enough_for_the_driver(chart: Release) -> None:
    chart.ready_pod()
    log = chart.log()
    assert log
    assert "forbidden" not in log.lower()


def test_driver_of_one_node_cannot_speak_for_another(
    chart: Release, cluster: Cluster, node: Node, tmp_path: Path
) -> None:
    api = as_driver(chart, tmp_path, *bound_to(chart.ready_pod()))
    with pytest.raises(ApiRefused) as refused:
        api.request("POST", SLICES, slice_of("node-of-somebody-else"))
    assert f"the driver on node {node.name} may not write a ResourceSlice of node" in str(refused.value)

    foreign = slice_of("node-of-somebody-else")
    cluster.api.request("POST", SLICES, foreign)
    try:
        with pytest.raises(ApiRefused, match="may not write a ResourceSlice of node"):
            api.request("DELETE", f"{SLICES}/{foreign['metadata']['name']}")
    finally:
        cluster.api.request("DELETE", f"{SLICES}/{foreign['metadata']['name']}")


def test_token_that_no_pod_of_the_driver_holds_writes_no_slice(chart: Release, node: Node, tmp_path: Path) -> None:
    with pytest.raises(ApiRefused, match="the token of this service account names no node"):
        as_driver(chart, tmp_path).request("POST", SLICES, slice_of(node.name))


def test_driver_cannot_read_secrets_or_change_claims(chart: Release, namespace: World, tmp_path: Path) -> None:
    api = as_driver(chart, tmp_path, *bound_to(chart.ready_pod()))
    namespace.apply(claim("one"))
    with pytest.raises(ApiRefused, match="forbidden"):
        api.get("/api/v1/secrets")
    with pytest.raises(ApiRefused, match="forbidden"):
        api.request("DELETE", namespace.path("ResourceClaim", "one"))


def test_upgrade_with_surge_keeps_pods_running_and_lets_new_ones_start(chart: Release, namespace: World) -> None:
    namespace.apply(claim("shared"), template("single"))
    namespace.apply(pod("old", gpu=named("shared")))
    before = namespace.wait_running("old")
    old_driver, slices = chart.ready_pod()["metadata"]["name"], chart.published()
    chart.install(VALUES, "--set=kubeletPlugin.podAnnotations.round=two")

    names: list[str] = []
    together = False

    def replaced() -> bool:
        nonlocal together
        found = [each["metadata"]["name"] for each in chart.pods()]
        together |= len(found) > 1
        if len(names) < 10:
            names.append(f"during-{len(names)}")
            namespace.apply(pod(names[-1], gpu=named("shared")))
        return len(found) == 1 and found != [old_driver]

    until(replaced, "the driver's pod to be replaced")
    chart.ready_pod()
    namespace.apply(pod("own", gpu=from_template("single")))
    namespace.wait_running(*names, "own")
    assert together
    assert container_ids(namespace.wait_running("old")) == container_ids(before)
    assert [
        each["reason"] for each in namespace.all("Event") if each["reason"] == "FailedPrepareDynamicResources"
    ] == []
    assert chart.published() == slices


def test_driver_pod_that_is_killed_comes_back_under_running_pods(chart: Release, namespace: World) -> None:
    namespace.apply(claim("shared"), pod("old", gpu=named("shared")))
    before = namespace.wait_running("old")
    killed = chart.ready_pod()["metadata"]["name"]
    namespace.request_deletion(f"{PODS}/{killed}", grace_s=0)
    until(lambda: killed not in [each["metadata"]["name"] for each in chart.pods()], "the pod to be gone")
    chart.ready_pod()
    namespace.apply(pod("new", gpu=named("shared")))
    namespace.wait_running("new")
    assert container_ids(namespace.wait_running("old")) == container_ids(before)


def test_plugin_directory_removed_from_the_node_restarts_the_driver_and_it_knows_every_claim(
    chart: Release, namespace: World, node_view: NodeView
) -> None:
    namespace.apply(claim("shared"), pod("old", gpu=named("shared")))
    before, rows = namespace.wait_running("old"), node_view.rows()
    assert list(rows.values()) == ["completed"]
    restarts = restart_count(chart.ready_pod())
    shutil.rmtree(node_view.folder)
    until(lambda: restart_count(chart.pods()[0]) > restarts, "the driver to be started again")
    chart.ready_pod()
    assert node_view.rows() == rows
    namespace.apply(pod("new", gpu=named("shared")))
    namespace.wait_running("new")
    assert container_ids(namespace.wait_running("old")) == container_ids(before)


def test_scraper_gets_metrics_from_the_drivers_pod(chart: Release) -> None:
    address = chart.ready_pod()["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=10) as answer:
        assert b"# TYPE" in answer.read()


@pytest.mark.usefixtures("chart")
def test_chart_asks_for_a_confirmation_before_it_gives_out_gpus(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="gpuResourcesEnabledOverride"):
        cluster.helm("install", "other", str(CHART), "--namespace=other", "--create-namespace")
