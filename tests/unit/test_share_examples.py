"""The examples of ``manifests/examples``: what is in them is right, and means what their comments say."""

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.commands.main import main
from dra_driver.sharing.shares import ConsumableShares
from dra_driver.simulator.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, kind_of
from dra_driver.simulator.scheduler import Scheduler
from dra_driver.simulator.store import Store
from dra_driver.slices.build import build_slices, slice_objects
from tests.builders import DRIVER, make_gpu
from tests.unit.simulator.builders import NODE

Json = dict[str, Any]
DIRECTORY = Path(__file__).parents[2] / "manifests/examples"
OBJECTS = sorted(path.name for path in DIRECTORY.glob("*.yaml") if not path.name.startswith("values"))


def objects(name: str) -> list[Json]:
    return list(yaml.safe_load_all((DIRECTORY / name).read_text(encoding="utf-8")))


def pods(obj: Json) -> list[Json]:
    """The object, or the pods that a Deployment makes."""
    if obj["kind"] != "Deployment":
        return [obj]
    spec, name = obj["spec"], obj["metadata"]["name"]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": spec["template"]["spec"]}
    return [{**pod, "metadata": {"name": f"{name}-{number}"}} for number in range(spec["replicas"])]


def schedule(name: str, shares: str, memory_bytes: int = 24 << 30) -> tuple[int, int, list[Json]]:
    """On a node of one GPU: pods that are placed, pods that wait, and what was consumed."""
    store = Store()
    store.create(NODES, {"metadata": {"name": NODE}})
    classes = resources.files("dra_driver.simulator").joinpath("device_classes.yaml").read_text(encoding="utf-8")
    for device_class in yaml.safe_load_all(classes):
        store.create(DEVICE_CLASSES, device_class)
    pool = build_slices([make_gpu(memory_bytes=memory_bytes)], DRIVER, NODE, {"gpu-0": ConsumableShares.parse(shares)})
    for obj in slice_objects(pool, NODE, "uid", 1):
        store.create(RESOURCE_SLICES, obj)
    for obj in [pod for each in objects(name) for pod in pods(each)]:
        kind = kind_of(obj["apiVersion"], obj["kind"])
        assert kind is not None
        store.create(kind, obj, "default")
    Scheduler(store).look()
    placed = [bool(pod["spec"].get("nodeName")) for pod in store.find(PODS)]
    allocated = [c["status"]["allocation"] for c in store.find(RESOURCE_CLAIMS) if "allocation" in c.get("status", {})]
    taken = [result["consumedCapacity"] for each in allocated for result in each["devices"]["results"]]
    return placed.count(True), placed.count(False), taken


@pytest.mark.parametrize("name", OBJECTS)
def test_example_has_nothing_that_validate_complains_about(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    gates = "--feature-gates=ConsumableShares=true,TimeSlicingSettings=true"
    assert main(["validate", gates, str(DIRECTORY / name)]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "shares", "expected"),
    [
        ("shares-from-template.yaml", "4", (4, 0, [{"memory": "0", "shares": "1"}] * 4)),
        ("shares-from-template.yaml", "3", (3, 1, [{"memory": "0", "shares": "1"}] * 3)),
        ("two-shares.yaml", "4", (1, 0, [{"memory": "0", "shares": "2"}])),
        ("two-shares.yaml", "1", (0, 1, [])),
        ("memory-shares.yaml", "memory", (2, 0, [{"memory": str(10 << 30)}] * 2)),
    ],
    ids=["template", "one too many", "half", "no half", "memory"],
)
def test_example_shares_as_it_says(name: str, shares: str, expected: tuple[int, int, list[Json]]) -> None:
    assert schedule(name, shares) == expected


def test_server_asks_for_nothing_but_one_gpu_by_its_resource() -> None:
    (server,) = objects("inference-server.yaml")
    spec = server["spec"]["template"]["spec"]
    assert "resourceClaims" not in spec
    assert [each["resources"] for each in spec["containers"]] == [{"limits": {"nvidia.com/gpu": 1}}]
