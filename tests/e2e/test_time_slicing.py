"""Time slices: the gate, with what a user reads when it is off, and what reaches the GPU's tool."""

import pytest

from tests.e2e.host_driver import GATES, HostDriver
from tests.e2e.manifests import claim, named, pod, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

REFUSAL = "error validating GPU config: unknown GPU sharing strategy: TimeSlicing"
REMEDY = "set the feature gate TimeSlicingSettings=true on the driver"


def test_user_reads_in_the_pods_event_which_gate_is_off_and_the_same_pod_runs_once_it_is_on(
    world: World, driver: HostDriver
) -> None:
    driver.ensure(gates={})
    world.apply(claim("sliced", config=[time_slicing("Long")]), pod("a", gpu=named("sliced")))
    message = world.wait_event("FailedPrepareDynamicResources", "a")
    assert REFUSAL in message
    assert REMEDY in message
    status = world.get("Pod", "a")["status"]
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"

    uid = world.get("Pod", "a")["metadata"]["uid"]
    driver.ensure(gates=GATES)
    world.wait_running("a", seconds=200)
    assert world.get("Pod", "a")["metadata"]["uid"] == uid


def test_claim_without_a_strategy_runs_with_the_gate_off(world: World, driver: HostDriver) -> None:
    driver.ensure(gates={})
    world.apply(claim("plain"), pod("a", gpu=named("plain")))
    world.wait_running("a")


def test_pods_that_share_set_the_slice_once_and_the_last_one_resets_it(world: World, driver: HostDriver) -> None:
    before = len(driver.view.tool_calls())
    world.apply(claim("sliced", config=[time_slicing("Long")]))
    world.apply(pod("a", gpu=named("sliced")), pod("b", gpu=named("sliced")))
    world.wait_running("a", "b")
    (uuid,) = [each for each, found in driver.view.time_slices().items() if found != "0"]
    assert driver.view.tool_calls()[before:] == [f"compute-policy -i {uuid} --set-timeslice 3"]

    world.delete("Pod", "a")
    assert driver.view.time_slices()[uuid] == "3"
    world.delete("Pod", "b")
    until(lambda: driver.view.time_slices()[uuid] == "0", "the slice to be reset")
    assert driver.view.tool_calls()[before + 1 :] == [f"compute-policy -i {uuid} --set-timeslice 0"]


@pytest.mark.parametrize(("interval", "number"), [("Short", "1"), ("Medium", "2"), ("Default", "0")])
def test_interval_that_the_claim_names_is_the_gpus(
    world: World, driver: HostDriver, interval: str, number: str
) -> None:
    world.apply(claim("sliced", config=[time_slicing(interval)]), pod("a", gpu=named("sliced")))
    world.wait_running("a")
    ((_, device),) = world.allocated("sliced")
    slices = list(driver.view.time_slices().values())
    assert slices[int(device.removeprefix("gpu-"))] == number


def test_unknown_interval_is_refused_with_those_that_exist(world: World) -> None:
    world.apply(claim("odd", config=[time_slicing("Forever")]), pod("a", gpu=named("odd")))
    message = world.wait_event("FailedPrepareDynamicResources", "a")
    assert "Forever" in message
    assert all(word in message for word in ("Default", "Short", "Medium", "Long"))
