"""Choosing GPUs: what is published can be selected by, and the scheduler's other ways to choose end in a container."""

from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver_api.names import DRIVER_NAME
from hack.cluster import versions
from tests.e2e.clusters import VERSION
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import CLASS, Json, claim, named, pod, request, selectors, time_slicing
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TWO_NUMA_NODES = "h200x8"
DISTINCT_SINCE = 36
NUMA_NODE = "resource.kubernetes.io/numaNode"


@pytest.fixture
def eight_gpus(driver: HostDriver) -> dict[str, Json]:
    """The published devices of a node with four GPUs on each of two NUMA nodes, by name."""
    (found,) = driver.ensure(scenario=TWO_NUMA_NODES).slices()
    return {device["name"]: device for device in found["spec"]["devices"]}


def expressions(device: Json) -> Iterator[str]:
    """A CEL expression for each attribute and capacity of a device, true for this value only."""
    for name, value in device["attributes"].items():
        domain, _, identifier = name.rpartition("/")
        yield equals(f'device.attributes["{domain or DRIVER_NAME}"].{identifier}', value)
    for name, value in device["capacity"].items():
        amount = f'quantity("{value["value"]}")'
        yield f'device.capacity["{DRIVER_NAME}"].{name}.compareTo({amount}) == 0'


def equals(what: str, value: dict[str, Any]) -> str:
    """CEL for an attribute's value, by its kind."""
    ((kind, content),) = value.items()
    if kind == "version":
        return f'{what}.compareTo(semver("{content}")) == 0'
    return f'{what} == "{content}"' if kind == "string" else f"{what} == {str(content).lower()}"


@pytest.mark.parametrize("scenario", ["a10gx4", TWO_NUMA_NODES])
def test_every_published_fact_selects_the_gpu_that_has_it(world: World, driver: HostDriver, scenario: str) -> None:
    device = driver.ensure(scenario=scenario).slices()[0]["spec"]["devices"][2]
    facts = list(expressions(device))
    assert len(facts) == len(device["attributes"]) + len(device["capacity"])
    world.apply(claim("by-facts", request("gpu", *facts)), pod("a", gpu=named("by-facts")))
    world.wait_running("a")
    assert world.allocated("by-facts") == [("gpu", device["name"])]
    assert list(world.report("a").cards) == [f"/dev/nvidia{device['name'].removeprefix('gpu-')}"]


def test_fact_that_no_gpu_has_keeps_the_pod_waiting(world: World) -> None:
    too_much = f'device.capacity["{DRIVER_NAME}"].memory.compareTo(quantity("1Ti")) > 0'
    world.apply(claim("greedy", request("gpu", too_much)), pod("a", gpu=named("greedy")))
    assert "cannot allocate all claims" in world.wait_unschedulable("a")


def test_mig_class_gives_the_slice_of_a_card_that_was_asked_for(world: World, driver: HostDriver) -> None:
    driver.ensure(scenario="a100x8-mig")
    small = request("gpu", f'device.attributes["{DRIVER_NAME}"].profile == "1g.5gb"', deviceClassName="mig.nvidia.com")
    world.apply(claim("slice", small), pod("a", gpu=named("slice")))
    world.wait_running("a")
    ((_, device),) = world.allocated("slice")
    assert device.startswith("gpu-0-mig-")
    report = world.report("a")
    assert list(report.cards) == ["/dev/nvidia0"]
    assert sum(path.startswith("/dev/nvidia-caps/") for path in report.devices) == 2


def test_gpus_that_must_match_are_on_one_numa_node(world: World, eight_gpus: dict[str, Json]) -> None:
    # Taken first, so that the first four that are free would be on two.
    world.apply(claim("first"), pod("a", gpu=named("first")))
    world.wait_running("a")
    alike = [{"requests": ["gpus"], "matchAttribute": NUMA_NODE}]
    world.apply(claim("near", request("gpus", count=4), constraints=alike), pod("b", gpus=named("near")))
    world.wait_running("b")
    found = [device for _, device in world.allocated("near")]
    assert len(found) == 4
    assert len({eight_gpus[device]["attributes"][NUMA_NODE]["int"] for device in found}) == 1
    assert set(world.report("b").cards) == {f"/dev/nvidia{device.removeprefix('gpu-')}" for device in found}


@pytest.mark.skipif(
    versions.minor(VERSION) < DISTINCT_SINCE,
    reason=f"distinctAttribute is alpha in Kubernetes {VERSION}, whose scheduler puts both GPUs on one NUMA node",
)
def test_gpus_that_must_differ_are_on_two_numa_nodes(world: World, eight_gpus: dict[str, Json]) -> None:
    apart = [{"requests": ["gpus"], "distinctAttribute": NUMA_NODE}]
    world.apply(claim("far", request("gpus", count=2), constraints=apart), pod("a", gpus=named("far")))
    world.wait_running("a")
    found = [device for _, device in world.allocated("far")]
    assert {eight_gpus[device]["attributes"][NUMA_NODE]["int"] for device in found} == {0, 1}


def test_second_choice_runs_where_the_first_is_not_to_be_had(world: World) -> None:
    def choice(name: str, product: str) -> Json:
        return {
            "name": name,
            "deviceClassName": CLASS,
            **selectors([f'device.attributes["{DRIVER_NAME}"].productName == "{product}"']),
        }

    either = {"name": "gpu", "firstAvailable": [choice("big", "NVIDIA B200"), choice("small", "NVIDIA A10G")]}
    world.apply(claim("either", either), pod("a", gpu=named("either")))
    world.wait_running("a")
    ((name, _),) = world.allocated("either")
    assert name == "gpu/small"
    assert len(world.report("a").cards) == 1


def test_config_for_a_request_counts_for_the_choice_that_was_made(world: World, driver: HostDriver) -> None:
    either = {"name": "gpu", "firstAvailable": [{"name": "any", "deviceClassName": CLASS}]}
    config = {"requests": ["gpu"], **time_slicing("Medium")}
    world.apply(claim("either", either, config=[config]), pod("a", gpu=named("either")))
    world.wait_running("a")
    assert "2" in driver.view.time_slices().values()


def test_admin_looks_at_all_gpus_while_others_work_on_them(world: World) -> None:
    world.open(**{"resource.kubernetes.io/admin-access": "true"})
    world.apply(claim("work"), pod("worker", gpu=named("work")))
    world.wait_running("worker")
    everything = request("gpus", allocationMode="All", adminAccess=True)
    world.apply(claim("look", everything), pod("monitor", gpus=named("look")))
    world.wait_running("monitor")
    assert len(world.report("monitor").cards) == 4
    assert set(world.report("worker").cards) < set(world.report("monitor").cards)
    world.delete("Pod", "monitor")
    world.wait_running("worker")
