"""A GPU that fails under a running pod: the pod's status says so, why, and what to do; the others stay healthy."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dra_driver.devices.driver_tree import STATE
from dra_driver_api.names import CDI_KIND, DRA_SOCKET
from hack.cluster import versions
from hack.cluster.node import Node
from tests.e2e.clusters import VERSION
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, named, pod
from tests.e2e.waiting import until
from tests.e2e.world import World
from tests.grpc.helpers import health_stream

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        versions.minor(VERSION) < 36, reason="ResourceHealthStatus is alpha before 1.36, and off in this cluster"
    ),
]

Event = Callable[[HostDriver, Node], None]


@pytest.fixture
def gpu(world: World, driver: HostDriver) -> str:
    """The device of claim ``one``, which pod ``a`` has; pod ``b`` has another."""
    world.apply(claim("one"), claim("other"), pod("a", gpu=named("one")), pod("b", gpu=named("other")))
    world.wait_running("a", "b")
    until(lambda: (health(world, "a"), health(world, "b")) == ("Healthy", "Healthy"), lambda: seen(world))
    ((_, device),) = world.allocated("one")
    return device


def resources(world: World, name: str) -> list[Json]:
    """What the status of a pod says of the devices of its claim ``gpu``."""
    (container,) = world.get("Pod", name)["status"]["containerStatuses"]
    found = {each["name"]: each["resources"] for each in container.get("allocatedResourcesStatus", ())}
    of_claim: list[Json] = found.get("claim:gpu", [])
    return of_claim


def health(world: World, name: str) -> str:
    """Health of the one device that a pod has, '' when its status does not say."""
    return "".join(str(each["health"]) for each in resources(world, name))


def seen(world: World) -> str:
    """For messages: what the pods' status says."""
    return f"the wanted health; pod a has {resources(world, 'a')}, pod b {resources(world, 'b')}"


def published(driver: HostDriver) -> dict[str, str]:
    """UUID of each published device by name."""
    devices = [each for found in driver.ensure().slices() for each in found["spec"].get("devices") or ()]
    return {each["name"]: each["attributes"]["uuid"]["string"] for each in devices}


@contextmanager
def off_the_bus(driver: HostDriver, uuid: str) -> Iterator[None]:
    """A card is gone, and back and on offer afterwards."""
    gone = driver.view.tree / STATE / uuid / "gone"
    gone.touch()
    try:
        yield
    finally:
        gone.unlink()
    until(lambda: uuid in published(driver).values(), "the GPU to be offered again")


def test_status_of_a_pod_says_that_its_gpu_is_gone_why_and_what_to_do_until_it_is_back(
    world: World, driver: HostDriver, gpu: str
) -> None:
    uid = world.get("ResourceClaim", "one")["metadata"]["uid"]
    uuid = published(driver)[gpu]
    with off_the_bus(driver, uuid):
        until(lambda: health(world, "a") == "Unhealthy", lambda: seen(world))
        (found,) = resources(world, "a")
        assert found["resourceID"] == f"{CDI_KIND}={uid}-{gpu}"
        assert health(world, "b") == "Healthy"
        with health_stream(driver.view.folder / DRA_SOCKET) as stream:
            told = {each.device.device_name: each.message for each in next(stream).devices}
    assert f"device {gpu} was {uuid} when its claim was prepared" in told[gpu]
    assert "Xid" in told[gpu]
    assert "delete the claim's pods" in told[gpu]
    assert found.get("message") == told[gpu]
    until(lambda: health(world, "a") == "Healthy", lambda: seen(world))


def driver_killed(driver: HostDriver, node: Node) -> None:
    driver.ensure().kill()
    driver.resume()


def kubelet_killed(driver: HostDriver, node: Node) -> None:
    node.restart_kubelet(signal.SIGKILL)
    driver.wait_ready()


@pytest.mark.parametrize("event", [driver_killed, kubelet_killed], ids=["driver-killed", "kubelet-killed"])
def test_gpu_that_vanishes_is_told_after_a_restart_too(
    world: World, driver: HostDriver, node: Node, gpu: str, event: Event
) -> None:
    event(driver, node)
    # A kubelet that starts deletes the slices of its node; they are back in a second.
    uuid = until(lambda: published(driver).get(gpu), "the GPU to be on offer")
    with off_the_bus(driver, uuid):
        until(lambda: health(world, "a") == "Unhealthy", lambda: seen(world))
        assert health(world, "b") == "Healthy"


def test_pod_of_a_gpu_that_vanished_can_be_deleted_and_its_successor_gets_another(
    world: World, driver: HostDriver, gpu: str
) -> None:
    with off_the_bus(driver, published(driver)[gpu]):
        until(lambda: health(world, "a") == "Unhealthy", lambda: seen(world))
        world.delete("Pod", "a")
        until(lambda: not world.get("ResourceClaim", "one")["status"].get("allocation"), "the claim to be free again")
        until(lambda: gpu not in published(driver), "the GPU to be withdrawn")
        world.apply(pod("a", gpu=named("one")))
        world.wait_running("a")
        ((_, successor),) = world.allocated("one")
        assert successor != gpu
        until(lambda: health(world, "a") == "Healthy", lambda: seen(world))
