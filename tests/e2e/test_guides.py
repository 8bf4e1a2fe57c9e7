"""The guide to EKS, command by command, on a node that is as the manifests make it: the outputs in it are true."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from hack.cluster.node import Node
from tests.e2e import guide
from tests.e2e.host_driver import GATES, HostDriver
from tests.e2e.manifests import runnable_here
from tests.e2e.waiting import until
from tests.e2e.world import World
from tests.unit.manifests import groups

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WORKLOAD: Final = "manifests/eks/shared-gpu.yaml"
NO_PROGRAM: Final = ("kubectl logs",)
"""The image of the tests has no nvidia-smi; it tells which device files its container has."""


@pytest.fixture
def prepared(cluster: Cluster, node: Node, session_driver: HostDriver, tmp_path: Path) -> Iterator[Path]:
    """A folder to run commands in; the node has one L4, and labels and taint of a node group."""
    session_driver.ensure(scenario="l4x1", gates=GATES)
    group = groups.of_eksctl()[0]
    labels = [f"{name}={value}" for name, value in group.labels.items()]
    taints = [f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in group.taints]
    cluster.kubectl("label", "node", node.name, *labels)
    cluster.kubectl("taint", "node", node.name, *taints)
    (tmp_path / WORKLOAD).parent.mkdir(parents=True)
    workload = runnable_here((ROOT / WORKLOAD).read_text(encoding="utf-8"))
    (tmp_path / WORKLOAD).write_text(yaml.safe_dump_all(workload), encoding="utf-8")
    yield tmp_path
    cluster.kubectl("delete", "--ignore-not-found", f"--filename={tmp_path / WORKLOAD}")
    cluster.kubectl("taint", "node", node.name, *(f"{taint['key']}-" for taint in group.taints))
    cluster.kubectl("label", "node", node.name, *(f"{name}-" for name in group.labels))


def test_each_command_prints_what_the_guide_to_eks_says(cluster: Cluster, prepared: Path) -> None:
    world = World(cluster, "default")
    known: dict[str, str] = {}
    done = []
    for step in guide.steps("eks.md"):
        if step.command.startswith(NO_PROGRAM):
            continue
        if step.command.startswith("kubectl get events"):
            # What the two logs would say.
            assert set(world.report("trainer-0", "trainer").cards) == {"/dev/nvidia0"}
            assert set(world.report("trainer-1", "trainer").cards) == {"/dev/nvidia0"}
        step.check(guide.run(step.command, cluster.environment(), prepared), known)
        done.append(step.command)
    assert len(done) == 11
    assert set(known) == {"node", "uuid"}
    until(lambda: not cluster.api.get("/api/v1/namespaces/default/pods")["items"], "the pods to go")
