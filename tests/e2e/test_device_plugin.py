"""A device plugin's GPUs on the node, as the kubelet counts them: the driver offers none until they are gone."""

import json

import pytest

from hack.cluster.node import Node
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, named, pod
from tests.e2e.waiting import until
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def count(world: World, node: Node, gpus: int | None) -> None:
    """Have the kubelet count so many GPUs, as it does for a device plugin; None: as if there had never been one."""
    path = f"/api/v1/nodes/{node.name}/status"
    amounts = {"nvidia.com/gpu": None if gpus is None else str(gpus)}
    patch = {"status": {"capacity": amounts, "allocatable": amounts}}
    world.cluster.api.raw("PATCH", path, json.dumps(patch).encode(), "application/merge-patch+json")


def offered(world: World) -> int:
    """Devices in this driver's slices."""
    found = world.cluster.api.get("/apis/resource.k8s.io/v1/resourceslices", fieldSelector="spec.driver=gpu.nvidia.com")
    return sum(len(each["spec"].get("devices") or ()) for each in found["items"])


def test_node_of_a_device_plugin_is_left_to_it_and_taken_over_when_it_has_left(
    driver: HostDriver, world: World, node: Node
) -> None:
    until(lambda: offered(world), "GPUs to be offered")
    world.apply(claim("early"), pod("early", gpu=named("early")))
    world.wait_running("early")
    try:
        count(world, node, 2)
        until(lambda: not offered(world), "no GPU to be offered beside a device plugin's")
        world.apply(claim("late"), pod("late", gpu=named("late")))
        assert "cannot allocate all claims" in world.wait_unschedulable("late")
        events = world.cluster.api.get("/api/v1/namespaces/default/events", fieldSelector="reason=DevicePluginPresent")
        assert any("nvidia.com/gpu: 2" in str(each["message"]) for each in events["items"])
        world.wait_running("early")
        world.delete("Pod", "early")
        count(world, node, 0)
        world.wait_running("late")
    finally:
        count(world, node, None)
