"""Parts of the cluster that stop under running and starting pods: pods run on, new ones start, nothing is left."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from dra_driver.claims.store import STATE_FILE
from hack.cluster.cluster import Cluster
from hack.cluster.node import Node
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, from_template, named, pod, template, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DOWN_S: Final = 60.0
"""So long that the node's lease runs out, and that whoever waits longer after each failure waits for long."""

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


EVENTS: Final = (driver_restarted, driver_killed, kubelet_restarted, kubelet_killed, containerd_restarted)


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


def test_minute_without_the_api_server_costs_no_pod(world: World, cluster: Cluster, driver: HostDriver) -> None:
    starting = ["starting-0", "starting-1"]
    world.apply(claim("shared", config=[time_slicing("Long")]), template("single", config=[time_slicing("Short")]))
    world.apply(pod("old", gpu=named("shared")))
    before = world.wait_running("old")
    world.apply(*(pod(name, gpu=from_template("single")) for name in starting))
    until(lambda: all("nodeName" in each["spec"] for each in world.all("Pod")), "the pods to be placed")
    with no_api_server(cluster):
        time.sleep(DOWN_S)
    world.apply(pod("sharing", gpu=named("shared")), pod("own", gpu=from_template("single")))
    world.wait_running("sharing", "own", *starting)
    assert world.report("sharing") == world.report("old")
    assert len({tuple(world.report(name).cards) for name in ("old", "own", *starting)}) == 4
    assert container_ids(world.wait_running("old")) == container_ids(before)
    assert sorted(driver.view.time_slices().values()) == ["1", "1", "1", "3"]


def test_driver_that_starts_without_the_api_server_gives_back_what_ends_and_serves_once_it_is_back(
    world: World, cluster: Cluster, driver: HostDriver
) -> None:
    slow = pod("ending", gpu=named("sliced"))
    slow["spec"]["terminationGracePeriodSeconds"] = 60
    slow["spec"]["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 15}}}
    world.apply(claim("one"), claim("sliced", config=[time_slicing("Medium")]), pod("a", gpu=named("one")), slow)
    before = world.wait_running("a", "ending")
    kept = world.get("ResourceClaim", "one")["metadata"]["uid"]
    world.delete("Pod", "ending", wait=False)
    world.wait_event("Killing", "ending")
    with no_api_server(cluster):
        driver.current.restart()
        assert len(driver.view.rows()) == 2
        until(lambda: list(driver.view.rows()) == [kept], "the claim to be given back")
        assert set(driver.view.time_slices().values()) == {"0"}
        assert driver.current.running
    driver.wait_ready()
    world.wait_gone("Pod", "ending")
    world.apply(pod("b", gpu=named("one")))
    world.wait_running("b")
    assert container_ids(world.wait_running("a"))[0] in container_ids(before)


@pytest.mark.parametrize("damage", [b"", b"not a database" * 1000], ids=["empty", "garbage"])
def test_damaged_state_is_told_as_an_event_and_costs_no_running_pod(
    world: World, cluster: Cluster, driver: HostDriver, damage: bytes
) -> None:
    world.apply(claim("shared", config=[time_slicing("Long")]), pod("a", gpu=named("shared")))
    before = world.wait_running("a")
    known = driver.view.rows()
    running = driver.ensure()
    running.kill()
    state = driver.view.folder / STATE_FILE
    for part in state.parent.glob(f"{STATE_FILE}*"):
        part.unlink()
    state.write_bytes(damage)
    driver.resume()
    until(lambda: aside(cluster, state), "a warning that names the file")
    assert driver.view.rows() == known
    world.apply(pod("b", gpu=named("shared")))
    world.wait_running("b")
    assert world.report("a") == world.report("b")
    assert container_ids(world.wait_running("a")) == container_ids(before)
    world.delete("Pod", "a", "b")
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")


def aside(cluster: Cluster, state: Path) -> bool:
    """Whether an event about the node names the damaged file that was set aside, of those that are there."""
    events = cluster.api.get("/api/v1/namespaces/default/events", fieldSelector="reason=StateDatabaseDamaged")["items"]
    about_node = " ".join(each["message"] for each in events if each["involvedObject"]["kind"] == "Node")
    found = [path.name for path in state.parent.glob(f"{STATE_FILE}.damaged-*")]
    return bool(found) and all(name in about_node for name in found if not name.endswith(("-wal", "-shm")))


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
