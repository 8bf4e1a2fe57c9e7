"""The Deployment that runs an MPS control daemon on this node. Pure.

Its pod is placed by name, not by the scheduler: where the daemon runs was decided with the claim. The description of
the daemon travels with it, so that a Deployment can be told for ours, and be found, by what is in the API server alone.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.model.mps import MpsDaemon
from dra_driver.ports import Json
from dra_driver_api.names import DRIVER_NAME

COMPONENT: Final = "mps-control-daemon"
"""Of all these Deployments: their label, the name of the container, the beginning of their names."""

COMPONENT_LABEL: Final = "app.kubernetes.io/component"
NODE_LABEL: Final = f"{DRIVER_NAME}/node"
DESCRIPTION: Final = f"{DRIVER_NAME}/mps-daemon"
"""Annotation with the daemon as JSON."""

DRIVER_ROOT: Final = "/driver-root"
"""Where the container has the driver's files, read only."""

_MAX_LABEL: Final = 63
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonPods:
    """What the pods of all daemons of a node have in common.

    image: the driver's own. pull_policy, service_account, priority_class: '' leaves them to Kubernetes.
    """

    node_name: str
    image: str
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    priority_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFolders:
    """What of the host a daemon's container has, as the host sees it.

    driver_root: the driver's files. dev: device nodes, a whole ``/dev``. daemon: the daemon's own folder, which the
    container has at the same path.
    """

    driver_root: Path
    dev: Path
    daemon: Path


def name_of(daemon_id: str) -> str:
    """Name of a daemon's Deployment; at most 63 characters, so that it can be a label too."""
    return f"{COMPONENT}-{daemon_id}"


def node_labels(node_name: str) -> dict[str, str]:
    """The labels by which a node finds the Deployments of its own daemons."""
    value = node_name
    if len(value) > _MAX_LABEL:
        digest = hashlib.sha256(node_name.encode()).hexdigest()[:_DIGITS]
        value = f"{node_name[: _MAX_LABEL - _DIGITS - 1].rstrip('.-')}-{digest}"
    return {COMPONENT_LABEL: COMPONENT, NODE_LABEL: value}


def pod_labels(daemon_id: str) -> dict[str, str]:
    """The labels by which a daemon's Deployment finds its pods."""
    return {"app": name_of(daemon_id)}


def deployment(daemon: MpsDaemon, folders: HostFolders, pods: DaemonPods, node_uid: str) -> Json:
    """The Deployment, which goes with its Node when that is deleted."""
    name = name_of(daemon.id)
    labels = pod_labels(daemon.id) | node_labels(pods.node_name)
    owner = {"apiVersion": "v1", "kind": "Node", "name": pods.node_name, "uid": node_uid}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {DESCRIPTION: json.dumps(daemon.dump(), separators=(",", ":"))},
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            # Two daemons of one folder would be in each other's way.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": pod_labels(daemon.id)},
            "template": {
                "metadata": {
                    "labels": labels,
                    # It leaves with the pods that it serves, and must not keep their node from being scaled down.
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
                },
                "spec": _pod(folders, pods),
            },
        },
    }


def describes(found: Json) -> MpsDaemon | None:
    """The daemon that a Deployment runs, as far as it says so; None for a Deployment that is not such a one."""
    metadata = found.get("metadata") or {}
    name = str(metadata.get("name"))
    if (metadata.get("labels") or {}).get(COMPONENT_LABEL) != COMPONENT or not name.startswith(f"{COMPONENT}-"):
        return None
    daemon_id = name.removeprefix(f"{COMPONENT}-")
    try:
        daemon = MpsDaemon.load(json.loads((metadata.get("annotations") or {})[DESCRIPTION]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return MpsDaemon(id=daemon_id, devices=())
    return daemon if daemon.id == daemon_id else MpsDaemon(id=daemon_id, devices=())


def node_of(found: Json) -> str:
    """The node that a Deployment's pods are for."""
    return str((((found.get("spec") or {}).get("template") or {}).get("spec") or {}).get("nodeName"))


def _pod(folders: HostFolders, pods: DaemonPods) -> Json:
    mounts = _mounts(folders)
    given: Mapping[str, object] = {
        "serviceAccountName": pods.service_account,
        "priorityClassName": pods.priority_class,
        "imagePullSecrets": [{"name": name} for name in pods.pull_secrets],
    }
    return {
        "nodeName": pods.node_name,
        # The daemon knows its clients by the host's process ids.
        "hostPID": True,
        # Pods of the claim are there whatever taints the node has, or gets.
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        **{field: value for field, value in given.items() if value},
        "containers": [_container(folders.daemon, pods, [mount for mount, _ in mounts])],
        "volumes": [volume for _, volume in mounts],
    }


def _container(directory: Path, pods: DaemonPods, mounts: list[Json]) -> Json:
    command = ["dra-driver", "mps-daemon"]
    return {
        "name": COMPONENT,
        "image": pods.image,
        **({"imagePullPolicy": pods.pull_policy} if pods.pull_policy else {}),
        "command": [*command, "--driver-root", DRIVER_ROOT, str(directory)],
        # The driver's files come by mounts; the NVIDIA runtime has nothing to add.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        # Ready is who serves, with its settings made; when the daemon ends, so does the container.
        "startupProbe": {
            "exec": {"command": [*command, "--is-ready", str(directory)]},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 120,
        },
        # /dev is the host's, where the default file would be left behind.
        "terminationMessagePath": "/run/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _mounts(folders: HostFolders) -> list[tuple[Json, Json]]:
    """(mount, its volume). Mounts of the host that come later, such as a driver container's, are seen as well."""
    own = folders.daemon
    # Where the supervisor has the daemon's folders under short names; images need not have the folder.
    view = {"name": "view", "mountPath": "/mnt"}, {"name": "view", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    return [
        view,
        _mount("driver-root", folders.driver_root, DRIVER_ROOT, readOnly=True),
        _mount("daemon", own, str(own)),
        _mount("dev", folders.dev, "/dev"),
        _mount("shm", own / "shm", "/dev/shm"),  # noqa: S108 - where CUDA looks for it
    ]


def _mount(name: str, host: Path, inside: str, **more: object) -> tuple[Json, Json]:
    mount = {"name": name, "mountPath": inside, "mountPropagation": "HostToContainer", **more}
    # What is missing is said by the kubelet, and not made: the daemon would serve from an empty folder.
    return mount, {"name": name, "hostPath": {"path": str(host), "type": "Directory"}}
