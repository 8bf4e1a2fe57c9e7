"""What monitoring finds on a node: the driver's own metrics, and the kubelet's word on who has which device."""

from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dra_driver_api.names import DRIVER_NAME
from hack.cluster.node import Node
from tests.cases.driver import cards, node
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, named, pod, request, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MIG: Final = request("mig", deviceClassName="mig.nvidia.com")
POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"


@pytest.fixture(scope="module")
def mixed_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenario of two whole GPUs and a third one cut into a MIG device, whose tool is broken."""
    path = tmp_path_factory.mktemp("scenario") / "driver.yaml"
    mig = [{"profile": "1g.18gb", "starts": [0]}]
    broken = {"behaviours": [{"exitCode": 1, "stderr": "broken"}]}
    path.write_text(yaml.safe_dump(node(cards("GPU-a", "GPU-b"), cards("GPU-c", mig=mig), tool=broken)), "utf-8")
    return path


@pytest.fixture
def driver(session_driver: HostDriver, mixed_node: Path) -> HostDriver:
    """The driver on that node, its counters at 0."""
    session_driver.stop()
    session_driver.ensure(scenario=mixed_node)
    return session_driver


def samples(driver: HostDriver, name: str, label: str) -> dict[str, float]:
    """Values of a metric that are not 0, by one label."""
    families = text_string_to_metric_families(driver.page("/metrics"))
    found = [sample for family in families for sample in family.samples if sample.name == f"nvidia_dra_{name}"]
    return {sample.labels[label]: sample.value for sample in found if sample.value}


def test_prepared_devices_are_counted_by_type_and_right_at_the_first_scrape_after_a_restart(
    world: World, driver: HostDriver
) -> None:
    world.apply(claim("whole", request("gpus", count=2)), claim("slice", MIG))
    world.apply(pod("a", gpus=named("whole")), pod("b", gpu=named("slice")))
    world.wait_running("a", "b")
    running = driver.current
    assert samples(driver, "prepared_devices", "device_type") == {"gpu": 2, "mig": 1}
    assert set(samples(driver, "prepared_devices", "node")) == {running.node.name}
    running.kill()
    running.start()
    until(lambda: driver.page("/metrics"), "metrics to be served")
    assert samples(driver, "prepared_devices", "device_type") == {"gpu": 2, "mig": 1}
    driver.wait_ready()
    world.delete("Pod", "a")
    assert samples(driver, "prepared_devices", "device_type") == {"mig": 1}


def test_pods_that_share_a_claim_are_one_prepare_and_one_unprepare(world: World, driver: HostDriver) -> None:
    world.apply(claim("shared"), pod("a", gpu=named("shared")))
    world.wait_running("a")
    world.apply(pod("b", gpu=named("shared")), pod("c", gpu=named("shared")))
    world.wait_running("b", "c")
    assert samples(driver, "requests_total", "operation") == {"prepare": 1}
    world.delete("Pod", "a", "b", "c")
    assert samples(driver, "requests_total", "operation") == {"prepare": 1, "unprepare": 1}
    assert samples(driver, "request_duration_seconds_count", "operation") == {"prepare": 1, "unprepare": 1}
    assert samples(driver, "requests_inflight", "operation") == {}


def test_failures_are_counted_by_kind_and_no_series_is_named_after_a_user(world: World, driver: HostDriver) -> None:
    typo: dict[str, Any] = time_slicing("Long")
    typo["opaque"]["parameters"]["sharing"]["strategy"] = "Typo"
    world.apply(claim("misspelt", config=[typo]), claim("tool", config=[time_slicing("Long")]))
    world.apply(pod("misspelling", gpu=named("misspelt")), pod("unlucky", gpu=named("tool")))
    for name in ("misspelling", "unlucky"):
        world.wait_event("FailedPrepareDynamicResources", name)
    until(
        lambda: set(samples(driver, "request_failures_total", "error_type")) == {"bad_config", "gpu_control"},
        "both kinds of failure, and no other",
    )
    # The kubelet asks again and again, so that only the kinds can be told beforehand.
    assert set(samples(driver, "node_prepare_errors_total", "error_type")) == {"prepare_devices"}
    uids = [each["metadata"]["uid"] for each in (*world.all("ResourceClaim"), *world.all("Pod"))]
    text = driver.page("/metrics")
    assert [word for word in (world.namespace, "misspel", "unlucky", *uids) if word in text] == []


def held(found: Node, namespace: str) -> dict[str, set[tuple[str, str, str]]]:
    """Pod -> (driver, pool, device) of its containers, as the kubelet tells exporters.

    It tells of a device twice when two pods of a claim were started at the same time.
    """
    messages, services = grpc.protos_and_services("tests/e2e/podresources.proto")
    with grpc.insecure_channel(f"unix:{found.machine.path(POD_RESOURCES)}") as channel:
        answer = services.PodResourcesListerStub(channel).List(messages.ListPodResourcesRequest(), timeout=10)
    return {
        each.name: {
            (device.driver_name, device.pool_name, device.device_name)
            for container in each.containers
            for resource in container.dynamic_resources
            for device in resource.claim_resources
        }
        for each in answer.pod_resources
        if each.namespace == namespace
    }


def test_exporter_finds_the_uuid_of_a_pods_gpu_by_the_kubelets_word_and_the_slices(
    world: World, driver: HostDriver
) -> None:
    world.apply(claim("whole"), claim("slice", MIG))
    world.apply(pod("a", gpu=named("whole")), pod("b", gpu=named("whole")), pod("c", gpu=named("slice")))
    world.wait_running("a", "b", "c")
    running = driver.current
    ((_, gpu),), ((_, mig),) = world.allocated("whole"), world.allocated("slice")
    pool = running.node.name
    assert held(running.node, world.namespace) == {
        "a": {(DRIVER_NAME, pool, gpu)},
        "b": {(DRIVER_NAME, pool, gpu)},
        "c": {(DRIVER_NAME, pool, mig)},
    }
    (found,) = running.slices()
    assert found["spec"]["pool"]["name"] == pool
    facts = {device["name"]: device["attributes"] for device in found["spec"]["devices"]}
    assert facts[gpu]["uuid"]["string"] == {"gpu-0": "GPU-a", "gpu-1": "GPU-b"}[gpu]
    assert facts[mig]["parentUUID"]["string"] == "GPU-c"
    assert facts[mig]["profile"]["string"] == "1g.18gb"
    assert facts[mig]["uuid"]["string"].startswith("MIG-")
