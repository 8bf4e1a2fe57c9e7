"""The manifests of nodes, judged by those whose they are: Karpenter's CRDs in a real API server, eksctl's schema,
Terraform's language; and the real DaemonSet controller, which says on which of those nodes the driver runs.

The nodes have no kubelet: they are what the manifests say of them.
"""

import json
import subprocess
from pathlib import Path
from typing import Final

import jsonschema
import pytest
import yaml

from hack.cluster import build, published
from hack.cluster.cluster import Cluster
from hack.cluster.errors import ClusterError
from tests.e2e.manifests import Json
from tests.e2e.placed import Placed
from tests.unit.manifests import agreement, groups

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

POOLS: Final = "/apis/karpenter.sh/v1/nodepools"
pools = pytest.mark.parametrize("path", groups.POOLS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def terraform() -> Json:
    """The Terraform file, parsed; what refers to something else as its text."""
    folder = build.have(build.tool_product("hcl"), print)
    printed = subprocess.run(
        [folder / "hcl2json", groups.TERRAFORM], check=True, capture_output=True, text=True, timeout=60
    )
    found: Json = json.loads(printed.stdout)
    return found


@pools
def test_api_server_with_karpenters_own_rules_takes_pool_and_class(karpenter_cluster: Cluster, path: Path) -> None:
    said = karpenter_cluster.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", f"-f={path}")
    assert said.count("serverside-applied (server dry run)") == 2


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param({"limits": {"nodes": 3, "nvidia.com/gpu": 8}}, "only 'limits.nodes' is supported", id="limit"),
        pytest.param({"weight": 10}, "'weight' is not supported on static NodePools", id="weight"),
        pytest.param({"replica": 2}, ".spec.replica: field not declared in schema", id="misspelt"),
    ],
)
def test_rules_that_the_pools_keep_are_karpenters(karpenter_cluster: Cluster, changed: Json, says: str) -> None:
    pool = groups.one(groups.POOLS[0], "NodePool")
    text = json.dumps({**pool, "spec": {**pool["spec"], **changed}})
    with pytest.raises(ClusterError) as refused:
        karpenter_cluster.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f-", text=text)
    assert says in str(refused.value)


def test_static_pool_stays_static_as_its_comment_says(karpenter_cluster: Cluster) -> None:
    pool = groups.one(groups.POOLS[0], "NodePool")
    name = pool["metadata"]["name"]
    karpenter_cluster.api.apply(pool)
    with pytest.raises(ClusterError) as refused:
        karpenter_cluster.kubectl(
            "patch", "nodepool", name, "--type=json", '-p=[{"op":"remove","path":"/spec/replicas"}]'
        )
    karpenter_cluster.kubectl("scale", "nodepool", name, "--replicas=1")
    kept = karpenter_cluster.api.get(f"{POOLS}/{name}")["spec"]["replicas"]
    karpenter_cluster.api.delete(f"{POOLS}/{name}")
    assert "Cannot transition NodePool between static" in str(refused.value)
    assert kept == 1


@pytest.mark.parametrize("folder", ["base", "eks"])
def test_api_server_takes_what_kustomize_makes(cluster: Cluster, folder: str) -> None:
    (namespace,) = groups.documents(groups.MANIFESTS / "kustomize/base/namespace.yaml")
    cluster.api.apply(namespace)
    strict = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    said = cluster.kubectl("apply", *strict, f"--kustomize={groups.MANIFESTS / 'kustomize' / folder}")
    assert "daemonset.apps/dra-driver-gpu-kubelet-plugin serverside-applied (server dry run)" in said


def test_eksctl_would_read_the_cluster_config() -> None:
    schema = json.loads(published.eksctl_schema().read_text(encoding="utf-8"))
    jsonschema.validate(groups.one(groups.CLUSTER, "ClusterConfig"), schema)


def test_terraform_makes_the_nodes_that_eksctl_makes(terraform: Json) -> None:
    found = groups.of_terraform(terraform)
    for group in found:
        agreement.check(group)
    assert [(group.name, group.labels, group.bottlerocket) for group in found] == [
        (group.name, group.labels, group.bottlerocket) for group in groups.of_eksctl()
    ]


def test_karpenters_chart_sets_the_gate_by_our_values(cluster: Cluster, tmp_path: Path) -> None:
    chart = published.KARPENTER_AWS.folder() / "charts/karpenter"
    values = groups.MANIFESTS / "karpenter/values.yaml"
    given = ("--set=settings.clusterName=example-cluster", "--show-only=templates/deployment.yaml")
    (deployment,) = yaml.safe_load_all(cluster.helm("template", "karpenter", str(chart), f"--values={values}", *given))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (gates,) = [entry["value"] for entry in container["env"] if entry["name"] == "FEATURE_GATES"]
    assert "StaticCapacity=true" in gates.split(",")


def test_daemonset_controller_puts_the_driver_on_these_nodes_and_on_no_others(placed: Placed) -> None:
    ours = [*groups.of_eksctl(), *groups.of_karpenter()]
    for group in ours:
        placed.add(group.name, group.labels, group.taints)
    placed.add("auto-mode", ours[0].labels | agreement.AUTO, ours[0].taints)
    placed.add("device-plugin", {"nvidia.com/gpu.present": "true"}, ours[0].taints)
    placed.wait_on({group.name for group in ours})
