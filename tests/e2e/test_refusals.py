"""Claims that cannot be served: the pod's event says why, nothing is left, and the pod runs once the cause is gone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from dra_driver_api.names import DRIVER_NAME
from hack.cluster.node import Node
from tests.cases.driver import cards
from tests.cases.driver import node as scenario
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, from_template, named, pod, request, template, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FAILED = "FailedPrepareDynamicResources"


def give_the_same(world: World, first: str, second: str) -> None:
    """Allocate to the second claim what the first one has, as a scheduler does that forgot the first."""
    allocation = world.get("ResourceClaim", first)["status"]["allocation"]
    # It asks for nothing itself.
    del allocation["devices"]["config"]
    found = world.get("ResourceClaim", second) | {"status": {"allocation": allocation}}
    world.cluster.api.request("PUT", f"{world.path('ResourceClaim', second)}/status", found)


def test_gpu_that_was_given_to_two_claims_is_the_firsts_until_its_pod_goes(world: World, driver: HostDriver) -> None:
    world.apply(claim("first", config=[time_slicing("Long")]), claim("second"), pod("a", gpu=named("first")))
    world.wait_running("a")
    give_the_same(world, "first", "second")
    world.apply(pod("b", gpu=named("second")))
    message = world.wait_event(FAILED, "b")
    ((_, device),) = world.allocated("first")
    assert device in message
    assert f"{world.namespace}/first" in message
    assert list(driver.view.rows()) == [world.get("ResourceClaim", "first")["metadata"]["uid"]]
    world.delete("Pod", "a")
    world.wait_running("b")
    assert list(world.report("b").cards) == [f"/dev/nvidia{device.removeprefix('gpu-')}"]
    assert set(driver.view.time_slices().values()) == {"0"}


@contextmanager
def no_cdi_files(node: Node) -> Iterator[None]:
    """The node's CDI directory cannot be written."""
    node.machine.run(["mount", "-t", "tmpfs", "-o", "ro", "none", "/run/cdi"])
    try:
        yield
    finally:
        node.machine.run(["umount", "/run/cdi"])


def test_failed_prepares_pile_nothing_up_and_what_is_not_deleted_runs_in_the_end(
    world: World, node: Node, driver: HostDriver
) -> None:
    names = [f"p-{number}" for number in range(3)]
    world.apply(template("sliced", config=[time_slicing("Long")]))
    with no_cdi_files(node):
        world.apply(*(pod(name, gpu=from_template("sliced")) for name in names))
        for name in names:
            assert "/var/run/cdi" in world.wait_event(FAILED, name)
        world.delete("Pod", *names[1:])
        until(lambda: len(world.all("ResourceClaim")) == 1, "the claims of the deleted pods to go")
    world.wait_running(names[0])
    (kept,) = world.all("ResourceClaim")
    assert list(driver.view.rows()) == [kept["metadata"]["uid"]]
    assert sorted(driver.view.time_slices().values()) == ["0", "0", "0", "3"]


@pytest.fixture
def one_without_slices(driver: HostDriver, tmp_path: Path) -> HostDriver:
    """Of two GPUs, GPU-a has no time slices."""
    path = tmp_path / "old-card.yaml"
    refusing = {"gpu": 0, "exitCode": 3, "stderr": "Failed to set timeslice: Not Supported"}
    path.write_text(yaml.safe_dump(scenario(cards("GPU-a", "GPU-b"), tool={"behaviours": [refusing]})), "utf-8")
    driver.ensure(scenario=path)
    return driver


def of(uuid: str) -> Json:
    """A request for this GPU."""
    return request("gpu", f'device.attributes["{DRIVER_NAME}"].uuid == "{uuid}"')


def test_gpu_without_time_slices_serves_who_asks_for_none_and_refuses_the_others_by_its_uuid(
    world: World, one_without_slices: HostDriver
) -> None:
    long = time_slicing("Long")
    world.apply(claim("plain", of("GPU-a")), claim("sliced", of("GPU-a"), config=[long]))
    world.apply(claim("other", of("GPU-b"), config=[long]))
    world.apply(pod("a", gpu=named("plain")), pod("c", gpu=named("other")))
    world.wait_running("a", "c")
    world.delete("Pod", "a")
    world.apply(pod("b", gpu=named("sliced")))
    message = world.wait_event(FAILED, "b")
    assert "GPU-a" in message
    assert "Not Supported" in message
    assert one_without_slices.view.time_slices() == {"GPU-a": "0", "GPU-b": "3"}
