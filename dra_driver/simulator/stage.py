"""What every scene of the demo needs: the cluster, the examples, the time that is left, and what was seen.

Scenes themselves are in ``scenes``, printing is in the command.
"""

import time
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from dra_driver.claims.store import STATE_FILE
from dra_driver.claims.store import Store as StateStore
from dra_driver.devices.driver_tree import CALL_LOG, STATE
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.simulator.kubelet import Container
from dra_driver_api.names import cdi_spec_file

Json = dict[str, Any]

GATES_ON = "TimeSlicingSettings=true"
GATES_OFF = ""
STEP_SECONDS = 20.0
"""The longest that one step of a scene may take."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a scene says must be so."""

    what: str
    expected: object
    found: object

    @property
    def ok(self) -> bool:
        """Whether it is so."""
        return self.expected == self.found


@dataclass(slots=True)
class Scene:
    """A scene and what came of it. ``error`` is set when it could not be played to its end."""

    name: str
    title: str
    story: str
    example: str = ""
    pods: list[Json] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    event: str | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything was as it should be."""
        return not self.error and bool(self.checks) and all(check.ok for check in self.checks)

    def check(self, what: str, expected: object, found: object) -> None:
        """Note one comparison."""
        self.checks.append(Check(what, expected, found))

    def as_json(self) -> Json:
        """The scene as ``dra-driver demo -o json`` prints it."""
        return {"name": self.name, "pods": self.pods, "event": self.event, "ok": self.ok}


class Stage:
    """The cluster with a clock: every wait ends with the demo's time at the latest."""

    def __init__(self, cluster: SimulatedCluster, seconds: float) -> None:
        self.cluster = cluster
        self._end = time.monotonic() + seconds
        self._calls_before = 0

    @property
    def left(self) -> float:
        """Seconds for the next step."""
        return max(0.1, min(STEP_SECONDS, self._end - time.monotonic()))

    # The driver.

    def restart_driver(self, gates: str) -> None:
        """Stop the driver if it runs, start it with these gates, wait until it serves."""
        self.cluster.stop_driver()
        self.cluster.start_driver(gates=gates)
        self.cluster.wait_ready(self.left)

    # Pods.

    def apply(self, example: str) -> list[Json]:
        """Apply an example; calls of nvidia-smi are counted from here."""
        self._calls_before = len(self._call_lines())
        return self.cluster.apply(example_text(example))

    def run(self, objects: list[Json]) -> list[Container]:
        """Wait until all pods among the objects run, and return their containers. Raises Timeout."""
        names = [obj["metadata"]["name"] for obj in objects if obj["kind"] == PODS.kind]

        def running() -> list[Container]:
            found = {name: self.cluster.kubelet.containers(name) for name in names}
            return [c for name in names for c in found[name]] if all(found.values()) else []

        return self.cluster.wait_for(running, self.left, f"pods {', '.join(names)} to run ({self._reasons()})")

    def remove(self, objects: list[Json]) -> None:
        """Delete, and wait until all is gone, claims of templates included. Raises Timeout."""
        self.cluster.delete(objects)
        kubelet, store = self.cluster.kubelet, self.cluster.store

        def gone() -> bool:
            left = self.cluster.gone(objects) and not store.find(RESOURCE_CLAIMS)
            return left and not kubelet.claims.referenced_pods()

        self.cluster.wait_for(gone, self.left, "the pods and claims to go")

    def clear(self) -> None:
        """Remove whatever a scene left behind. Raises Timeout."""
        store = self.cluster.store
        self.remove([obj for kind in (PODS, RESOURCE_CLAIMS) for obj in store.find(kind)])
        for event in store.find(EVENTS):
            store.delete(EVENTS, event["metadata"]["name"], event["metadata"]["namespace"])

    def event(self, reason: str) -> str:
        """The message of the first event with this reason. Raises Timeout."""

        def message() -> str:
            return next((e["message"] for e in self.cluster.store.find(EVENTS, fields=f"reason={reason}")), "")

        return self.cluster.wait_for(message, self.left, f"an event {reason}")

    def _reasons(self) -> str:
        events = [f"{e['reason']}: {e['message']}" for e in self.cluster.store.find(EVENTS)]
        return "; ".join(dict.fromkeys(events)) or "no events"

    # What can be seen on the node.

    def cdi_file(self, claim: Json) -> Path:
        """Where the claim's CDI spec is written."""
        return self.cluster.paths.cdi / cdi_spec_file(claim["metadata"]["uid"])

    def cdi_files(self) -> list[str]:
        """Names of all CDI specs."""
        return [path.name for path in self.cluster.kubelet.cdi.files()]

    def rows(self) -> int:
        """Claims in the driver's state database."""
        store = StateStore.open_read_only(self.cluster.paths.plugin / STATE_FILE)
        try:
            return len(list(store.records()))
        finally:
            store.close()

    def slice_versions(self) -> list[str]:
        """Names and resourceVersions of the published slices."""
        found = [s["metadata"] for s in self.cluster.store.find(RESOURCE_SLICES)]
        return [f"{metadata['name']} {metadata['resourceVersion']}" for metadata in found]

    def time_slice(self, gpu_uuid: str) -> str:
        """The slice that the stand-in nvidia-smi keeps for a GPU, '0' to '3'."""
        path = self.cluster.paths.plugin / "simulated-node" / STATE / gpu_uuid / "time_slice"
        return path.read_text(encoding="utf-8").strip()

    def calls(self) -> list[str]:
        """Arguments of each nvidia-smi call that changes something, since the example was applied."""
        return [line for line in self._call_lines()[self._calls_before :] if "--set-" in line]

    def _call_lines(self) -> list[str]:
        path = self.cluster.paths.plugin / "simulated-node" / CALL_LOG
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def example_text(name: str) -> str:
    """One of the shipped example manifests, by file name."""
    return resources.files(__package__).joinpath("examples", name).read_text(encoding="utf-8")


def set_call(gpu_uuid: str, interval: int) -> str:
    """How a call that sets a time slice looks in the stand-in's log."""
    return f"compute-policy -i {gpu_uuid} --set-timeslice {interval}"


def entries(containers: list[Container]) -> list[Json]:
    """What containers got, one entry a device, in the form of ``-o json``."""
    return [
        {
            "name": container.pod,
            "container": container.name,
            "claim": device.claim,
            "request": device.request,
            "gpu_uuid": device.gpu_uuid,
            "cdi_devices": list(device.cdi_ids),
        }
        for container in containers
        for device in container.devices
    ]
