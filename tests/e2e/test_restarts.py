"""Parts of the cluster that stop under running and starting pods: pods run on, new ones start, nothing is left."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from hack.cluster.cluster import Cluster
from hack.cluster.node import Node
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, from_template, named, pod, template, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DOWN_S: Final = 15.0

Event = Callable[[Cluster, HostDriver], None]


def driver_restarted(cluster: Cluster, driver: HostDriver) -> None:
    driver.ensure().restart()


def driver_killed(cluster: Cluster, driver: HostDriver) -> None:
    driver.ensure().kill()
    driver.resume()


def kubelet_restarted(cluster: Cluster, driver: HostDriver) -> None:
    cluster.nodes[0].restart_kubelet()


def kubelet_killed(cluster: Cluster, driver: HostDriver) -> None:
    cluster.nodes[0].restart_kubelet(signal.SIGKILL)


def containerd_restarted(cluster: Cluster, driver: HostDriver) -> None:
    cluster.nodes[0].restart_containerd()


def api_server_away(cluster: Cluster, driver: HostDriver) -> None:
    with no_api_server(cluster):
        time.sleep(DOWN_S)


@contextmanager
def no_api_server(cluster: Cluster) -> Iterator[None]:
    """The API server is down. After it, the controllers are started anew too."""
    cluster.stop_apiserver()
    try:
        yield
    finally:
        cluster.start_apiserver()
        # Their watches come back at times of their own, and a pod that came and went meanwhile stays in the claim's
        # reservedFor: Kubernetes' matter, which would hold up the deletion of the claim.
        for name in ("kube-controller-manager", "kube-scheduler"):
            cluster.control_plane.machine.end(name, signal.SIGKILL)
        cluster.control_plane.start_controllers()


EVENTS: Final = (
    driver_restarted,
    driver_killed,
    kubelet_restarted,
    kubelet_killed,
    containerd_restarted,
    api_server_away,
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__.replace("_", "-"))
def test_pods_run_on_and_new_ones_start_after(world: World, cluster: Cluster, driver: HostDriver, event: Event) -> None:
    world.apply(claim("shared", config=[time_slicing("Long")]), template("single"))
    world.apply(pod("old", gpu=named("shared")))
    before = world.wait_running("old")
    event(cluster, driver)
    world.apply(pod("sharing", gpu=named("shared")), pod("own", gpu=from_template("single")))
    world.wait_running("sharing", "own")
    assert world.report("sharing") == world.report("old")
    assert world.report("own").cards != world.report("old").cards
    assert container_ids(world.wait_running("old")) == container_ids(before)
    assert driver.view.time_slices()[uuid_of(world, driver)] == "3"


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__.replace("_", "-"))
def test_pods_that_are_just_starting_start_all_the_same(
    world: World, cluster: Cluster, driver: HostDriver, event: Event
) -> None:
    names = [f"p-{number}" for number in range(4)]
    world.apply(template("single", config=[time_slicing("Short")]))
    world.apply(*(pod(name, gpu=from_template("single")) for name in names))
    until(lambda: any("nodeName" in each["spec"] for each in world.all("Pod")), "a pod to be placed")
    event(cluster, driver)
    world.wait_running(*names, seconds=240)
    assert len({tuple(world.report(name).cards) for name in names}) == 4


def test_pod_deleted_while_the_driver_is_down_goes_when_it_is_back(world: World, driver: HostDriver) -> None:
    world.apply(claim("sliced", config=[time_slicing("Long")]), pod("a", gpu=named("sliced")))
    world.wait_running("a")
    driver.stop()
    world.delete("Pod", "a", wait=False)
    until(lambda: not any("running" in each["state"] for each in statuses(world, "a")), "the container to end")
    assert driver.view.left_behind()
    driver.resume()
    until(lambda: not driver.view.left_behind(), "the claim to be given back")
    world.wait_gone("Pod", "a")


def test_pod_deleted_while_the_api_server_is_down_leaves_nothing(
    world: World, cluster: Cluster, driver: HostDriver
) -> None:
    world.apply(claim("one", config=[time_slicing("Medium")]), pod("a", gpu=named("one")))
    world.wait_running("a")
    world.delete("Pod", "a", wait=False)
    api_server_away(cluster, driver)
    world.wait_gone("Pod", "a")
    until(lambda: not driver.view.left_behind(), "the claim to be given back")


def test_driver_that_starts_while_the_api_server_is_down_serves_once_it_is_back(
    world: World, cluster: Cluster, driver: HostDriver
) -> None:
    world.apply(claim("one"), pod("a", gpu=named("one")))
    before = world.wait_running("a")
    running = driver.ensure()
    with no_api_server(cluster):
        running.restart()
        time.sleep(DOWN_S)
        assert running.running
    driver.wait_ready()
    world.apply(pod("b", gpu=named("one")))
    world.wait_running("b")
    assert container_ids(world.wait_running("a")) == container_ids(before)


def test_pods_come_back_with_their_gpu_after_the_node_was_rebooted(
    world: World, node: Node, driver: HostDriver
) -> None:
    world.apply(claim("shared", config=[time_slicing("Long")]), template("single"))
    world.apply(pod("a", gpu=named("shared")), pod("b", gpu=named("shared")), pod("own", gpu=from_template("single")))
    before = world.wait_running("a", "b", "own")
    cards = {name: world.report(name).cards for name in ("a", "b", "own")}
    old_boot = node.machine.boot_id
    node.reboot()
    driver.resume()
    assert node.machine.boot_id != old_boot

    def restarted() -> bool:
        ids = container_ids(world.wait_running("a", "b", "own"))
        return not set(ids) & set(container_ids(before))

    until(restarted, "new containers", 240)
    assert {name: world.report(name).cards for name in ("a", "b", "own")} == cards
    assert driver.view.time_slices()[uuid_of(world, driver)] == "3"


def statuses(world: World, name: str) -> list[dict[str, dict[str, object]]]:
    """Container statuses of a pod, [] when it is gone."""
    found = [each for each in world.all("Pod") if each["metadata"]["name"] == name]
    return found[0]["status"].get("containerStatuses", []) if found else []


def uuid_of(world: World, driver: HostDriver) -> str:
    """UUID of the GPU that the claim ``shared`` has."""
    ((_, device),) = world.allocated("shared")
    found = next(each for each in driver.ensure().slices()[0]["spec"]["devices"] if each["name"] == device)
    return str(found["attributes"]["uuid"]["string"])
