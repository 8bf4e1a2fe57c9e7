"""Pods, claims and namespaces deleted in a hurry and in numbers: no GPU stays lost. The fixture looks at the node."""

from typing import Final

import pytest

from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, deployment, from_template, named, pod, request, template, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World, runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STORM: Final = 100
CROWD: Final = 50
LONG_S: Final = 240.0


def test_gpu_of_a_force_deleted_pod_can_be_had_again(world: World, driver: HostDriver) -> None:
    whole = [request("gpus", allocationMode="All")]
    world.apply(claim("all", *whole, config=[time_slicing("Long")]), pod("a", gpus=named("all")))
    world.wait_running("a")
    world.delete("Pod", "a", grace_s=0)
    world.delete("ResourceClaim", "all")
    world.apply(claim("again", *whole), pod("b", gpus=named("again")))
    world.wait_running("b")
    assert len(world.report("b").cards) == 4


def test_pod_of_the_same_name_right_after_a_forced_deletion_gets_its_gpu(world: World) -> None:
    world.apply(claim("shared"))
    for _ in range(3):
        world.apply(pod("again", gpu=named("shared")))
        world.wait_running("again")
        world.delete("Pod", "again", grace_s=0)
    world.apply(pod("again", gpu=named("shared")))
    world.wait_running("again")


def test_claim_deleted_under_a_running_pod_stays_until_the_pod_goes(world: World, driver: HostDriver) -> None:
    world.apply(claim("one"), pod("a", gpu=named("one")))
    world.wait_running("a")
    world.delete("ResourceClaim", "one", wait=False)
    assert "deletionTimestamp" in world.get("ResourceClaim", "one")["metadata"]
    assert driver.view.rows()
    world.delete("Pod", "a")
    world.wait_gone("ResourceClaim", "one")


def test_pod_whose_claim_was_torn_out_by_force_gives_its_gpu_back(world: World, driver: HostDriver) -> None:
    world.apply(claim("one", config=[time_slicing("Long")]), pod("a", gpu=named("one")))
    world.wait_running("a")
    uid = world.get("ResourceClaim", "one")["metadata"]["uid"]
    unprotected = b'{"metadata": {"finalizers": null}}'
    world.cluster.api.raw("PATCH", world.path("ResourceClaim", "one"), unprotected, "application/merge-patch+json")
    world.delete("ResourceClaim", "one")
    assert list(driver.view.rows()) == [uid]
    world.delete("Pod", "a")
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")
    world.apply(claim("one"), pod("b", gpu=named("one")))
    world.wait_running("b")


def test_claim_and_pods_deleted_while_the_pods_start_leave_nothing(world: World, driver: HostDriver) -> None:
    world.apply(claim("one", config=[time_slicing("Long")]))
    world.apply(*(pod(f"p-{number}", gpu=named("one")) for number in range(4)))
    until(driver.view.rows, "the claim to be prepared")
    world.delete("ResourceClaim", "one", wait=False)
    names = [f"p-{number}" for number in range(4)]
    world.delete("Pod", *names, grace_s=0)
    world.wait_gone("ResourceClaim", "one")
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")


def test_namespace_deleted_while_its_pods_start_leaves_nothing(world: World, driver: HostDriver) -> None:
    world.apply(template("single", config=[time_slicing("Short")]))
    world.apply(deployment("many", 4, gpu=from_template("single")))
    until(driver.view.rows, "a claim to be prepared")
    world.delete_namespace()
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")


def test_crowd_on_one_claim_all_run_on_its_gpu(world: World, driver: HostDriver) -> None:
    before = len(driver.view.tool_calls())
    world.apply(claim("shared", config=[time_slicing("Long")]), deployment("crowd", CROWD, gpu=named("shared")))
    names = world.wait_number_running(CROWD, "app=crowd", LONG_S)
    assert len({tuple(world.report(name).cards) for name in names[::5]}) == 1
    assert len(driver.view.tool_calls()) == before + 1
    assert len(driver.view.rows()) == 1


def test_storm_of_pods_that_come_and_go_loses_no_gpu(world: World, driver: HostDriver) -> None:
    driver.ensure(scenario="h200x8")
    world.apply(template("single", config=[time_slicing("Short")]), claim("shared"))
    names = [f"storm-{number}" for number in range(STORM)]
    for number, name in enumerate(names):
        # One in three shares; the others fight for the remaining GPUs and leave as soon as they are seen running.
        world.apply(pod(name, gpu=named("shared") if number % 3 == 0 else from_template("single")))
        if number % 4 == 3:
            world.delete("Pod", names[number - 3], grace_s=0 if number % 8 == 3 else None, wait=False)

    def done() -> bool:
        left = [each for each in world.all("Pod") if "deletionTimestamp" not in each["metadata"]]
        for each in left:
            if runs(each):
                world.delete("Pod", each["metadata"]["name"], wait=False)
        return not left

    until(done, lambda: f"all pods to have run\n{world.describe()}", LONG_S)
    world.delete("ResourceClaim", "shared")
    until(lambda: not world.all("ResourceClaim"), "the claims of the templates to go")
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")
