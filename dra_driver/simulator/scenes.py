"""The scenes of the demo: what happens in each, and what must be seen. How it is printed is not decided here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.kinds import PODS
from dra_driver.simulator.kubelet import Container
from dra_driver.simulator.stage import GATES_OFF, GATES_ON, Scene, Stage, entries, set_call

Json = dict[str, Any]

REFUSAL = "error validating GPU config: unknown GPU sharing strategy: TimeSlicing"
"""What guides tell people to look for when the gate is off."""

GATE = "TimeSlicingSettings"


def shared_claim(stage: Stage, scene: Scene) -> None:
    """Two pods, one ResourceClaim."""
    objects = stage.apply(scene.example)
    containers = stage.run(objects)
    scene.pods = entries(containers)
    first, uuids = containers[0].devices[0], _uuids(containers)
    scene.check("containers with one device", 2, len(scene.pods))
    scene.check("different GPUs", 1, len(uuids))
    scene.check("different CDI devices", 1, len({tuple(entry["cdi_devices"]) for entry in scene.pods}))
    _check_nodes(scene, containers)
    scene.check("time slice of the GPU (3 = Long)", "3", stage.time_slice(first.gpu_uuid))
    scene.check("nvidia-smi runs, for both pods together", [set_call(first.gpu_uuid, 3)], stage.calls())
    stage.remove(objects)
    scene.check("time slice after both pods left (0 = Default)", "0", stage.time_slice(first.gpu_uuid))


def two_requests(stage: Stage, scene: Scene) -> None:
    """One claim with two requests, two containers a request."""
    objects = stage.apply(scene.example)
    containers = stage.run(objects)
    scene.pods = entries(containers)
    left = _uuids([c for c in containers if c.name in ("decode", "detect")])
    right = _uuids([c for c in containers if c.name in ("embed", "rank")])
    scene.check("containers with one device", 4, len(scene.pods))
    scene.check("GPUs of the left pair", 1, len(left))
    scene.check("GPUs of the right pair", 1, len(right))
    scene.check("GPUs that both pairs use", set(), left & right)
    _check_nodes(scene, containers)
    expected = sorted([*(set_call(uuid, 1) for uuid in left), *(set_call(uuid, 2) for uuid in right)])
    scene.check("nvidia-smi runs: Short for left, Medium for right", expected, sorted(stage.calls()))
    stage.remove(objects)


def claim_template(stage: Stage, scene: Scene) -> None:
    """Two pods from one ResourceClaimTemplate."""
    objects = stage.apply(scene.example)
    containers = stage.run(objects)
    scene.pods = entries(containers)
    scene.check("containers with one device", 2, len(scene.pods))
    scene.check("claims", 2, len({entry["claim"] for entry in scene.pods}))
    scene.check("GPUs", 2, len(_uuids(containers)))
    _check_nodes(scene, containers)
    scene.check("nvidia-smi runs", [], stage.calls())
    stage.remove(objects)


def gate_off(stage: Stage, scene: Scene) -> None:
    """TimeSlicing asked for, its feature gate off."""
    stage.restart_driver(GATES_OFF)
    objects = stage.apply(scene.example)
    scene.event = stage.event("FailedPrepareDynamicResources")
    pods = [obj for obj in objects if obj["kind"] == PODS.kind]
    scene.pods = [_nothing(pod) for pod in pods]
    running = [pod["metadata"]["name"] for pod in pods if stage.cluster.kubelet.containers(pod["metadata"]["name"])]
    scene.check(f'the event has "{REFUSAL}"', True, REFUSAL in scene.event)
    scene.check("after it, the event names the gate to switch on", True, GATE in scene.event.partition(REFUSAL)[2])
    scene.check("pods that run", [], running)
    scene.check("CDI specs written", [], stage.cdi_files())
    scene.check("nvidia-smi runs", [], stage.calls())
    scene.check("the driver still runs", True, stage.cluster.driver is not None and bool(stage.cluster.driver.pid))
    stage.remove(objects)


def killed(stage: Stage, scene: Scene) -> None:
    """SIGKILL while pods run."""
    stage.restart_driver(GATES_ON)
    objects = stage.apply(scene.example)
    containers = stage.run(objects)
    scene.pods = entries(containers)
    claim, uuid = objects[0], containers[0].devices[0].gpu_uuid
    name, namespace = claim["metadata"]["name"], claim["metadata"]["namespace"]
    published, manager = stage.slice_versions(), stage.cluster.kubelet.claims
    _kill_and_start(stage)
    scene.check("CDI spec of the claim is still there", True, stage.cdi_file(claim).is_file())
    scene.check("claims in the driver's state", 1, stage.rows())
    same = manager.ask_again(namespace, name) == manager.first_answer(namespace, name)
    scene.check("prepare, asked again, is answered the same", True, same)
    scene.check("ResourceSlices, untouched", published, stage.slice_versions())
    scene.check("nvidia-smi runs so far", [set_call(uuid, 3)], stage.calls())
    stage.remove(objects)
    scene.check("CDI specs left", [], stage.cdi_files())
    scene.check("claims left in the driver's state", 0, stage.rows())
    scene.check("time slice (0 = Default)", "0", stage.time_slice(uuid))
    scene.check("nvidia-smi runs: one to set, one to reset", [set_call(uuid, 3), set_call(uuid, 0)], stage.calls())


@dataclass(frozen=True, slots=True)
class Act:
    """A scene that can be played: how it is announced and how it goes."""

    name: str
    title: str
    story: str
    example: str
    play: Callable[[Stage, Scene], None]

    def scene(self) -> Scene:
        """A fresh record of it."""
        return Scene(self.name, self.title, self.story, self.example)


def _kill_and_start(stage: Stage) -> None:
    driver = stage.cluster.driver
    if driver is not None:
        driver.kill()
    stage.cluster.start_driver(gates=GATES_ON)
    stage.cluster.wait_ready(stage.left)


def _uuids(containers: list[Container]) -> set[str]:
    return {device.gpu_uuid for container in containers for device in container.devices}


def _check_nodes(scene: Scene, containers: list[Container]) -> None:
    """Each container must see the device nodes of its own cards, /dev/nvidia<minor> for gpu-<minor>."""
    expected = [sorted(f"/dev/nvidia{d.device.removeprefix('gpu-')}" for d in c.devices) for c in containers]
    found = [sorted(n for n in c.edits.device_nodes if n.removeprefix("/dev/nvidia").isdigit()) for c in containers]
    scene.check("GPU device nodes in each container", expected, found)


def _nothing(pod: Json) -> Json:
    """The entry of a pod that got nothing."""
    claim = pod["spec"]["resourceClaims"][0]
    return {
        "name": pod["metadata"]["name"],
        "container": pod["spec"]["containers"][0]["name"],
        "claim": claim["resourceClaimName"],
        "request": "gpu",
        "gpu_uuid": None,
        "cdi_devices": [],
    }


SCENES = (
    Act(
        "a-shared-claim",
        "Two pods, one ResourceClaim",
        "Both pods name the claim trainer-gpu, which asks for one GPU and TimeSlicing with interval Long.",
        "shared-claim.yaml",
        shared_claim,
    ),
    Act(
        "b-two-requests",
        "One claim, two requests, four containers",
        "Containers decode and detect name the request left (Short slices), embed and rank the request right "
        "(Medium slices).",
        "two-requests.yaml",
        two_requests,
    ),
    Act(
        "c-claim-template",
        "Two pods from a ResourceClaimTemplate",
        "A template makes a claim for each pod, so nothing is shared. No sharing is asked for either, so the "
        "cards are not touched.",
        "claim-template.yaml",
        claim_template,
    ),
    Act(
        "d-gate-off",
        "The feature gate is off",
        "The driver runs without TimeSlicingSettings=true. The pods of scene a have to wait, and their event "
        "says what to do.",
        "shared-claim.yaml",
        gate_off,
    ),
    Act(
        "e-killed-and-restarted",
        "The driver is killed while pods run",
        "SIGKILL, then a new start. Claims, slices and settings are as before; when the pods leave, nothing "
        "stays behind.",
        "shared-claim.yaml",
        killed,
    ),
)
"""All scenes in their order."""
