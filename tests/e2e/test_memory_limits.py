"""Memory limits of GPUs in shares, on a node that can only watch them and on one that has them enforced.

Containers, their cgroups and the OCI runtime that calls hooks are real, and so is NVIDIA's nvidia-cdi-hook; NVML is
simulated for the driver, and a recording library for the hook (``limits_hook``). On both nodes the first GPU is
shared by its memory and the second in four shares.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_driver.cdi.hook_program import LIMITS, LIMITS_STAGE
from dra_driver.cdi.tools import HOOK
from dra_driver.devices.scenario import SHIPPED
from dra_driver_api.names import DRIVER_NAME
from hack.cluster.cluster import Cluster
from tests.e2e import clusters
from tests.e2e.gpu_use import FIRST_OF_NODE, GpuUse, exceeded, runtime_ids
from tests.e2e.host_driver import HostDriver
from tests.e2e.limits_hook import Limit, LimitsHook
from tests.e2e.manifests import Json, claim, from_template, named, pod, request, template
from tests.e2e.scheduler import FULL, looking_again, several_devices
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids, in_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

GATES: Final = {"ConsumableShares": True}
PROFILE: Final = "rules:\n- {match: {minor: 0}, shares: memory}\n- {match: {minor: 1}, shares: 4}\n"
SCENARIO: Final = "h200x2"
WATCHED: Final = "node-1"
KEPT: Final = "node-2"
ENFORCED: Final = f'device.attributes["{DRIVER_NAME}"].memoryLimits == "enforced"'
MEMORY: Final = 150754820096
EVEN: Final = MEMORY // 4 >> 20
TREE: Final = f"/var/lib/kubelet/plugins/{DRIVER_NAME}/simulated-node"
EVENT: Final = "GPUMemoryExceeded"
MINUTE_S: Final = 60.0
_VARIABLES: Final = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")


class Limited:
    """A node whose GPUs are shared. hook: where limits are enforced, the program that sets them."""

    def __init__(self, cluster: Cluster, name: str, folder: Path, hook: LimitsHook | None) -> None:
        self.node = cluster.node(name)
        self.driver = HostDriver(cluster, self.node)
        self.use = GpuUse(cluster, self.node)
        self.hook = hook
        self._profile = folder / "profile.yaml"
        self._scenario = folder / f"{name}.yaml"

    def start(self) -> None:
        """Start its driver and wait until it says what becomes of limits."""
        found: dict[str, Any] = yaml.safe_load((SHIPPED / f"{SCENARIO}.yaml").read_text(encoding="utf-8"))
        found["driver"]["memoryLimits"] = self.hook is not None
        self._scenario.write_text(yaml.safe_dump(found), encoding="utf-8")
        self._profile.write_text(PROFILE, encoding="utf-8")
        hooks = (f"--cdi-hooks={HOOK}", f"--nvidia-cdi-hook-path={self.hook.path}") if self.hook else ()
        flags = (f"--sharing-profile={self._profile}", "--share-memory=even", *hooks)
        self.driver.ensure(scenario=self._scenario, gates=GATES, flags=flags)
        if self.hook is not None:
            self.hook.put_nvml(self.driver.view.tree)
        self.wait_limits("observed" if self.hook is None else "enforced")

    def devices(self) -> dict[str, Json]:
        """The published devices by name."""
        return {each["name"]: each for found in self.driver.current.slices() for each in found["spec"]["devices"]}

    def wait_limits(self, wanted: str) -> None:
        """Wait until this is what becomes of limits on both GPUs."""

        def told() -> list[str]:
            return [each["attributes"]["memoryLimits"]["string"] for each in self.devices().values()]

        until(lambda: told() == [wanted] * 2, lambda: f"limits to be {wanted}, not {told()}")

    def wait_clean(self) -> None:
        """Wait until no claim has left anything."""
        view = self.driver.view
        until(lambda: not view.left_behind(), lambda: f"a clean node: {view.left_behind()}")

    def uuid(self, device: str) -> str:
        """UUID of a GPU."""
        return str(self.devices()[device]["attributes"]["uuid"]["string"])

    def request(self, device: str, **capacity: str) -> Json:
        """A request for a part of this GPU of this node."""
        only = f'device.attributes["{DRIVER_NAME}"].uuid == "{self.uuid(device)}"'
        return request("gpu", only, **({"capacity": {"requests": capacity}} if capacity else {}))

    def config(self, container: str) -> Json:
        """What the OCI runtime was given for a container."""
        file = f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{container}/config.json"
        found: Json = json.loads(self.node.machine.path(file).read_text(encoding="utf-8"))
        return found


@pytest.fixture(scope="module")
def pair(report_image: Path) -> Iterator[Cluster]:
    """A cluster of two nodes."""
    with clusters.running(clusters.DIRECTORY.with_name(f"{clusters.DIRECTORY.name}-limits"), 2, report_image) as made:
        yield made


@pytest.fixture(scope="module")
def nodes(pair: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Limited, Limited]:
    """The node that watches, and the one that enforces."""
    folder = tmp_path_factory.mktemp("limits")
    hook = LimitsHook(folder, pair.programs / HOOK)
    return Limited(pair, WATCHED, folder, None), Limited(pair, KEPT, folder, hook)


@pytest.fixture
def watched(nodes: tuple[Limited, Limited]) -> Iterator[Limited]:
    """The node whose use of memory is watched, its driver ready."""
    nodes[0].start()
    yield nodes[0]
    nodes[0].use.clear()


@pytest.fixture
def hook(nodes: tuple[Limited, Limited]) -> Iterator[LimitsHook]:
    """The hook program of the other node."""
    hook = nodes[1].hook
    assert hook is not None
    yield hook
    hook.know_limits(True)
    hook.refuse(False)


@pytest.fixture
def kept(nodes: tuple[Limited, Limited], hook: LimitsHook) -> Limited:
    """The node whose containers are kept to their limits, its driver ready."""
    assert nodes[1].hook is hook
    nodes[1].start()
    return nodes[1]


@pytest.fixture
def world(pair: Cluster, watched: Limited, kept: Limited) -> Iterator[World]:
    """A namespace, with both drivers; nothing may be left on either node."""
    with in_namespace(pair, "limits") as made, looking_again(pair.api):
        yield made
    for each in (watched, kept):
        each.wait_clean()


def told(world: World) -> dict[str, Json]:
    """Pod -> the one event that tells of its use of memory."""
    found = [each for each in world.all("Event") if each["reason"] == EVENT]
    named = {each["involvedObject"]["name"]: each for each in found}
    assert len(named) == len(found)
    return named


def limit_of(world: World, pod: str) -> list[str]:
    """What the running container has in the two variables, in MiB."""
    environment = world.report(pod).environment
    return [environment[name] for name in _VARIABLES]


def test_pod_that_uses_more_than_it_asked_for_is_told_once_a_minute_and_no_other_pod(
    world: World, watched: Limited
) -> None:
    stranger = pod("unclaimed")
    stranger["spec"]["nodeSelector"] = {"kubernetes.io/hostname": WATCHED}
    world.apply(template("ten", watched.request("gpu-0", memory="10Gi")), stranger)
    world.apply(*(pod(name, gpu=from_template("ten")) for name in ("greedy", "modest")))
    greedy, modest, unclaimed = world.wait_running("greedy", "modest", "unclaimed")
    # What made its report has ended; the shell and the process that it waits for stay.
    world.report("greedy")
    both = until(lambda: found if len(found := watched.use.processes(greedy)) == 2 else None, "two processes")
    strangers = (watched.use.processes(unclaimed)[0], FIRST_OF_NODE)
    before, since = exceeded(watched.driver.page("/metrics")), time.monotonic()
    others = {watched.use.processes(modest)[0]: 10240, **dict.fromkeys(strangers, 50000)}
    watched.use.show(watched.uuid("gpu-0"), {both[0]: 6000, both[1]: 4241, **others})

    message = world.wait_event(EVENT, "greedy")
    assert f"claim {world.namespace}/{world.claim_of('greedy')} uses 10241 MiB of the memory of gpu-0" in message
    assert "may have 10240 MiB" in message
    until(lambda: exceeded(watched.driver.page("/metrics")) >= before + 2, "the pod to be told again")
    assert time.monotonic() - since >= MINUTE_S
    assert exceeded(watched.driver.page("/metrics")) == before + 2
    until(lambda: told(world)["greedy"]["count"] == 2, "the event to be counted")
    assert told(world).keys() == {"greedy"}
    assert told(world)["greedy"]["type"] == "Warning"


def test_even_part_of_a_share_is_a_budget_and_whoever_is_within_it_is_not_told(world: World, watched: Limited) -> None:
    world.apply(template("share", watched.request("gpu-1")))
    names = ("greedy", "modest", "late")
    world.apply(*(pod(name, gpu=from_template("share")) for name in names))
    pids = dict(zip(names, (watched.use.processes(each)[0] for each in world.wait_running(*names)), strict=True))
    before = exceeded(watched.driver.page("/metrics"))
    within = dict.fromkeys(pids.values(), EVEN)
    watched.use.show(watched.uuid("gpu-1"), within | {pids["greedy"]: EVEN + 1})
    message = world.wait_event(EVENT, "greedy")
    assert f"uses {EVEN + 1} MiB of the memory of gpu-1 and may have {EVEN} MiB" in message
    # That the look was over before this one is told proves that the third pod was not.
    watched.use.show(watched.uuid("gpu-1"), within | {pids["late"]: EVEN + 2})
    world.wait_event(EVENT, "late")
    assert told(world).keys() == {"greedy", "late"}
    assert exceeded(watched.driver.page("/metrics")) == before + 2


def test_limit_of_a_running_container_takes_the_place_of_what_its_pod_set(world: World, kept: Limited) -> None:
    wanting = pod("own", gpu=named("twenty"))
    wanting["spec"]["containers"][0]["env"] = [{"name": name, "value": "99999999"} for name in _VARIABLES]
    world.apply(claim("twenty", kept.request("gpu-0", memory="20Gi")), wanting)
    world.wait_running("own")
    assert limit_of(world, "own") == ["20480", "20480"]


@pytest.mark.parametrize(
    ("device", "capacity", "mebibytes"),
    [pytest.param("gpu-0", {"memory": "20Gi"}, 20480, id="memory"), pytest.param("gpu-1", {}, EVEN, id="even part")],
)
def test_hook_sets_the_limit_on_the_cgroup_of_the_container_for_exactly_its_gpu(
    world: World, kept: Limited, hook: LimitsHook, device: str, capacity: dict[str, str], mebibytes: int
) -> None:
    world.apply(claim("part", kept.request(device, **capacity)), pod("own", gpu=named("part")))
    (found,) = world.wait_running("own")
    (container,) = runtime_ids([found])
    arguments = (LIMITS, "--driver-root", TREE, "--gpu-id", kept.uuid(device))
    assert [call.arguments for call in hook.calls(container)] == [arguments]
    (entry,) = kept.config(container)["hooks"][LIMITS_STAGE]
    assert (entry["path"], entry["args"]) == (str(hook.path), [HOOK, *arguments])

    amount = mebibytes << 20
    (limit,) = hook.limits(container)
    assert limit == Limit(kept.uuid(device), limit.cgroup, amount, amount)
    assert f"/pod{found['metadata']['uid']}/" in limit.cgroup
    assert limit_of(world, "own") == [str(mebibytes)] * 2


def test_container_whose_limit_the_driver_refuses_does_not_start_and_its_pod_reads_why(
    world: World, kept: Limited, hook: LimitsHook
) -> None:
    hook.refuse(True)
    world.apply(claim("twenty", kept.request("gpu-0", memory="20Gi")), pod("own", gpu=named("twenty")))
    message = world.wait_event("Failed", "own")
    # Newer versions of runc say which hook: createRuntime.
    assert re.search(r"error running (createRuntime )?hook", message)
    assert "failed to set memory limits" in message


@several_devices
def test_claims_that_insist_have_places_only_where_limits_are_enforced(world: World) -> None:
    most = {"capacity": {"requests": {"memory": "100Gi"}}}
    world.apply(template("insisting", request("gpu", ENFORCED, **most)), template("any", request("gpu", **most)))
    insisting = ["first", "second", "third"]
    world.apply(*(pod(name, gpu=from_template("insisting")) for name in insisting))
    running = world.wait_number_running(2, "")
    (waiting,) = set(insisting) - set(running)
    assert FULL in world.wait_unschedulable(waiting)
    # The other node has room for as much.
    world.apply(*(pod(name, gpu=from_template("any")) for name in ("other-0", "other-1")))
    places = [each["spec"]["nodeName"] for each in world.wait_running(*running, "other-0", "other-1")]
    assert places == [KEPT, KEPT, WATCHED, WATCHED]

    world.delete("Pod", "other-0", "other-1", running[0])
    (last,) = world.wait_running(waiting)
    assert last["spec"]["nodeName"] == KEPT


def test_claim_that_insists_is_refused_where_limits_are_gone_since_and_served_when_they_are_back(
    world: World, kept: Limited, hook: LimitsHook
) -> None:
    ten = {"capacity": {"requests": {"memory": "10Gi"}}}
    world.apply(template("insisting", request("gpu", ENFORCED, **ten)))
    world.apply(pod("before", gpu=from_template("insisting")))
    before = world.wait_running("before")
    kept.node.stop_kubelet()
    try:
        world.apply(pod("after", gpu=from_template("insisting")))
        until(lambda: world.get("Pod", "after")["spec"].get("nodeName") == KEPT, "the pod to have a place")
        hook.know_limits(False)
        kept.wait_limits("observed")
    finally:
        kept.node.start_kubelet()
    message = world.wait_event("FailedPrepareDynamicResources", "after")
    assert re.search(r"demands memoryLimits == enforced, and on device gpu-\d it is observed", message)
    assert container_ids(world.wait_running("before")) == container_ids(before)
    hook.know_limits(True)
    kept.wait_limits("enforced")
    world.wait_running("after")
    assert limit_of(world, "after") == ["10240", "10240"]
