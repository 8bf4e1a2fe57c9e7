"""ResourceSlices: what the scheduler knows of the node stays right, whoever meddles."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack.cluster.driver import Driver
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, named, pod
from tests.e2e.waiting import until
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
BACK_S: Final = 5.0


def versions(driver: Driver) -> dict[str, str]:
    """resourceVersion of each slice, by name."""
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in driver.slices()}


def devices(driver: Driver) -> list[str]:
    """Names of all published devices."""
    return [device["name"] for each in driver.slices() for device in each["spec"].get("devices") or ()]


def test_slice_deleted_by_hand_is_back_in_seconds_and_pods_can_be_placed(world: World, driver: HostDriver) -> None:
    running = driver.ensure()
    before = devices(running)
    for name in versions(running):
        world.cluster.api.request("DELETE", f"{SLICES}/{name}")
    until(lambda: devices(running) == before, "the slices to be back", BACK_S)
    world.apply(claim("one"), pod("a", gpu=named("one")))
    world.wait_running("a")


def test_slice_edited_by_hand_is_right_again_in_seconds(world: World, driver: HostDriver) -> None:
    running = driver.ensure()
    (found,) = running.slices()
    right = found["spec"]["devices"]
    found["spec"]["devices"] = [{"name": "gpu-99", "attributes": {"type": {"string": "gpu"}}}]
    world.cluster.api.request("PUT", f"{SLICES}/{found['metadata']['name']}", found)
    until(lambda: [s["spec"]["devices"] for s in running.slices()] == [right], "the slice to be right", BACK_S)


def test_restart_of_the_driver_rewrites_no_slice(driver: HostDriver) -> None:
    running = driver.ensure()
    before = versions(running)
    running.restart()
    driver.wait_ready()
    assert versions(running) == before
    running.kill()
    running.start()
    driver.wait_ready()
    assert versions(running) == before


def test_slices_stay_while_the_driver_is_down_and_go_with_the_node_only(driver: HostDriver) -> None:
    running = driver.ensure()
    before = versions(running)
    (owner,) = running.slices()[0]["metadata"]["ownerReferences"]
    running.stop()
    assert versions(running) == before
    assert (owner["kind"], owner["name"]) == ("Node", running.node.name)
    driver.resume()


def scenario(path: Path, gpus: int, **parts: Any) -> Path:
    """Write a scenario with so many L4 cards; parts: its other sections."""
    cards = {
        "count": gpus,
        "productName": "NVIDIA L4",
        "architecture": "Ada Lovelace",
        "cudaComputeCapability": "8.9",
        "memoryBytes": 24152899584,
    }
    content = {"driver": {"version": "580.159.03"}, "gpus": [cards], **parts}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_pod_that_waits_for_gpus_which_come_late_runs_when_they_are_there(
    world: World, driver: HostDriver, tmp_path: Path
) -> None:
    running = driver.ensure()
    running.stop()
    for name in versions(running):
        world.cluster.api.request("DELETE", f"{SLICES}/{name}")
    world.apply(claim("one"), pod("a", gpu=named("one")))
    world.wait_unschedulable("a")
    late = {"nvml": {"notLoadableScans": 2, "zeroGpuScans": 1}}
    driver.ensure(scenario=scenario(tmp_path / "late.yaml", 2, failures=late))
    world.wait_running("a")
    assert world.report("a").cards
