"""The driver as users install it: image and Helm chart, with the rights that the chart gives and no more."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from dra_driver_api.names import DRIVER_NAME
from hack.cluster.api import Api
from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from hack.cluster.errors import ApiRefused, ClusterError
from hack.cluster.kubeconfigs import keep, with_token
from hack.cluster.node import Node
from hack.image import driver as driver_image
from hack.image import oci, platforms
from tests.e2e.host_driver import DEVICE_CLASSES, HostDriver
from tests.e2e.manifests import Json, claim, from_template, named, pod, template, time_slicing
from tests.e2e.node_view import NodeView
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHART: Final = ROOT / "manifests/helm/dra-driver-gpu"
RELEASE: Final = "gpus"
NAMESPACE: Final = "dra-driver-gpu-chart"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
HOOK: Final = "nvidia-cdi-hook"
VALUES: Final = {
    "gpuResourcesEnabledOverride": True,
    "simulatedNode": "a10gx4",
    "featureGates": {"TimeSlicingSettings": True},
    "cdiHooks": HOOK,
}
INSTALL_S: Final = 240.0


@pytest.fixture(scope="module")
def chart(cluster: Cluster, session_driver: HostDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The release, with a driver pod that is Ready. Returns the values that it was installed with, as a file's path."""
    session_driver.stop()
    for name in ("gpu", "mig", "vfio.gpu"):
        cluster.kubectl("delete", "deviceclass", f"{name}.nvidia.com", "--ignore-not-found")
    folder = tmp_path_factory.mktemp("chart")
    archive = folder / "driver.tar"
    image, _ = driver_image.image(
        driver_image.NAME, platforms.RELEASES["debian"], platforms.native(), hook=cluster.programs / HOOK
    )
    oci.write(image, archive)
    cluster.import_images(archive)
    values = folder / "values.json"
    values.write_text(json.dumps(VALUES), encoding="utf-8")
    install(cluster, values)
    ready_pod(cluster)
    yield str(values)
    cluster.helm(
        "uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", f"--timeout={INSTALL_S:g}s", seconds=INSTALL_S
    )
    cluster.apply(DEVICE_CLASSES)


def install(cluster: Cluster, values: Path | str, *more: str) -> None:
    """Install or upgrade, and return at once."""
    namespace = (f"--namespace={NAMESPACE}", "--create-namespace")
    cluster.helm("upgrade", "--install", RELEASE, str(CHART), *namespace, f"--values={values}", *more)


def published(cluster: Cluster) -> list[Json]:
    """The ResourceSlices of the driver."""
    found: list[Json] = cluster.api.get(SLICES, fieldSelector="spec.driver=gpu.nvidia.com")["items"]
    return found


def driver_pods(cluster: Cluster) -> list[Json]:
    """The pods of the DaemonSet."""
    found: list[Json] = cluster.api.get(PODS)["items"]
    return found


def ready_pod(cluster: Cluster) -> Json:
    """The one pod of the DaemonSet, once it is ready and alone."""

    def look() -> Json | None:
        found = driver_pods(cluster)
        ready = [each for each in found if {"Ready": "True"}.items() <= conditions(each).items()]
        return found[0] if len(found) == len(ready) == 1 else None

    return until(look, lambda: f"the driver's pod to be ready\n{cluster.kubectl('describe', 'pods', '-n', NAMESPACE)}")


def restart_count(found: Json) -> int:
    """How often the containers of a pod were started again."""
    return sum(each["restartCount"] for each in found["status"]["containerStatuses"])


def conditions(found: Json) -> dict[str, str]:
    """Type -> status of a pod's conditions."""
    return {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}


def as_driver(cluster: Cluster, folder: Path, *bound: str) -> Api:
    """The API server, with a token of the driver's service account."""
    account = ready_pod(cluster)["spec"]["serviceAccountName"]
    token = cluster.kubectl("create", "token", account, f"--namespace={NAMESPACE}", *bound).strip()
    authority = (cluster.files.pki / "ca.crt").read_text(encoding="ascii")
    return Api(keep(folder / "kubeconfig", with_token(cluster.api.server, authority, account, token)))


def bound_to(found: Json) -> tuple[str, ...]:
    """Flags of ``kubectl create token`` that bind it to a pod, as the one is that the pod itself is given."""
    return ("--bound-object-kind=Pod", f"--bound-object-name={found['metadata']['name']}")


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


@pytest.mark.usefixtures("chart")
def test_chart_makes_the_classes_and_the_slices_are_its_pods(cluster: Cluster) -> None:
    classes = cluster.api.get("/apis/resource.k8s.io/v1/deviceclasses")["items"]
    assert {each["metadata"]["name"] for each in classes} >= {"gpu.nvidia.com", "mig.nvidia.com"}
    ready_pod(cluster)
    (found,) = published(cluster)
    assert [device["name"] for device in found["spec"]["devices"]] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


@pytest.mark.usefixtures("chart")
def test_rights_of_the_chart_are_enough_for_the_driver(cluster: Cluster) -> None:
    name = ready_pod(cluster)["metadata"]["name"]
    log = cluster.kubectl("logs", name, f"--namespace={NAMESPACE}")
    assert log
    assert "forbidden" not in log.lower()


@pytest.mark.usefixtures("chart")
def test_driver_of_one_node_cannot_speak_for_another(cluster: Cluster, node: Node, tmp_path: Path) -> None:
    api = as_driver(cluster, tmp_path, *bound_to(ready_pod(cluster)))
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


@pytest.mark.usefixtures("chart")
def test_token_that_no_pod_of_the_driver_holds_writes_no_slice(cluster: Cluster, node: Node, tmp_path: Path) -> None:
    with pytest.raises(ApiRefused, match="the token of this service account names no node"):
        as_driver(cluster, tmp_path).request("POST", SLICES, slice_of(node.name))


@pytest.mark.usefixtures("chart")
def test_driver_cannot_read_secrets_or_change_claims(cluster: Cluster, namespace: World, tmp_path: Path) -> None:
    api = as_driver(cluster, tmp_path, *bound_to(ready_pod(cluster)))
    namespace.apply(claim("one"))
    with pytest.raises(ApiRefused, match="forbidden"):
        api.get("/api/v1/secrets")
    with pytest.raises(ApiRefused, match="forbidden"):
        api.request("DELETE", namespace.path("ResourceClaim", "one"))


def test_upgrade_with_surge_keeps_pods_running_and_lets_new_ones_start(
    chart: str, cluster: Cluster, namespace: World
) -> None:
    namespace.apply(claim("shared"), template("single"))
    namespace.apply(pod("old", gpu=named("shared")))
    before = namespace.wait_running("old")
    old_driver, slices = ready_pod(cluster)["metadata"]["name"], published(cluster)
    install(cluster, chart, "--set=kubeletPlugin.podAnnotations.round=two")

    names: list[str] = []
    together = False

    def replaced() -> bool:
        nonlocal together
        found = [each["metadata"]["name"] for each in driver_pods(cluster)]
        together |= len(found) > 1
        if len(names) < 10:
            names.append(f"during-{len(names)}")
            namespace.apply(pod(names[-1], gpu=named("shared")))
        return len(found) == 1 and found != [old_driver]

    until(replaced, "the driver's pod to be replaced")
    ready_pod(cluster)
    namespace.apply(pod("own", gpu=from_template("single")))
    namespace.wait_running(*names, "own")
    assert together
    assert container_ids(namespace.wait_running("old")) == container_ids(before)
    assert [
        each["reason"] for each in namespace.all("Event") if each["reason"] == "FailedPrepareDynamicResources"
    ] == []
    assert published(cluster) == slices


@pytest.mark.usefixtures("chart")
def test_driver_pod_that_is_killed_comes_back_under_running_pods(cluster: Cluster, namespace: World) -> None:
    namespace.apply(claim("shared"), pod("old", gpu=named("shared")))
    before = namespace.wait_running("old")
    killed = ready_pod(cluster)["metadata"]["name"]
    namespace.request_deletion(f"{PODS}/{killed}", grace_s=0)
    until(lambda: killed not in [each["metadata"]["name"] for each in driver_pods(cluster)], "the pod to be gone")
    ready_pod(cluster)
    namespace.apply(pod("new", gpu=named("shared")))
    namespace.wait_running("new")
    assert container_ids(namespace.wait_running("old")) == container_ids(before)


@pytest.mark.usefixtures("chart")
def test_plugin_directory_removed_from_the_node_restarts_the_driver_and_it_knows_every_claim(
    cluster: Cluster, namespace: World, node_view: NodeView
) -> None:
    namespace.apply(claim("shared"), pod("old", gpu=named("shared")))
    before, rows = namespace.wait_running("old"), node_view.rows()
    assert list(rows.values()) == ["completed"]
    restarts = restart_count(ready_pod(cluster))
    shutil.rmtree(node_view.folder)
    until(lambda: restart_count(driver_pods(cluster)[0]) > restarts, "the driver to be started again")
    ready_pod(cluster)
    assert node_view.rows() == rows
    namespace.apply(pod("new", gpu=named("shared")))
    namespace.wait_running("new")
    assert container_ids(namespace.wait_running("old")) == container_ids(before)


@pytest.mark.usefixtures("chart")
def test_scraper_gets_metrics_from_the_drivers_pod(cluster: Cluster) -> None:
    address = ready_pod(cluster)["status"]["podIP"]
    with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=10) as answer:
        assert b"# TYPE" in answer.read()


@pytest.mark.usefixtures("chart")
def test_chart_asks_for_a_confirmation_before_it_gives_out_gpus(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="gpuResourcesEnabledOverride"):
        cluster.helm("install", "other", str(CHART), "--namespace=other", "--create-namespace")
