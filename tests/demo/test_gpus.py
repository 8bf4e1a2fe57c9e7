"""GPUs that come late, drop out and return under a driver that is a process, with a scheduler that waits for them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.devices.driver_tree import STATE
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.simulator.stage import GATES_ON, example_text
from tests.demo.node import SECONDS

pytestmark = pytest.mark.timeout(120)
POD = "model-and-sidecar"
Json = dict[str, Any]


class Stage:
    """A node whose only card comes and goes, and a pod that wants it."""

    def __init__(self, directory: Path) -> None:
        self.cluster = SimulatedCluster(directory, simulated_node="l4x1")
        (gpu,) = SimulatedNode.load("l4x1", seed=self.cluster.node_name).source().scan().gpus
        self.gone = self.cluster.paths.plugin / "simulated-node" / STATE / gpu.uuid / "gone"
        """While this file is there, the card is off the bus."""
        self.gone.parent.mkdir(parents=True)

    def wait(self, look: Any, what: str) -> Any:
        return self.cluster.wait_for(look, SECONDS, what)

    def published(self) -> list[str] | None:
        """Names of the published devices; None while there is no slice."""
        slices = self.cluster.store.find(RESOURCE_SLICES)
        return [device["name"] for device in self.cluster.devices()] if slices else None

    def apply(self) -> list[Json]:
        return self.cluster.apply(example_text("two-containers.yaml"))

    def wait_unschedulable(self) -> None:
        def placed_nowhere() -> bool:
            (pod,) = self.cluster.store.find(PODS)
            return any(each.get("reason") == "Unschedulable" for each in pod.get("status", {}).get("conditions", ()))

        self.wait(placed_nowhere, "the pod to be unschedulable")

    def wait_running(self) -> None:
        self.wait(lambda: self.cluster.kubelet.containers(POD), "the pod to run")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        made = Stage(Path(name))
        with made.cluster:
            yield made


def test_pod_waits_on_a_node_without_gpus_whose_driver_stays_up_and_runs_when_one_is_plugged_in(stage: Stage) -> None:
    stage.gone.touch()
    driver = stage.cluster.start_driver()
    stage.wait(lambda: stage.published() == [], "an empty slice")
    stage.apply()
    stage.wait_unschedulable()
    driver.check()
    assert stage.cluster.paths.log.read_text().count("GPUs: this node has no NVIDIA GPU") == 1
    stage.gone.unlink()
    stage.wait_running()
    assert stage.published() == ["gpu-0"]


def test_gpu_that_drops_out_and_returns_keeps_the_claim_of_its_pod_and_serves_the_next(stage: Stage) -> None:
    stage.cluster.start_driver(gates=GATES_ON)
    stage.cluster.wait_ready(SECONDS)
    objects = stage.apply()
    stage.wait_running()
    (claim,) = stage.cluster.store.find(RESOURCE_CLAIMS)
    stage.gone.touch()
    stage.wait(lambda: stage.published() == [], "the GPU to be withdrawn")
    assert [path.name for path in stage.cluster.paths.cdi.iterdir() if claim["metadata"]["uid"] in path.name]
    stage.gone.unlink()
    stage.wait(lambda: stage.published() == ["gpu-0"], "the GPU to be offered again")
    stage.cluster.delete(objects)
    stage.wait(lambda: stage.cluster.gone(objects), "the pod to go")
    stage.apply()
    stage.wait_running()
