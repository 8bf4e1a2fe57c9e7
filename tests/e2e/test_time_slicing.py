"""Time slices: the gate, with what a user reads when it is off, and what reaches the GPU's tool."""

from collections.abc import Iterator

import pytest

from dra_driver_api.names import DRIVER_NAME
from tests.e2e.host_driver import GATES, HostDriver
from tests.e2e.manifests import RESOURCE, claim, named, pod, request, selectors, time_slicing
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


def test_slice_stays_while_a_monitor_comes_and_goes_and_ends_with_the_pod_that_asked(
    world: World, driver: HostDriver
) -> None:
    world.open(**{"resource.kubernetes.io/admin-access": "true"})
    look = request("gpus", allocationMode="All", adminAccess=True)
    world.apply(claim("sliced", config=[time_slicing("Long")]), claim("look", look), claim("look-on", look))
    world.apply(pod("worker", gpu=named("sliced")))
    world.wait_running("worker")
    before = driver.view.time_slices()
    assert sorted(before.values()) == ["0", "0", "0", "3"]
    world.apply(pod("monitor", gpus=named("look")), pod("other-monitor", gpus=named("look-on")))
    world.wait_running("monitor", "other-monitor")
    world.delete("Pod", "monitor")
    driver.ensure().restart()
    driver.wait_ready()
    assert driver.view.time_slices() == before
    world.delete("Pod", "worker")
    until(lambda: set(driver.view.time_slices().values()) == {"0"}, "the slice to be reset")
    world.wait_running("other-monitor")


@pytest.fixture
def class_with_slice(driver: HostDriver, world: World) -> Iterator[str]:
    """A DeviceClass whose config asks for long slices."""
    expression = f'device.driver == "{DRIVER_NAME}"'
    made = {
        "apiVersion": RESOURCE,
        "kind": "DeviceClass",
        "metadata": {"name": "sliced.example.com"},
        "spec": {**selectors([expression]), "config": [time_slicing("Long")]},
    }
    world.cluster.api.apply(made)
    yield "sliced.example.com"
    world.cluster.api.request("DELETE", "/apis/resource.k8s.io/v1/deviceclasses/sliced.example.com")


def test_claim_gets_the_slice_of_its_class_unless_it_asks_for_another(
    world: World, driver: HostDriver, class_with_slice: str
) -> None:
    wanted = request("gpu", deviceClassName=class_with_slice)
    world.apply(claim("as-the-class", wanted), claim("other", wanted, config=[time_slicing("Short")]))
    world.apply(pod("a", gpu=named("as-the-class")), pod("b", gpu=named("other")))
    world.wait_running("a", "b")
    ((_, first),), ((_, second),) = world.allocated("as-the-class"), world.allocated("other")
    slices = list(driver.view.time_slices().values())
    assert (slices[int(first[-1])], slices[int(second[-1])]) == ("3", "1")
