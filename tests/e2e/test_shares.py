"""GPUs in shares, as pods have them: by ``nvidia.com/gpu``, by templates, by one claim; and a profile that changes.

How many fit where is in ``test_shares_counted``, on the same scheduler and without containers.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from tests.e2e.host_driver import DEVICE_CLASSES, HostDriver
from tests.e2e.manifests import Json, asking, claim, from_template, named, pod, request, runnable_here, template
from tests.e2e.scheduler import FULL, MIG_CARD, extended, looking_again
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

CHART: Final = ROOT / "manifests/helm/dra-driver-gpu"
EXAMPLES: Final = ROOT / "manifests/examples"
GATES: Final = {"TimeSlicingSettings": True, "ConsumableShares": True}
CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
LONG: Final = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
CARD: Final = {**MIG_CARD, "mig": [{"profile": "1g.5gb", "starts": [0]}]}


class Shared:
    """The driver on a node whose sharing profile the test writes."""

    def __init__(self, driver: HostDriver, path: Path) -> None:
        self._driver = driver
        self._path = path

    def start(self, scenario: str | Path, *rules: str) -> None:
        """Serve this node by these rules."""
        self.write(*rules)
        self._driver.ensure(scenario=scenario, gates=GATES, flags=(f"--sharing-profile={self._path}",))

    def write(self, *rules: str) -> None:
        """Change the rules under the driver."""
        self._path.write_text("rules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules), encoding="utf-8")

    def wait_offered(self, **wanted: str) -> None:
        """Wait until these devices are published, each with its number of shares, ``memory``, or ``whole``."""
        expected = {name.replace("_", "-"): shares for name, shares in wanted.items()}
        until(lambda: self._offered() == expected, lambda: f"{expected} to be offered, not {self._offered()}")

    def _offered(self) -> dict[str, str]:
        devices = [each for found in self._driver.current.slices() for each in found["spec"].get("devices") or ()]
        return {each["name"]: _sharing(each) for each in devices}


def _sharing(device: Json) -> str:
    if not device.get("allowMultipleAllocations"):
        return "whole"
    return str(device["capacity"]["shares"]["value"]) if "shares" in device["capacity"] else "memory"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the profile is; the same for all tests, so that the driver need not be started for each."""
    return tmp_path_factory.mktemp("sharing") / "profile.yaml"


@pytest.fixture
def driver(session_driver: HostDriver) -> HostDriver:
    """The driver as the test before has left it: each test here starts it as it needs it."""
    return session_driver


@pytest.fixture
def shared(namespace: World, driver: HostDriver, profile: Path) -> Iterator[Shared]:
    """The driver, to be started by the test."""
    with looking_again(namespace.cluster.api):
        yield Shared(driver, profile)
    driver.resume()


@pytest.fixture
def world(shared: Shared, namespace: World) -> World:
    """A namespace, with that driver."""
    return namespace


@pytest.fixture
def classes(cluster: Cluster, world: World, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Puts the chart's DeviceClasses with these values of ``deviceClasses`` in place of those that are there."""
    before = {each["metadata"]["name"] for each in cluster.api.get(CLASSES)["items"]}

    def install(**values: Any) -> None:
        file = tmp_path / "values.json"
        gates = {"featureGates": GATES, "gpuResourcesEnabledOverride": True}
        file.write_text(json.dumps({**gates, "deviceClasses": values}), encoding="utf-8")
        flags = ("--show-only=templates/deviceclasses.yaml", f"--values={file}", "--namespace=gpus")
        cluster.apply(cluster.helm("template", "gpus", str(CHART), *flags))

    yield install
    for name in {each["metadata"]["name"] for each in cluster.api.get(CLASSES)["items"]} - before:
        cluster.api.delete(f"{CLASSES}/{name}")
    cluster.apply(DEVICE_CLASSES)


def cards(world: World, *names: str, container: str = "main") -> list[str]:
    """The one GPU of each pod, by its device file."""
    found = []
    for name in names:
        (path,) = world.report(name, container).cards
        found.append(path)
    return found


def shares_of(world: World, *pods: str) -> list[Json]:
    """The one result of each pod's claim."""
    claims = [world.get("ResourceClaim", world.claim_of(name)) for name in pods]
    return [result for each in claims for result in each["status"]["allocation"]["devices"]["results"]]


@extended
def test_ten_replicas_that_ask_for_nvidia_com_gpu_1_share_one_gpu_with_the_slice_of_the_class(
    shared: Shared, world: World, driver: HostDriver, classes: Callable[..., None]
) -> None:
    shared.start("l4x1", "match: {minor: 0}, shares: 10")
    shared.wait_offered(gpu_0="10")
    classes(sharing=LONG)
    before = len(driver.view.tool_calls())
    (server,) = runnable_here((EXAMPLES / "inference-server.yaml").read_text(encoding="utf-8"))
    world.apply(server)
    pods = world.wait_number_running(10, "app=inference-server")
    assert set(cards(world, *pods, container="server")) == {"/dev/nvidia0"}
    results = shares_of(world, *pods)
    assert len({result["shareID"] for result in results}) == 10
    assert {result["consumedCapacity"]["shares"] for result in results} == {"1"}
    ((uuid, time_slice),) = driver.view.time_slices().items()
    assert time_slice == "3"

    world.apply(asking("one-more"))
    assert FULL in world.wait_unschedulable("one-more")
    world.delete("Pod", "one-more")
    world.delete("Deployment", "inference-server")
    until(lambda: driver.view.time_slices()[uuid] == "0", "the slice to be reset")
    assert driver.view.tool_calls()[before:] == [f"compute-policy -i {uuid} --set-timeslice {n}" for n in (3, 0)]


def test_replicas_with_a_claim_each_and_pods_that_name_one_claim_share_a_gpu_and_one_slice(
    shared: Shared, world: World, driver: HostDriver, classes: Callable[..., None]
) -> None:
    shared.start("l4x1", "match: {minor: 0}, shares: 5")
    shared.wait_offered(gpu_0="5")
    classes(sharing=LONG)
    before = len(driver.view.tool_calls())
    world.apply(*runnable_here((EXAMPLES / "shares-from-template.yaml").read_text(encoding="utf-8")))
    world.apply(claim("common"), pod("a", gpu=named("common")), pod("b", gpu=named("common")))
    replicas = world.wait_number_running(4, "app=notebook")
    world.wait_running("a", "b")
    found = [*cards(world, *replicas, container="notebook"), *cards(world, "a", "b")]
    assert set(found) == {"/dev/nvidia0"}
    world.apply(template("share"), pod("late", gpu=from_template("share")))
    assert FULL in world.wait_unschedulable("late")

    world.delete("Deployment", "notebook")
    world.wait_running("late")
    assert set(driver.view.time_slices().values()) == {"3"}
    world.delete("Pod", "a", "b", "late")
    until(lambda: set(driver.view.time_slices().values()) == {"0"}, "the slice to be reset")
    assert [call.split()[-1] for call in driver.view.tool_calls()[before:]] == ["3", "0"]


@pytest.mark.parametrize("way", ["claim", pytest.param("resource", marks=extended)])
def test_who_asks_for_a_whole_gpu_gets_one_and_who_asks_for_a_share_gets_that(
    shared: Shared, world: World, classes: Callable[..., None], way: str
) -> None:
    shared.start("h200x2", "match: {minor: 0}, shares: 2")
    classes(renameByDefault=True)
    shared.wait_offered(gpu_0="2", gpu_1="whole")
    for name, of_class in (("whole", "gpu.nvidia.com"), ("share", "gpu.shared.nvidia.com")):
        world.apply(template(name, request("gpu", deviceClassName=of_class)))

    def wanting(name: str, kind: str) -> Json:
        if way == "claim":
            return pod(name, gpu=from_template(kind))
        return asking(name, "nvidia.com/gpu" if kind == "whole" else "nvidia.com/gpu.shared")

    world.apply(wanting("whole", "whole"), wanting("share-0", "share"), wanting("share-1", "share"))
    world.wait_running("whole", "share-0", "share-1")
    assert cards(world, "whole", "share-0", "share-1") == ["/dev/nvidia1", "/dev/nvidia0", "/dev/nvidia0"]
    world.apply(wanting("no-whole", "whole"), wanting("no-share", "share"))
    world.wait_unschedulable("no-whole")
    world.wait_unschedulable("no-share")


@pytest.mark.parametrize("way", ["claim", pytest.param("resource", marks=extended)])
def test_pods_share_a_mig_device_by_its_profile_and_the_one_too_many_waits(
    shared: Shared, world: World, classes: Callable[..., None], tmp_path: Path, way: str
) -> None:
    node = tmp_path / "mig.yaml"
    node.write_text(yaml.safe_dump({"driver": {"version": "580.159.04"}, "gpus": [CARD]}), encoding="utf-8")
    shared.start(node, "match: {migProfile: 1g.5gb}, shares: 2")
    shared.wait_offered(gpu_0_mig_1g5gb_19_0="2")
    classes(migProfiles=["1g.5gb"], sharing=LONG)
    world.apply(template("slice", request("slice", deviceClassName="mig-1g.5gb.nvidia.com")))

    def wanting(name: str) -> Json:
        return pod(name, gpu=from_template("slice")) if way == "claim" else asking(name, "nvidia.com/mig-1g.5gb")

    world.apply(wanting("a"), wanting("b"))
    world.wait_running("a", "b")
    first, second = world.report("a"), world.report("b")
    assert first == second
    assert sum(path.startswith("/dev/nvidia-caps/") for path in first.devices) == 2
    world.apply(wanting("c"))
    world.wait_unschedulable("c")


@pytest.mark.parametrize(
    ("example", "shares", "pods"),
    [
        ("two-shares.yaml", "4", {"trainer": "trainer"}),
        ("memory-shares.yaml", "memory", dict.fromkeys(["model-0", "model-1"], "model")),
    ],
)
def test_pods_that_ask_for_a_part_of_a_gpu_run_on_it(
    shared: Shared, world: World, example: str, shares: str, pods: dict[str, str]
) -> None:
    shared.start("l4x1", f"match: {{minor: 0}}, shares: {shares}")
    shared.wait_offered(gpu_0=shares)
    world.apply(*runnable_here((EXAMPLES / example).read_text(encoding="utf-8")))
    world.wait_running(*pods)
    assert {path for name, container in pods.items() for path in cards(world, name, container=container)} == {
        "/dev/nvidia0"
    }
    asked = {"shares": "2", "memory": "0"} if shares == "4" else {"memory": "10Gi"}
    assert [result["consumedCapacity"] for result in shares_of(world, *pods)] == [asked] * len(pods)


def test_pods_run_on_when_the_number_of_shares_changes_and_the_new_one_counts(shared: Shared, world: World) -> None:
    shared.start("l4x1", "match: {minor: 0}, shares: 2")
    shared.wait_offered(gpu_0="2")
    world.apply(template("share"), *(pod(name, gpu=from_template("share")) for name in "ab"))
    before = world.wait_running("a", "b")
    world.apply(pod("c", gpu=from_template("share")))
    world.wait_unschedulable("c")
    shared.write("match: {minor: 0}, shares: 3")
    world.wait_running("c")
    shared.write("match: {minor: 0}, shares: 1")
    shared.wait_offered(gpu_0="1")
    world.delete("Pod", "c")
    world.apply(pod("d", gpu=from_template("share")))
    world.wait_unschedulable("d")
    assert container_ids(world.wait_running("a", "b")) == container_ids(before)


def test_gpu_that_is_to_be_whole_is_withheld_until_the_pods_with_shares_have_left(
    shared: Shared, world: World, driver: HostDriver
) -> None:
    shared.start("l4x1", "match: {minor: 0}, shares: 4")
    shared.wait_offered(gpu_0="4")
    world.apply(template("any"), *(pod(name, gpu=from_template("any")) for name in "ab"))
    before = world.wait_running("a", "b")
    shared.write("match: {minor: 0}, shares: disabled")
    shared.wait_offered()
    told = partial(_events_of_node, world, "DeviceWithheld")
    until(lambda: any(f"{world.namespace}/" in message for message in told()), lambda: f"an event, not {told()}")
    world.apply(pod("late", gpu=from_template("any")))
    world.wait_unschedulable("late")
    assert container_ids(world.wait_running("a", "b")) == container_ids(before)
    world.delete("Pod", "a", "b")
    world.wait_running("late")
    (result,) = shares_of(world, "late")
    assert "shareID" not in result


def _events_of_node(world: World, reason: str) -> list[str]:
    events = world.cluster.api.get("/api/v1/namespaces/default/events", fieldSelector=f"reason={reason}")["items"]
    return [str(each["message"]) for each in events]
