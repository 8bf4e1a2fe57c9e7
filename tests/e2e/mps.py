"""MPS with the chart: clients to make, what there is of control daemons in the cluster, what can be in their way."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.cluster.cluster import Cluster
from hack.cluster.errors import ApiRefused
from hack.cluster.node import Node
from hack.cluster.node_files import RUNTIME_SOCKET
from hack.image import driver as driver_image
from hack.image import platforms
from tests.e2e.manifests import Json, named
from tests.e2e.manifests import pod as plain_pod
from tests.e2e.node_view import NodeView
from tests.e2e.release import NAMESPACE, PODS, Release
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
OF_DAEMONS: Final = "app.kubernetes.io/component=mps-control-daemon"
VALUES: Final[dict[str, Any]] = {
    "gpuResourcesEnabledOverride": True,
    "simulatedNode": "a10gx4",
    "featureGates": {"TimeSlicingSettings": True, "MPSSupport": True},
}
FORCE: Final = "--force-conflicts"
"""Without it, Helm 4 leaves alone what another has written since."""

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_RIGHTS: Final = (
    f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/gpus-dra-driver-gpu-kubelet-plugin-mps"
)
_PYTHON: Final = f"python{platforms.RELEASES['debian'].python}"
_USER: Final = 1000
_CLIENT: Final = """
import json, os, subprocess, time
mounts = [line.split()[1] for line in open("/proc/mounts")]
asked = subprocess.run(
    ["nvidia-cuda-mps-control"], input="get_default_active_thread_percentage\\nquit\\n", capture_output=True, text=True
)
print(json.dumps({
    "uid": os.getuid(),
    "pipe": os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
    "mounts": [path for path in mounts if path in ("/dev/shm", "/tmp/nvidia-mps")],
    "answer": asked.stdout.splitlines(),
    "shm": os.path.exists("/dev/shm/mark"),
}), flush=True)
open("/dev/shm/mark", "w").close()
time.sleep(100000)
"""


@dataclass(frozen=True, slots=True)
class Client:
    """What a client's container found. answer: lines of the daemon; shm: whether another client was there before."""

    uid: int
    pipe: str | None
    mounts: list[str]
    answer: list[str]
    shm: bool


class Mps:
    """A release with MPS on, on a node of simulated GPUs."""

    def __init__(self, release: Release, node: Node, view: NodeView) -> None:
        self.release = release
        self.view = view
        self._node = node
        self._api = release.cluster.api
        self._ctr = [str(release.cluster.programs / "ctr"), "--address", RUNTIME_SOCKET, "--namespace", "k8s.io"]

    def daemons(self) -> list[Json]:
        """Deployments of control daemons."""
        found: list[Json] = self._api.get(DEPLOYMENTS, labelSelector=OF_DAEMONS)["items"]
        return found

    def pods(self) -> list[Json]:
        """Pods of control daemons."""
        found: list[Json] = self._api.get(PODS, labelSelector=OF_DAEMONS)["items"]
        return found

    def serving(self) -> Json:
        """The one Deployment, once its pod is ready."""

        def look() -> Json | None:
            found = self.daemons()
            ready = [each for each in found if each.get("status", {}).get("readyReplicas") == 1]
            return found[0] if len(found) == len(ready) == 1 else None

        return until(look, self._in_vain("a control daemon to be ready"))

    def wait_none(self) -> None:
        """Wait until neither a Deployment nor a pod nor a folder is there."""
        until(
            lambda: not (self.daemons() or self.pods() or self.view.daemon_folders()),
            self._in_vain("control daemons to be gone"),
        )

    def exclusive(self) -> list[str]:
        """UUIDs of the cards in compute mode EXCLUSIVE_PROCESS."""
        return [uuid for uuid, mode in self.view.compute_modes().items() if mode == "Exclusive_Process"]

    def kill_driver(self) -> None:
        """Kill the driver's container, and wait until its pod is ready again."""
        killed = self.release.ready_pod()["metadata"]["name"]
        self._api.delete(f"{PODS}/{killed}", {"gracePeriodSeconds": 0})
        until(lambda: killed not in [each["metadata"]["name"] for each in self.release.pods()], "the pod to be gone")
        self.release.ready_pod()

    def kill_driver_container(self) -> None:
        """Kill the driver's process; the kubelet starts its container again, for which it needs the image."""
        self._kill(self.release.pods())

    def kill_daemon(self) -> None:
        """Kill the supervisor of the one daemon, and wait until its container has been started again."""
        before = container_ids(self.pods())
        self._kill(self.pods())
        until(
            lambda: set(container_ids(self.pods())).isdisjoint(before), self._in_vain("the daemon to be started again")
        )
        self.serving()

    def delete_deployment(self) -> None:
        """Delete the one daemon's Deployment, as a person might, and wait until another one serves."""
        before = self.serving()["metadata"]
        self._api.delete(f"{DEPLOYMENTS}/{before['name']}")
        until(
            lambda: self.serving()["metadata"]["uid"] != before["uid"],
            self._in_vain("another Deployment to serve"),
            60.0,
        )

    def _kill(self, pods: list[Json]) -> None:
        (container_id,) = container_ids(pods)
        task = container_id.removeprefix("containerd://")
        self._node.machine.run([*self._ctr, "tasks", "kill", "--signal", "SIGKILL", task])

    def upgrade(self, *flags: str, **values: Any) -> None:
        """``helm upgrade``, and wait until the driver's new pod is ready and alone."""
        before = self.release.ready_pod()["metadata"]["uid"]
        self.release.install({**VALUES, **values}, FORCE, *flags)
        until(lambda: before not in [each["metadata"]["uid"] for each in self.release.pods()], "the old pod to go")
        self.release.ready_pod()

    @contextmanager
    def without_image(self) -> Iterator[None]:
        """The node has not got the driver's image, but for containers that run. It is there again afterwards."""
        self._node.machine.run([*self._ctr, "images", "rm", "--sync", driver_image.NAME])
        try:
            yield
        finally:
            self.release.import_image()

    @contextmanager
    def rights(self, *rules: Json) -> Iterator[None]:
        """The driver has these rights in its namespace and no others. It has those of the chart afterwards."""
        role = self._api.get(_RIGHTS)
        self._write_rights(list(rules))
        try:
            yield
        finally:
            self._write_rights(role["rules"])

    def _write_rights(self, rules: list[Json]) -> None:
        role = self._api.get(_RIGHTS)
        role["rules"] = rules
        role["metadata"].pop("managedFields", None)
        self._api.request("PUT", _RIGHTS, role)

    def has_rights(self) -> bool:
        """Whether the chart's Role is there."""
        return self._api.find(_RIGHTS) is not None

    def _in_vain(self, what: str) -> Any:
        return lambda: f"{what}\n{self.release.cluster.kubectl('describe', 'pods', '-n', NAMESPACE, '-l', OF_DAEMONS)}"


def client(name: str, claim: str) -> Json:
    """A pod of a user without rights that asks the daemon, and tries to end it."""
    found = plain_pod(name, gpu=named(claim))
    found["spec"]["securityContext"] = {"runAsUser": _USER, "runAsGroup": _USER}
    (container,) = found["spec"]["containers"]
    container.pop("args")
    container |= {"image": driver_image.NAME, "command": [_PYTHON, "-c", _CLIENT]}
    return found


def seen(world: World, name: str) -> Client:
    """What a client's container found."""
    path = f"{world.path('Pod', name)}/log?container=main"
    line = until(lambda: world.cluster.api.raw("GET", path), f"output of {name}").splitlines()[0]
    return Client(**json.loads(line))


@contextmanager
def refused_by_admission(cluster: Cluster, message: str) -> Iterator[None]:
    """Pods of control daemons are not admitted."""
    name = "no-mps-daemons"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "validations": [
                {
                    "expression": "!has(object.metadata.labels) || "
                    "object.metadata.labels[?'app.kubernetes.io/component'].orValue('') != 'mps-control-daemon'",
                    "message": message,
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    cluster.api.apply_all((policy, binding))
    try:
        # It is in force a little later.
        until(lambda: not _admitted(cluster), "pods of control daemons to be refused")
        yield
    finally:
        cluster.api.delete(f"{_ADMISSION}/validatingadmissionpolicybindings/{name}")
        cluster.api.delete(f"{_ADMISSION}/validatingadmissionpolicies/{name}")


def _admitted(cluster: Cluster) -> bool:
    """Whether such a pod would be let in."""
    spec = {"containers": [{"name": "a", "image": driver_image.NAME}]}
    labels = {"app.kubernetes.io/component": "mps-control-daemon"}
    tried = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried", "labels": labels}, "spec": spec}
    try:
        cluster.api.request("POST", PODS, tried, {"dryRun": "All"})
    except ApiRefused:
        return False
    return True


def output_of(folder: Path) -> Path:
    """What a daemon's program prints; the file can be read on when the folder is gone."""
    return folder / "log/output"
