"""Each set of values for the chart that we ship: a real API server takes what Helm makes of it; two are installed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.node import Node
from tests.e2e import clusters
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, named, pod
from tests.e2e.release import CHART, Release, installed
from tests.e2e.waiting import until
from tests.e2e.world import World
from tests.unit.manifests import groups, overlays

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAMESPACE: Final = "overlays"
DRY_RUN: Final = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
SIMULATED: Final[Mapping[str, Any]] = {"gpuResourcesEnabledOverride": True, "simulatedNode": "h200x2"}


@pytest.fixture(scope="module")
def overlays_namespace(cluster: Cluster) -> Iterator[None]:
    """A dry run makes no namespace for what comes after it, so there is one."""
    cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield
    cluster.api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


def rendered(cluster: Cluster, values: Mapping[str, Any], folder: Path) -> str:
    """What Helm makes of the chart for this version of Kubernetes."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"gpuResourcesEnabledOverride": True, **values}), encoding="utf-8")
    flags = (f"--namespace={NAMESPACE}", f"--values={file}", f"--kube-version={clusters.VERSION}")
    return cluster.helm("template", "gpus", str(CHART), *flags)


@pytest.mark.parametrize("name", overlays.VALUES)
@pytest.mark.usefixtures("overlays_namespace")
def test_api_server_takes_what_the_chart_makes(cluster: Cluster, tmp_path: Path, name: str) -> None:
    text = rendered(cluster, overlays.VALUES[name], tmp_path)
    said = cluster.kubectl(*DRY_RUN, "-f-", text=text)
    objects = [each for each in yaml.safe_load_all(text) if each]
    assert said.count("serverside-applied (server dry run)") == len(objects)
    assert "daemonset.apps/gpus-dra-driver-gpu-kubelet-plugin serverside-applied" in said


@pytest.fixture
def platform(
    cluster: Cluster, session_driver: HostDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart with the values for AL2023, on simulated GPUs."""
    session_driver.stop()
    values = {**overlays.VALUES["platforms/al2023"], **SIMULATED}
    with installed(cluster, tmp_path_factory.mktemp("overlay"), values) as made:
        yield made


def test_platforms_values_serve_pods_and_those_for_eks_wait_for_the_label_of_the_nodes(
    platform: Release, cluster: Cluster, namespace: World, node: Node
) -> None:
    namespace.apply(claim("shared"), pod("on-al2023", gpu=named("shared")))
    namespace.wait_running("on-al2023")
    eks = yaml.safe_load(groups.EKS_VALUES.read_text(encoding="utf-8"))
    platform.install({**eks, **SIMULATED})
    until(lambda: not platform.pods(), "no driver on a node without gpu-mode=dra")
    cluster.kubectl("label", "node", node.name, "gpu-mode=dra")
    try:
        platform.ready_pod()
        namespace.apply(pod("on-eks", gpu=named("shared")))
        namespace.wait_running("on-al2023", "on-eks")
        assert namespace.report("on-eks") == namespace.report("on-al2023")
        namespace.delete("Pod", "on-al2023", "on-eks")
    finally:
        cluster.kubectl("label", "node", node.name, "gpu-mode-")
        # Helm would not wait for a pod that is on its way out already, and the next driver could not start.
        until(lambda: not platform.pods(), "the driver to leave a node that is not its any more")
