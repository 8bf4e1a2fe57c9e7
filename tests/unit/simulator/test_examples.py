"""The shipped examples: what they apply is accepted, and shares as their comments say."""

from importlib import resources
from typing import Any

import pytest
import yaml

from dra_driver.scheduling.consumption import Usage
from dra_driver.simulator.kinds import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    kind_of,
)
from dra_driver.simulator.scheduler import Scheduler
from dra_driver.simulator.store import Store
from tests.unit.simulator.builders import NODE, gpu_slice

Json = dict[str, Any]
DIRECTORY = resources.files("dra_driver.simulator").joinpath("examples")
NAMES = sorted(entry.name for entry in DIRECTORY.iterdir())


def objects(name: str) -> list[Json]:
    return list(yaml.safe_load_all(DIRECTORY.joinpath(name).read_text(encoding="utf-8")))


def schedule(name: str, gpus: int) -> Store:
    store = Store()
    store.create(NODES, {"metadata": {"name": NODE}})
    classes = resources.files("dra_driver.simulator").joinpath("device_classes.yaml").read_text(encoding="utf-8")
    for obj in [*yaml.safe_load_all(classes), *objects(name)]:
        kind = kind_of(obj["apiVersion"], obj["kind"])
        assert kind is not None
        store.create(kind, obj)
    store.create(RESOURCE_SLICES, gpu_slice(gpus))
    Scheduler(store).look()
    return store


def bound(store: Store) -> int:
    return sum(pod["spec"].get("nodeName") == NODE for pod in store.find(PODS))


def test_there_are_examples() -> None:
    assert {"shared-claim.yaml", "two-requests.yaml", "claim-template.yaml", "two-containers.yaml"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_example_is_in_the_v1_form(name: str) -> None:
    assert {obj["apiVersion"] for obj in objects(name)} == {"resource.k8s.io/v1", "v1"}


@pytest.mark.parametrize("name", NAMES)
def test_example_uses_the_claims_that_it_defines(name: str) -> None:
    for pod in (obj for obj in objects(name) if obj["kind"] == "Pod"):
        listed = {entry["name"] for entry in pod["spec"]["resourceClaims"]}
        used = {c["name"] for container in pod["spec"]["containers"] for c in container["resources"]["claims"]}
        assert used == listed


@pytest.mark.parametrize(
    ("name", "gpus", "pods", "in_use"),
    [
        ("shared-claim.yaml", 1, 2, 1),
        ("two-requests.yaml", 2, 1, 2),
        ("claim-template.yaml", 2, 2, 2),
        ("claim-template.yaml", 1, 1, 1),
        ("two-containers.yaml", 1, 1, 1),
    ],
    ids=["shared claim", "two requests", "template", "template with too few GPUs", "two containers on one GPU"],
)
def test_example_shares_as_it_says(name: str, gpus: int, pods: int, in_use: int) -> None:
    store = schedule(name, gpus)
    assert (bound(store), len(Usage.of(store.find(RESOURCE_CLAIMS)).whole)) == (pods, in_use)


def test_device_classes_are_those_of_the_driver() -> None:
    found = {c["metadata"]["name"]: c["spec"].get("extendedResourceName") for c in classes()}
    assert found == {"gpu.nvidia.com": "nvidia.com/gpu", "mig.nvidia.com": None, "vfio.gpu.nvidia.com": None}


def classes() -> list[Json]:
    return schedule("shared-claim.yaml", 1).find(DEVICE_CLASSES)
