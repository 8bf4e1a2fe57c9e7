"""Two nodes, each with its driver, and the chart's policy on who writes which slices: every node speaks for itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hack.cluster.api import Api
from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from hack.cluster.errors import ApiRefused
from hack.cluster.objects import DRIVER_ACCOUNT, DRIVER_NAMESPACE
from tests.e2e import clusters
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, deployment, from_template, named, pod, template, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids, in_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
GPUS: Final = 4
_CHART: Final = ROOT / "manifests/helm/dra-driver-gpu"


@pytest.fixture(scope="module")
def pair(report_image: Path) -> Iterator[Cluster]:
    """A cluster of two nodes, where the chart's policy holds for drivers that are host processes."""
    directory = clusters.DIRECTORY.with_name(f"{clusters.DIRECTORY.name}-pair")
    with clusters.running(directory, 2, report_image) as made:
        values = f"gpuResourcesEnabledOverride=true,serviceAccount.create=false,serviceAccount.name={DRIVER_ACCOUNT}"
        where = (f"--namespace={DRIVER_NAMESPACE}", "--show-only=templates/admission-policy.yaml")
        made.apply(made.helm("template", "gpus", str(_CHART), f"--set={values}", *where))
        yield made


@pytest.fixture(scope="module")
def made_drivers(pair: Cluster) -> tuple[HostDriver, HostDriver]:
    """One a node, not started."""
    first, second = (HostDriver(pair, each) for each in pair.nodes)
    return first, second


@pytest.fixture
def drivers(made_drivers: tuple[HostDriver, HostDriver]) -> tuple[HostDriver, HostDriver]:
    """Those of node-1 and node-2, ready."""
    for each in made_drivers:
        each.ensure()
    return made_drivers


@pytest.fixture
def world(pair: Cluster, drivers: tuple[HostDriver, HostDriver]) -> Iterator[World]:
    """A namespace; both drivers run again when the test is over, and nothing may be left on either node."""
    with in_namespace(pair, "nodes") as made:
        yield made
        for each in drivers:
            each.resume()
    for each in drivers:
        wait_clean(each)


def wait_clean(driver: HostDriver) -> None:
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")


def on(node: str, found: Json) -> Json:
    """The pod, for this node only."""
    found["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return found


def nodes_of(world: World, *names: str) -> list[str]:
    """Where pods run."""
    return [str(world.get("Pod", name)["spec"]["nodeName"]) for name in names]


def published(cluster: Cluster, node: str) -> list[Json]:
    """The slices of a node."""
    found: list[Json] = cluster.api.get(SLICES, fieldSelector=f"spec.nodeName={node}")["items"]
    return found


def as_driver(cluster: Cluster, node: str) -> Api:
    """The API server, as the driver of a node is known to it."""
    return Api(cluster.node(node).machine.directory / "driver.kubeconfig")


@pytest.mark.usefixtures("drivers")
def test_each_node_publishes_its_gpus_in_a_pool_of_its_own(pair: Cluster) -> None:
    for node in ("node-1", "node-2"):
        (found,) = published(pair, node)
        spec, (owner,) = found["spec"], found["metadata"]["ownerReferences"]
        assert spec["pool"]["name"] == node
        assert [device["name"] for device in spec["devices"]] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
        assert owner["uid"] == pair.api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
    assert len(pair.api.get(SLICES)["items"]) == 2


def test_pods_of_one_claim_all_run_on_the_node_of_its_gpu(world: World, drivers: tuple[HostDriver, HostDriver]) -> None:
    world.apply(claim("shared"), deployment("web", 6, gpu=named("shared")))
    names = world.wait_number_running(6, "app=web")
    (node,) = set(nodes_of(world, *names))
    assert len({tuple(world.report(name).cards) for name in names}) == 1
    assert sorted(len(each.view.rows()) for each in drivers) == [0, 1]
    (result,) = world.get("ResourceClaim", "shared")["status"]["allocation"]["devices"]["results"]
    assert result["pool"] == node


def test_pods_of_a_template_fill_both_nodes_and_the_next_one_waits(world: World) -> None:
    world.apply(template("single"), deployment("worker", 2 * GPUS, gpu=from_template("single")))
    names = world.wait_number_running(2 * GPUS, "app=worker")
    found = [(node, *world.report(name).cards) for node, name in zip(nodes_of(world, *names), names, strict=True)]
    assert sorted(found) == [(node, f"/dev/nvidia{n}") for node in ("node-1", "node-2") for n in range(GPUS)]
    world.apply(pod("late", gpu=from_template("single")))
    assert "cannot allocate all claims" in world.wait_unschedulable("late")


def test_pod_for_another_node_than_its_claims_gpu_waits_and_runs_there_once_the_claim_is_free(world: World) -> None:
    world.apply(claim("shared"), on("node-1", pod("a", gpu=named("shared"))))
    world.wait_running("a")
    world.apply(on("node-2", pod("b", gpu=named("shared"))))
    assert world.wait_unschedulable("b")
    world.delete("Pod", "a")
    world.wait_running("b")
    assert nodes_of(world, "b") == ["node-2"]


def test_time_slice_of_a_gpu_leaves_the_gpu_of_its_name_on_the_other_node_alone(
    world: World, drivers: tuple[HostDriver, HostDriver]
) -> None:
    first, second = drivers
    before = len(second.view.tool_calls())
    world.apply(claim("sliced", config=[time_slicing("Long")]), claim("plain"))
    world.apply(on("node-1", pod("a", gpu=named("sliced"))), on("node-2", pod("b", gpu=named("plain"))))
    world.wait_running("a", "b")
    assert world.allocated("sliced") == world.allocated("plain")
    assert sorted(first.view.time_slices().values()) == ["0", "0", "0", "3"]
    assert second.view.tool_calls()[before:] == []
    world.delete("Pod", "b")
    assert sorted(first.view.time_slices().values()) == ["0", "0", "0", "3"]


def test_driver_that_is_down_costs_the_other_node_nothing(world: World, drivers: tuple[HostDriver, HostDriver]) -> None:
    world.apply(template("single"), claim("here"), claim("there"))
    world.apply(on("node-1", pod("a", gpu=named("here"))), on("node-2", pod("b", gpu=named("there"))))
    before = world.wait_running("a", "b")
    drivers[0].stop()
    world.apply(on("node-2", pod("sharing", gpu=named("there"))), on("node-2", pod("own", gpu=from_template("single"))))
    world.wait_running("sharing", "own")
    world.delete("Pod", "own")
    world.apply(pod("waiting", gpu=named("here")))
    assert "gpu.nvidia.com" in world.wait_event("FailedPrepareDynamicResources", "waiting")
    assert container_ids(world.wait_running("a", "b")) == container_ids(before)
    drivers[0].resume()
    world.wait_running("waiting")
    assert nodes_of(world, "waiting") == ["node-1"]


def test_gpus_of_a_driver_that_stays_away_are_offered_no_more_until_it_is_back(
    world: World, pair: Cluster, drivers: tuple[HostDriver, HostDriver]
) -> None:
    other = published(pair, "node-2")
    drivers[0].stop()
    # The kubelet takes them away when no driver has come for half a minute.
    until(lambda: not published(pair, "node-1"), "the slices of node-1 to go")
    assert published(pair, "node-2") == other
    names = [f"p-{number}" for number in range(GPUS + 1)]
    world.apply(template("single"), *(pod(name, gpu=from_template("single")) for name in names))
    running = world.wait_number_running(GPUS, "")
    assert set(nodes_of(world, *running)) == {"node-2"}
    (waiting,) = set(names) - set(running)
    world.wait_unschedulable(waiting)
    drivers[0].resume()
    world.wait_running(waiting)
    assert nodes_of(world, waiting) == ["node-1"]


@pytest.mark.usefixtures("drivers")
def test_driver_of_a_node_cannot_write_the_slices_of_the_other(pair: Cluster) -> None:
    (foreign,) = published(pair, "node-2")
    path = f"{SLICES}/{foreign['metadata']['name']}"
    api = as_driver(pair, "node-1")
    refusal = r'the driver on node node-1 may not write a ResourceSlice of node \\"node-2\\"'
    with pytest.raises(ApiRefused, match=refusal):
        api.request("DELETE", path)
    with pytest.raises(ApiRefused, match=refusal):
        api.request("PUT", path, {**foreign, "spec": {**foreign["spec"], "devices": []}})
    made_up = {**foreign, "metadata": {"name": "made-up"}}
    with pytest.raises(ApiRefused, match=refusal):
        api.request("POST", SLICES, made_up)
    assert published(pair, "node-2") == [foreign]


def test_slice_deleted_by_hand_is_written_again_by_its_own_node_alone(
    pair: Cluster, drivers: tuple[HostDriver, HostDriver]
) -> None:
    mine, other = published(pair, "node-1"), published(pair, "node-2")
    # As the driver itself may do: the policy lets it.
    as_driver(pair, "node-1").request("DELETE", f"{SLICES}/{mine[0]['metadata']['name']}")

    def back() -> bool:
        found = published(pair, "node-1")
        return [each["spec"]["devices"] for each in found] == [each["spec"]["devices"] for each in mine]

    until(back, "the slices to be back")
    assert published(pair, "node-2") == other
