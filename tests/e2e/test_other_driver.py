"""Another driver of this name registers with the kubelet, as NVIDIA's own would: it has the node until it leaves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hack.cluster.node import Node
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import RESOURCE, Json, claim, named, pod
from tests.e2e.waiting import until
from tests.e2e.world import World
from tests.fakes.other_driver import OtherDraDriver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SLICES: Final = f"/apis/{RESOURCE}/resourceslices"
_KUBELET: Final = "/var/lib/kubelet"


@pytest.fixture
def nvidias(node: Node) -> Iterator[OtherDraDriver]:
    """NVIDIA's driver, not started; it prepares no claim."""
    registry, plugins = (node.machine.path(f"{_KUBELET}/{name}") for name in ("plugins_registry", "plugins"))
    made = OtherDraDriver(registry, plugins, kubelet_plugins=Path(_KUBELET, "plugins"))
    yield made
    made.stop()


def publish(world: World, node: Node) -> tuple[str, str]:
    """A slice of NVIDIA's driver, with the second GPU: its name and version."""
    pool = {"name": node.name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node.name, "pool": pool}
    attributes = {"type": {"string": "gpu"}}
    body = {
        "apiVersion": RESOURCE,
        "kind": "ResourceSlice",
        "metadata": {"name": f"00000-gpu.nvidia.com-{node.name}-other"},
        "spec": {**spec, "devices": [{"name": "gpu-1", "attributes": attributes}]},
    }
    return version(world.cluster.api.request("POST", SLICES, body))


def slices(world: World) -> list[Json]:
    """All of this driver name."""
    found: list[Json] = world.cluster.api.get(SLICES, fieldSelector="spec.driver=gpu.nvidia.com")["items"]
    return found


def offered(world: World) -> int:
    """Devices in them."""
    return sum(len(each["spec"].get("devices") or ()) for each in slices(world))


def version(found: Json) -> tuple[str, str]:
    """Of which slice which state this is."""
    return found["metadata"]["name"], found["metadata"]["resourceVersion"]


@pytest.mark.parametrize("flags", [(), ("--pod-uid=0c4e-ours",)], ids=["the same sockets", "sockets of a pod"])
def test_node_is_left_to_another_driver_of_this_name_and_taken_back_when_it_has_left(
    driver: HostDriver, world: World, node: Node, nvidias: OtherDraDriver, flags: tuple[str, ...]
) -> None:
    driver.ensure(flags=flags)
    world.apply(claim("early"), pod("early", gpu=named("early")))
    world.wait_running("early")
    nvidias.start()
    until(lambda: "registered" in nvidias.asked, "the kubelet to register the other driver")
    until(lambda: not slices(world), "this driver to offer nothing beside another")
    theirs = publish(world, node)
    events = world.cluster.api.get("/api/v1/namespaces/default/events", fieldSelector="reason=OtherDriverPresent")
    assert any("gpu.nvidia.com-reg.sock answers with" in str(each["message"]) for each in events["items"])
    world.apply(claim("late"), pod("late", gpu=named("late")))
    assert "the other driver prepares nothing" in world.wait_event("FailedPrepareDynamicResources", "late")
    assert [version(each) for each in slices(world)] == [theirs]
    before = len(nvidias.asked)
    node.restart_kubelet()
    until(lambda: "registered" in nvidias.asked[before:], "the kubelet to register the other driver again")
    assert list(nvidias.registration.parent.glob("gpu.nvidia.com*")) == [nvidias.registration]
    world.wait_running("early")
    nvidias.stop()
    driver.wait_ready()
    until(lambda: offered(world) == 4, "all GPUs to be offered")
    world.wait_running("late")
    world.delete("Pod", "early")
