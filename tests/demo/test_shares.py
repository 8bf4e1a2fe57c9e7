"""GPUs in shares under a driver that is a process: pods from a template, and a profile that changes under them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model.errors import DriverError
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import CLAIM_TEMPLATES, PODS
from tests.demo.node import SECONDS, Node, scenario, until

pytestmark = pytest.mark.timeout(120)
Json = dict[str, Any]

GATES = "TimeSlicingSettings=true,ConsumableShares=true"


class Shared:
    """A node of two GPUs whose sharing profile is mounted as a ConfigMap is."""

    def __init__(self, directory: Path, cluster: SimulatedCluster) -> None:
        self.cluster, self.node = cluster, Node(cluster)
        self._mount, self._version = directory / "profile", 0
        self._mount.mkdir()
        self.profile = self._mount / "profile.yaml"
        self.profile.symlink_to("..data/profile.yaml")

    def change(self, shares: str) -> None:
        """GPU 0 in this many shares, GPU 1 whole; all at once, as the kubelet does it."""
        self._version += 1
        version = self._mount / f"..v{self._version}"
        version.mkdir()
        (version / "profile.yaml").write_text(f"rules:\n- {{match: {{minor: 0}}, shares: {shares}}}\n")
        link = self._mount / "..next"
        link.symlink_to(version.name)
        link.rename(self._mount / "..data")

    def start(self) -> None:
        self.cluster.start_driver(f"--sharing-profile={self.profile}", gates=GATES)
        self.cluster.wait_ready(SECONDS)

    def shares(self) -> dict[str, str]:
        """Device -> its shares, ``whole`` for none."""
        return {
            device["name"]: device["capacity"]["shares"]["value"] if "shares" in device["capacity"] else "whole"
            for device in self.cluster.devices()
        }

    def wait_shares(self, **wanted: str) -> None:
        expected = {name.replace("_", "-"): shares for name, shares in wanted.items()}
        self.cluster.wait_for(lambda: self.shares() == expected, SECONDS, f"{expected} to be published")

    def template(self) -> None:
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        spec = {"spec": {"devices": {"requests": [request]}}}
        self.cluster.store.create(CLAIM_TEMPLATES, {"metadata": {"name": "share"}, "spec": spec}, "default")

    def pod(self, name: str) -> None:
        containers = [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}]
        claims = [{"name": "gpu", "resourceClaimTemplateName": "share"}]
        spec = {"containers": containers, "resourceClaims": claims}
        self.cluster.store.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")

    def wait_running(self, *names: str) -> None:
        for name in names:
            self.cluster.wait_for(lambda pod=name: self.cluster.kubelet.containers(pod), SECONDS, f"pod {name} to run")

    def delete(self, *names: str) -> None:
        for name in names:
            self.cluster.store.delete(PODS, name, "default")

    def told(self, text: str) -> int:
        """How often the log says something."""
        return self.cluster.paths.log.read_text().count(f"sharing: {text}")


@pytest.fixture
def shared() -> Iterator[Shared]:
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        directory = Path(name)
        cluster = SimulatedCluster(directory, simulated_node=scenario(directory / "node.yaml"))
        made = Shared(directory, cluster)
        made.change("4")
        with cluster:
            made.template()
            yield made


def test_profile_is_changed_under_live_claims_and_they_are_served_on(shared: Shared) -> None:
    pods = [f"pod-{number}" for number in range(4)]
    shared.start()
    assert shared.shares() == {"gpu-0": "4", "gpu-1": "whole"}
    for pod in pods:
        shared.pod(pod)
    shared.wait_running(*pods)
    assert {d.device for pod in pods for c in shared.cluster.kubelet.containers(pod) for d in c.devices} == {"gpu-0"}

    shared.change("2")
    shared.wait_shares(gpu_0="2", gpu_1="whole")
    assert shared.told("device gpu-0 has 2 shares now and live claims hold 4") == 1

    shared.change("disabled")
    shared.wait_shares(gpu_1="whole")
    shared.delete(*pods[:3])
    shared.cluster.wait_for(lambda: len(shared.node.rows()) == 1, SECONDS, "three pods to be unprepared")
    assert shared.shares() == {"gpu-1": "whole"}
    shared.delete(pods[3])
    shared.wait_shares(gpu_0="whole", gpu_1="whole")
    assert shared.told("device gpu-0 is to be whole and is held by shares by live claims") == 1
    assert shared.node.left_behind() == []


def test_wrong_profile_and_a_killed_driver_change_nothing_for_live_claims(shared: Shared) -> None:
    shared.start()
    shared.pod("live")
    shared.wait_running("live")
    shared.change("some")
    shared.cluster.wait_for(lambda: shared.told("--sharing-profile") == 1, SECONDS, "the profile to be refused")
    assert shared.shares() == {"gpu-0": "4", "gpu-1": "whole"}
    shared.change("disabled")
    shared.wait_shares(gpu_1="whole")
    assert shared.cluster.driver is not None
    shared.cluster.driver.kill()
    shared.start()
    assert shared.shares() == {"gpu-1": "whole"}
    shared.delete("live")
    shared.wait_shares(gpu_0="whole", gpu_1="whole")
    assert shared.node.left_behind() == []


def test_wrong_profile_at_the_start_is_told_in_one_line_with_exit_code_2(shared: Shared) -> None:
    shared.change("some")
    driver = shared.cluster.start_driver(f"--sharing-profile={shared.profile}", gates=GATES)

    def ended() -> str:
        try:
            driver.check()
        except DriverError as error:
            return str(error)
        return ""

    assert "exit code 2" in until(ended, "the driver to end")
    (line,) = shared.cluster.paths.log.read_text().splitlines()
    assert f"--sharing-profile {shared.profile}: line 2: rules[0].shares is 'some', must be 'disabled'," in line
