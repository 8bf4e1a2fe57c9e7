"""MPS as users have it with the chart: a control daemon for each claim, in a Deployment, and what can go wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from hack.cluster.cluster import Cluster
from hack.cluster.errors import ApiRefused
from hack.cluster.node import Node
from hack.image import driver as driver_image
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, mps, named, pod, time_slicing
from tests.e2e.mps import DEPLOYMENTS, VALUES, Mps, client, output_of, refused_by_admission, seen
from tests.e2e.node_view import NodeView
from tests.e2e.release import as_driver, bound_to, installed
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FAILED: Final = "FailedPrepareDynamicResources"
ALL: Final = ["create", "delete", "get", "list"]
ONE: Final = {"defaultActiveThreadPercentage": 25}


@pytest.fixture(scope="module")
def chart(
    cluster: Cluster, node: Node, session_driver: HostDriver, node_view: NodeView, tmp_path_factory: Any
) -> Iterator[Mps]:
    """The release, with a driver pod that is Ready."""
    session_driver.stop()
    with installed(cluster, tmp_path_factory.mktemp("mps"), VALUES) as made:
        yield Mps(made, node, node_view)


@pytest.fixture
def world(chart: Mps, namespace: World) -> World:
    """A namespace on the release."""
    return namespace


def rule(group: str, resource: str, *verbs: str) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def test_clients_of_a_claim_meet_in_its_daemon_and_nobody_else_does(chart: Mps, world: World, node: Node) -> None:
    world.apply(
        claim("shared", config=[mps(**ONE)]), client("a", "shared"), claim("other"), pod("o", gpu=named("other"))
    )
    world.wait_running("a", "o")
    world.apply(client("b", "shared"))
    world.wait_running("b")

    first, second = seen(world, "a"), seen(world, "b")
    assert (first.uid, first.pipe, sorted(first.mounts)) == (1000, "/tmp/nvidia-mps", ["/dev/shm", "/tmp/nvidia-mps"])
    assert first.answer == second.answer == ["25.0", "Not enough privilege to execute quit command"]
    assert (first.shm, second.shm) == (False, True)

    report = world.report("o")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in report.environment
    assert not [path for path in report.mounts if "nvidia-mps" in path]

    found, (daemon,) = chart.serving(), chart.pods()
    assert daemon["spec"]["nodeName"] == node.name
    assert [each["kind"] for each in found["metadata"]["ownerReferences"]] == ["Node"]
    assert len(chart.exclusive()) == 1


def test_daemon_is_asked_to_quit_and_gone_before_its_claim_is(chart: Mps, world: World) -> None:
    world.apply(claim("shared", config=[mps()]), client("a", "shared"))
    world.wait_running("a")
    (folder,) = chart.view.daemon_folders()
    with output_of(folder).open() as printed:
        world.delete("Pod", "a")
        chart.wait_none()
        assert "Exit" in printed.read()
    assert (chart.exclusive(), chart.view.rows()) == ([], {})


def test_image_that_comes_late_is_named_meanwhile_and_its_claim_is_served_then(chart: Mps, world: World) -> None:
    chart.release.ready_pod()
    with chart.without_image():
        world.apply(claim("shared", config=[mps()]), pod("a", gpu=named("shared")))
        message = world.wait_event(FAILED, "a")
        assert driver_image.NAME in message
        assert "Pull" in message
        assert list(chart.view.rows().values()) == ["started"]
    world.wait_running("a")
    chart.serving()


def test_daemon_that_is_not_admitted_is_told_in_the_words_of_who_refused_it(
    cluster: Cluster, chart: Mps, world: World
) -> None:
    with refused_by_admission(cluster, "no privileged pods on Tuesdays"):
        world.apply(claim("shared", config=[mps()]), pod("a", gpu=named("shared")))
        message = world.wait_event(FAILED, "a")
        assert "denied request: no privileged pods on Tuesdays" in message
        until(lambda: chart.exclusive() == [], "the card to be given back")
    world.wait_running("a")


def test_missing_right_is_told_with_verb_and_resource_and_the_pod_runs_once_it_is_there(
    chart: Mps, world: World
) -> None:
    with chart.rights(rule("", "pods", "list")):
        world.apply(claim("shared", config=[mps()]), pod("a", gpu=named("shared")))
        message = world.wait_event(FAILED, "a")
        assert 'cannot create resource "deployments" in API group "apps"' in message
        assert "featureGates.MPSSupport=true" in message
    world.wait_running("a")


def test_daemons_pods_need_not_be_seen_for_their_claims_to_be_served_and_ended(chart: Mps, world: World) -> None:
    with chart.rights(rule("apps", "deployments", *ALL)):
        world.apply(claim("shared", config=[mps()]), pod("a", gpu=named("shared")))
        world.wait_running("a")
        world.delete("Pod", "a")
        chart.wait_none()


def test_pod_whose_daemon_never_serves_can_be_deleted_and_leaves_nothing(chart: Mps, world: World) -> None:
    chart.release.ready_pod()
    with chart.without_image():
        world.apply(claim("shared", config=[mps()]), pod("a", gpu=named("shared")))
        world.wait_event(FAILED, "a")
        assert len(chart.exclusive()) == 1
        world.delete("Pod", "a")
        chart.wait_none()
        assert (chart.exclusive(), chart.view.rows()) == ([], {})


def test_driver_that_is_killed_leaves_daemons_and_clients_alone(chart: Mps, world: World) -> None:
    world.apply(claim("shared", config=[mps()]), client("a", "shared"))
    before = container_ids(world.wait_running("a"))
    chart.serving()
    daemon = container_ids(chart.pods())
    chart.kill_driver()
    world.apply(client("b", "shared"))
    world.wait_running("b")
    assert seen(world, "b").answer[0] == "100.0"
    assert (container_ids(world.wait_running("a")), container_ids(chart.pods())) == (before, daemon)


def test_driver_that_is_killed_while_it_waits_for_a_daemon_goes_on(chart: Mps, world: World) -> None:
    with chart.without_image():
        world.apply(claim("shared", config=[mps()]), pod("a", gpu=named("shared")))
        until(chart.pods, "the daemon's pod to be there")
        chart.kill_driver_container()
    world.wait_running("a")
    assert list(chart.view.rows().values()) == ["completed"]


@pytest.mark.parametrize("ended", [Mps.kill_daemon, Mps.delete_deployment])
def test_daemon_that_somebody_ends_serves_again(chart: Mps, world: World, ended: Callable[[Mps], None]) -> None:
    world.apply(claim("shared", config=[mps(**ONE)]), client("a", "shared"))
    world.wait_running("a")
    chart.serving()
    ended(chart)
    world.apply(client("b", "shared"))
    world.wait_running("b")
    assert seen(world, "b").answer[0] == "25.0"


def test_clients_and_their_daemon_come_back_after_the_node_was_rebooted(chart: Mps, world: World, node: Node) -> None:
    world.apply(claim("shared", config=[mps(**ONE)]), client("a", "shared"))
    before = container_ids([*world.wait_running("a"), *chart.pods()])
    node.reboot()
    chart.release.ready_pod()

    def restarted() -> bool:
        return set(container_ids([*world.wait_running("a"), *chart.pods()])).isdisjoint(before)

    until(restarted, "new containers", 240)
    world.apply(client("b", "shared"))
    world.wait_running("b")
    assert (seen(world, "b").answer[0], len(chart.exclusive())) == ("25.0", 1)
    chart.serving()


def test_daemon_of_before_the_gate_was_switched_off_is_ended_with_its_claim(chart: Mps, world: World) -> None:
    world.apply(claim("shared", config=[mps()]), client("a", "shared"))
    before = container_ids(world.wait_running("a"))
    chart.upgrade(featureGates={"TimeSlicingSettings": True})
    try:
        assert chart.has_rights()
        assert container_ids(world.wait_running("a")) == before
        world.apply(claim("new", config=[mps()]), pod("n", gpu=named("new")))
        assert "MPSSupport" in world.wait_event(FAILED, "n")
        world.delete("Pod", "a")
        chart.wait_none()
        assert chart.exclusive() == []
        chart.release.install({**VALUES, "featureGates": {"TimeSlicingSettings": True}})
        assert not chart.has_rights()
    finally:
        chart.upgrade()
    world.wait_running("n")


WAYS: Final[dict[str, Callable[[], Json]]] = {"MPS": mps, "TimeSlicing": lambda: time_slicing("Long")}


@pytest.mark.parametrize(("holds", "wants"), [("MPS", "TimeSlicing"), ("TimeSlicing", "MPS")])
def test_card_is_never_shared_in_two_ways_at_once(chart: Mps, world: World, holds: str, wants: str) -> None:
    world.apply(
        claim("first", config=[WAYS[holds]()]), claim("second", config=[WAYS[wants]()]), pod("a", gpu=named("first"))
    )
    world.wait_running("a")
    give_the_same_card(world, "first", "second")
    world.apply(pod("b", gpu=named("second")))
    message = world.wait_event(FAILED, "b")
    assert f"{world.namespace}/first" in message
    assert f"which has it with {holds}, and this claim asks for {wants}" in message
    assert len(chart.view.rows()) == 1
    world.delete("Pod", "a")
    world.wait_running("b")
    assert len(chart.exclusive()) == (wants == "MPS")
    assert sorted(chart.view.time_slices().values())[-1] == ("3" if wants == "TimeSlicing" else "0")


def give_the_same_card(world: World, first: str, second: str) -> None:
    """Allocate to the second claim, with its own config, the card that the first one has."""
    device = world.get("ResourceClaim", first)["status"]["allocation"]
    found = world.get("ResourceClaim", second)
    config = [{"source": "FromClaim", **each} for each in found["spec"]["devices"]["config"]]
    allocation = {**device, "devices": {"results": device["devices"]["results"], "config": config}}
    path = f"{world.path('ResourceClaim', second)}/status"
    world.cluster.api.request("PUT", path, found | {"status": {"allocation": allocation}})


def test_driver_of_one_node_makes_no_daemon_for_another(chart: Mps, tmp_path: Path) -> None:
    api = as_driver(chart.release, tmp_path, *bound_to(chart.release.ready_pod()))
    with pytest.raises(ApiRefused, match="may not write a Deployment for pods on node"):
        api.request("POST", DEPLOYMENTS, deployment_for("node-of-somebody-else"))
    foreign = deployment_for("node-of-somebody-else")
    chart.release.cluster.api.request("POST", DEPLOYMENTS, foreign)
    path = f"{DEPLOYMENTS}/{foreign['metadata']['name']}"
    try:
        with pytest.raises(ApiRefused, match="may not write a Deployment for pods on node"):
            api.request("DELETE", path)
    finally:
        chart.release.cluster.api.delete(path)


def deployment_for(node: str) -> Json:
    """A Deployment whose pods would run on a node; it has none."""
    labels = {"app": "made-up"}
    spec = {"nodeName": node, "containers": [{"name": "a", "image": driver_image.NAME}]}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "made-up"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
