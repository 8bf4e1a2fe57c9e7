"""GPUs in shares as users have them with the chart: a sharing profile that is changed while the driver's pod runs.

The kubelet puts a changed ConfigMap into a pod at its next sync of it: here each 5 s (``syncFrequency`` of the
cluster's kubelets), by default about each minute.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.errors import ClusterError
from hack.cluster.node import Node
from tests.e2e.gpu_use import GpuUse, exceeded
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, asking, from_template, pod, template
from tests.e2e.release import NAMESPACE, Release, conditions, installed, restart_count
from tests.e2e.scheduler import EXTENDED, looking_again
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VALUES: Final = {
    "gpuResourcesEnabledOverride": True,
    "simulatedNode": "l4x1",
    "featureGates": {"TimeSlicingSettings": True, "ConsumableShares": True},
    "shareMemory": "even",
}
FORCE: Final = "--force-conflicts"
"""Without it, Helm 4 leaves alone what another has written since."""
MEBIBYTES: Final = 24152899584 >> 20
CONFIG_MAPS: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class Shared:
    """The release, its one GPU shared by a profile. The driver's pod must stay what it was when this was made."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._api = release.cluster.api
        self._driver = self._identity()

    def upgrade(self, *rules: dict[str, Any], flags: Sequence[str] = ()) -> None:
        """``helm upgrade`` with these rules. Raises ClusterError with what Helm said."""
        self.release.install({**VALUES, "sharingProfile": {"rules": rules}}, *flags)

    def edit(self, text: str) -> None:
        """Change the ConfigMap by hand, as ``kubectl edit`` does."""
        name = self._config_map()["metadata"]["name"]
        patch = json.dumps({"data": {"profile.yaml": text}})
        self.release.cluster.kubectl("patch", "configmap", name, f"--namespace={NAMESPACE}", f"--patch={patch}")

    @property
    def kept(self) -> str:
        """The profile in the cluster."""
        return str(self._config_map()["data"]["profile.yaml"])

    def wait_offered(self, *wanted: str) -> None:
        """Wait until the devices are published so, each with its number of shares or ``whole``."""
        until(lambda: self._offered() == list(wanted), lambda: f"{wanted} to be offered, not {self._offered()}")

    def wait_condition(self, text: str, holds: bool) -> None:
        """Wait until the condition of readiness that is about sharing holds or not, and says this."""

        def look() -> bool:
            found = self._sharing()
            return found["ok"] is holds and text in found["message"]

        until(look, lambda: f"sharing to be {'well' if holds else 'amiss'} with {text!r}, not {self._sharing()}")

    def wait_event(self, reason: str, text: str) -> None:
        """Wait for an event about the node that says this."""

        def told() -> list[str]:
            path = "/api/v1/namespaces/default/events"
            found = self._api.get(path, fieldSelector=f"reason={reason}")["items"]
            return [str(each["message"]) for each in found]

        until(lambda: any(text in message for message in told()), lambda: f"event {reason} with {text!r}: {told()}")

    def wait_ready(self, ready: bool) -> None:
        """Wait until the kubelet has the driver's pod as ready, or as not ready."""
        until(
            lambda: conditions(self.release.pods()[0]).get("Ready") == str(ready),
            lambda: f"the driver's pod to be {'ready' if ready else 'unready'}",
        )

    def check_driver(self) -> None:
        """The driver's pod is the same, and its container was never started again."""
        assert self._identity() == self._driver

    def page(self, path: str) -> str:
        """A page of the driver's pod. Raises OSError."""
        address = self.release.pods()[0]["status"]["podIP"]
        with urllib.request.urlopen(f"http://{address}:8080{path}", timeout=10) as answer:
            content: bytes = answer.read()
        return content.decode()

    def _identity(self) -> tuple[str, list[str], int]:
        (found,) = self.release.pods()
        return found["metadata"]["uid"], container_ids([found]), restart_count(found)

    def _config_map(self) -> Json:
        (found,) = (each for each in self._api.get(CONFIG_MAPS)["items"] if "profile.yaml" in each.get("data", {}))
        return dict(found)

    def _offered(self) -> list[str]:
        devices = [each for found in self.release.published() for each in found["spec"].get("devices") or ()]
        return [
            str(each["capacity"]["shares"]["value"]) if each.get("allowMultipleAllocations") else "whole"
            for each in devices
        ]

    def _sharing(self) -> dict[str, Any]:
        try:
            text = self.page("/readyz")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
        found: dict[str, Any] = json.loads(text)["conditions"]["sharing"]
        return found


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, session_driver: HostDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart, with a profile that has no rule yet, so that the first one is a change too."""
    session_driver.stop()
    values = {**VALUES, "sharingProfile": {"rules": []}}
    with installed(cluster, tmp_path_factory.mktemp("shares-chart"), values) as made:
        yield made


@pytest.fixture
def shared(release: Release, namespace: World) -> Iterator[Shared]:
    """The GPU in two shares."""
    found = Shared(release)
    found.upgrade(shares(2), flags=[FORCE])
    found.wait_offered("2")
    with looking_again(namespace.cluster.api):
        yield found
    found.check_driver()


@pytest.fixture
def world(shared: Shared, namespace: World) -> World:
    """A namespace with a template of claims, one share each."""
    namespace.apply(template("share"))
    return namespace


def shares(number: int | str, **match: Any) -> dict[str, Any]:
    """A rule of the profile, for the one GPU."""
    return {"match": match or {"minor": 0}, "shares": number}


def profile(*rules: dict[str, Any]) -> str:
    """The text of a profile, as the ConfigMap has it."""
    return yaml.safe_dump({"rules": list(rules)})


def sharing(world: World, *names: str) -> list[str]:
    """Start pods with a share each and wait until they run; ids of their containers."""
    world.apply(*(pod(name, gpu=from_template("share")) for name in names))
    return container_ids(world.wait_running(*names))


@pytest.mark.parametrize("by", ["helm upgrade", "edit of the ConfigMap"])
def test_changed_profile_is_followed_by_the_driver_pod_that_runs(shared: Shared, world: World, by: str) -> None:
    before = sharing(world, "a", "b")
    world.apply(pod("c", gpu=from_template("share")))
    world.wait_unschedulable("c")
    if by == "helm upgrade":
        shared.upgrade(shares(3))
    else:
        shared.edit(profile(shares(3)))
    shared.wait_offered("3")
    world.wait_running("c")
    shared.wait_condition("3 shares: gpu-0", holds=True)
    assert container_ids(world.wait_running("a", "b")) == before
    shared.check_driver()


def test_helm_takes_back_what_was_edited_by_hand_only_when_it_is_told_to(shared: Shared) -> None:
    shared.edit(profile(shares(5)))
    shared.wait_offered("5")
    with pytest.raises(ClusterError, match=r"conflict with .*kubectl-patch.* using v1: .data.profile.yaml"):
        shared.upgrade(shares(4))
    shared.upgrade(shares(4), flags=[FORCE])
    shared.wait_offered("4")


def test_fewer_shares_than_live_claims_hold_are_published_and_told_and_the_pods_run_on(
    shared: Shared, world: World
) -> None:
    before = sharing(world, "a", "b")
    shared.upgrade(shares(1))
    shared.wait_offered("1")
    shared.wait_condition("1 share: gpu-0", holds=True)
    said = "device gpu-0 has 1 shares now and live claims hold 2: nothing more is placed there"
    until(lambda: said in shared.release.log(), "the log to say so")
    world.delete("Pod", "a")
    world.apply(pod("c", gpu=from_template("share")))
    world.wait_unschedulable("c")
    assert container_ids(world.wait_running("b")) == before[1:]
    world.delete("Pod", "b")
    world.wait_running("c")


def test_gpu_that_is_to_be_whole_is_withheld_until_the_pods_with_shares_have_left(shared: Shared, world: World) -> None:
    before = sharing(world, "a", "b")
    shared.upgrade(shares("disabled"))
    shared.wait_offered()
    claims = f"{world.namespace}/{world.claim_of('a')}"
    shared.wait_event("DeviceWithheld", claims)
    shared.wait_condition("not offered until live claims have left: gpu-0", holds=True)
    assert container_ids(world.wait_running("a", "b")) == before
    world.delete("Pod", "a", "b")
    shared.wait_offered("whole")


def test_profile_that_is_wrong_is_refused_in_words_and_the_last_good_one_counts_on(
    shared: Shared, world: World
) -> None:
    before = sharing(world, "a")
    shared.edit("rules:\n- match: {minor: 0}\n  shares: plenty\n")
    said = "line 3: rules[0].shares is 'plenty'"
    shared.wait_event("SharingRefused", said)
    shared.wait_condition(said, holds=False)
    shared.wait_condition("the profile before this one counts on", holds=False)
    shared.wait_ready(False)
    assert container_ids(world.wait_running("a")) == before
    sharing(world, "b")
    world.apply(pod("c", gpu=from_template("share")))
    world.wait_unschedulable("c")
    shared.wait_offered("2")

    shared.edit(profile(shares(3)))
    world.wait_running("c")
    shared.wait_ready(True)
    shared.wait_condition("3 shares: gpu-0", holds=True)


def test_profile_that_is_wrong_for_the_gpus_of_the_node_passes_the_chart_and_is_refused_there(
    shared: Shared, world: World
) -> None:
    shared.upgrade(shares(3), shares(4, productName="NVIDIA L4"))
    shared.wait_event("SharingRefused", "is meant by rules[0]")
    shared.wait_condition("the profile before this one counts on", holds=False)
    sharing(world, "a", "b")
    world.apply(pod("c", gpu=from_template("share")))
    world.wait_unschedulable("c")
    shared.upgrade(shares(3))
    world.wait_running("c")
    shared.wait_ready(True)


def test_chart_refuses_a_profile_that_no_node_could_follow_and_nothing_changes(shared: Shared) -> None:
    with pytest.raises(ClusterError, match="/sharingProfile/rules/0/shares"):
        shared.upgrade(shares("plenty"))
    with pytest.raises(ClusterError, match=r"sharingProfile.rules\[0\].shares is 49, and maxClientsPerGpu is 48"):
        shared.upgrade(shares(49))
    assert shared.kept == profile(shares(2))
    shared.wait_offered("2")


def test_driver_pod_sees_the_processes_of_the_node_and_may_tell_a_pod_that_it_uses_too_much(
    shared: Shared, world: World, cluster: Cluster, node: Node
) -> None:
    wanting = asking("greedy") if EXTENDED else pod("greedy", gpu=from_template("share"))
    world.apply(wanting, pod("modest", gpu=from_template("share")))
    greedy, modest = world.wait_running("greedy", "modest")
    use, part = GpuUse(cluster, node), MEBIBYTES // 2
    (device,) = (each for found in shared.release.published() for each in found["spec"]["devices"])
    table = {use.processes(greedy)[0]: part + 1, use.processes(modest)[0]: part}
    use.show(device["attributes"]["uuid"]["string"], table)
    message = world.wait_event("GPUMemoryExceeded", "greedy")
    use.clear()
    assert f"uses {part + 1} MiB of the memory of gpu-0 and may have {part} MiB" in message
    assert exceeded(shared.page("/metrics")) >= 1
    assert "events is forbidden" not in shared.release.log()
