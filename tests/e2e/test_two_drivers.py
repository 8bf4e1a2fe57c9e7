"""Claims of this and another driver: each does its part, and what fails over there leaves nothing here."""

from collections.abc import Iterator

import pytest

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver_api.names import cdi_spec_file
from hack.cluster.cluster import Cluster
from hack.cluster.node import Node
from tests.e2e import second_driver
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, named, pod, request, time_slicing
from tests.e2e.second_driver import PORTS, VARIABLE, SecondDriver
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

OUT_OF_ORDER = "no link on this port"


@pytest.fixture(scope="module")
def second_driver_of_node(cluster: Cluster, node: Node) -> Iterator[SecondDriver]:
    """It serves the node as long as this module's tests run."""
    made = SecondDriver(node, cluster.api)
    made.start()
    yield made
    made.stop()
    made.withdraw()


@pytest.fixture
def nic(second_driver_of_node: SecondDriver) -> Iterator[SecondDriver]:
    """The second driver; it is well again before the test's pods go."""
    yield second_driver_of_node
    second_driver_of_node.heal()


def both(port: str = PORTS[0]) -> Json:
    """A claim for a GPU and a port. Each driver's config is for all requests."""
    configs = [second_driver.config(9000), time_slicing("Long")]
    return claim("both", request("gpu"), second_driver.request(port), config=configs)


def uid_of(world: World) -> str:
    return str(world.get("ResourceClaim", "both")["metadata"]["uid"])


def prepared(driver: HostDriver) -> dict[str, list[str]]:
    """UID -> devices of the claims that this driver has prepared to the end."""
    store = Store.open_read_only(driver.view.folder / STATE_FILE)
    try:
        found = [record for record in store.records() if record.state.value == "completed"]
        return {record.claim.uid: [device.device for device in record.plan.devices] for record in found}
    finally:
        store.close()


@pytest.mark.parametrize("port", PORTS)
def test_container_gets_what_both_drivers_have_for_its_claim(
    world: World, driver: HostDriver, nic: SecondDriver, port: str
) -> None:
    world.apply(both(port), pod("a", both=named("both")))
    world.wait_running("a")
    allocated = dict(world.allocated("both"))
    assert allocated["nic"] == port
    report = world.report("a")
    assert list(report.cards) == [f"/dev/nvidia{allocated['gpu'].removeprefix('gpu-')}"]
    assert report.environment[VARIABLE] == f"{port}:9000"
    assert prepared(driver) == {uid_of(world): [allocated["gpu"]]}
    assert driver.view.cdi_files() == sorted([cdi_spec_file(uid_of(world)), nic.cdi_file(uid_of(world))])
    assert sorted(driver.view.time_slices().values()) == ["0", "0", "0", "3"]


@pytest.mark.usefixtures("nic")
def test_claim_of_the_other_driver_alone_reaches_no_gpu(world: World, driver: HostDriver) -> None:
    world.apply(
        claim("both", second_driver.request(PORTS[0]), config=[second_driver.config(1500)]),
        pod("a", both=named("both")),
    )
    world.wait_running("a")
    report = world.report("a")
    assert report.environment == {VARIABLE: f"{PORTS[0]}:1500"}
    assert report.devices == {}
    assert driver.view.rows() == {}


def test_pod_whose_other_driver_fails_can_be_deleted_and_its_gpu_is_free(
    world: World, driver: HostDriver, nic: SecondDriver
) -> None:
    nic.prepare_error = OUT_OF_ORDER
    world.apply(both(), pod("a", both=named("both")))
    # The kubelet asks the drivers in any order, and starts anew when one refuses.
    until(lambda: prepared(driver), "the GPU to be prepared")
    assert OUT_OF_ORDER in world.wait_event("FailedPrepareDynamicResources", "a")
    world.delete("Pod", "a")
    world.delete("ResourceClaim", "both")
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")
    world.apply(claim("all", request("gpus", allocationMode="All")), pod("b", gpus=named("all")))
    world.wait_running("b")
    assert len(world.report("b").cards) == 4


def test_pods_deleted_at_the_other_drivers_first_failure_leave_nothing(
    world: World, driver: HostDriver, nic: SecondDriver
) -> None:
    nic.prepare_error = OUT_OF_ORDER
    for number in range(4):
        nic.refused.clear()
        world.apply(both(), pod(f"p-{number}", both=named("both")))
        until(lambda: nic.refused, "the other driver to refuse")
        world.delete("Pod", f"p-{number}")
    until(lambda: not driver.view.left_behind(), lambda: f"a clean node: {driver.view.left_behind()}")


def test_same_pod_runs_once_the_other_driver_is_well_again(world: World, driver: HostDriver, nic: SecondDriver) -> None:
    before = len(driver.view.tool_calls())
    nic.prepare_error = OUT_OF_ORDER
    world.apply(both(), pod("a", both=named("both")))
    until(lambda: prepared(driver), "the GPU to be prepared")
    until(lambda: len(nic.refused) > 1, "the other driver to be asked again")
    nic.heal()
    world.wait_running("a")
    assert world.report("a").environment[VARIABLE] == f"{PORTS[0]}:9000"
    assert len(driver.view.tool_calls()) == before + 1


def test_gpu_is_given_back_though_the_other_driver_cannot_let_go_of_its_device(
    world: World, driver: HostDriver, nic: SecondDriver
) -> None:
    world.apply(both(), pod("a", both=named("both")))
    world.wait_running("a")
    uid = uid_of(world)
    nic.unprepare_error = OUT_OF_ORDER
    world.delete("Pod", "a", wait=False)
    until(lambda: not prepared(driver), "the GPU to be given back")
    until(lambda: len(nic.refused) > 2, "the drivers to be asked again")
    assert driver.view.left_behind() == [f"CDI files: {[nic.cdi_file(uid)]}"]
    nic.heal()
    world.wait_gone("Pod", "a")
    assert driver.view.left_behind() == []


def test_pod_goes_though_its_other_driver_is_not_there(world: World, driver: HostDriver, nic: SecondDriver) -> None:
    nic.stop()
    world.apply(both(), pod("a", both=named("both")))
    assert second_driver.DRIVER in world.wait_event("FailedPrepareDynamicResources", "a")
    assert driver.view.left_behind() == []
    world.delete("Pod", "a")


def test_restart_of_this_driver_leaves_the_others_slices_and_files_alone(
    world: World, driver: HostDriver, nic: SecondDriver
) -> None:
    world.apply(both(), pod("a", both=named("both")))
    before = world.wait_running("a")
    files = driver.view.cdi_files()
    published = world.cluster.api.get(second_driver.SLICE)
    driver.ensure().restart()
    driver.wait_ready()
    assert nic.cdi_file(uid_of(world)) in files
    assert driver.view.cdi_files() == files
    assert world.cluster.api.get(second_driver.SLICE) == published
    assert container_ids(world.wait_running("a")) == container_ids(before)
