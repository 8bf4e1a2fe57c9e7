"""Runs MPS control daemons as Deployments, one a daemon: the Launcher for clusters.

The kubelet pulls the image and starts the daemon's pod again when it dies; the node's own driver decides when it comes
and goes. Everything is found again by name, label and annotation, so that nothing is kept here.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import ApiError, MpsError, MpsStarting
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps import waiting
from dra_driver.mps.folders import Folder
from dra_driver.mps.manifest import (
    DESCRIPTION,
    DaemonPods,
    HostFolders,
    deployment,
    describes,
    name_of,
    node_labels,
    node_of,
    pod_labels,
)
from dra_driver.ports import DeploymentApi, Json, NodeReader

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""Between two looks at what is being ended."""

_CONFLICT: Final = 409
_NO_LOOK: Final = (403, 404)
"""Statuses of a list that is not for us, or of an API server without such objects, as a simulated one."""

_OVER: Final = ("Succeeded", "Failed")
_SHOWN: Final = 300


class DeploymentLauncher:
    """Launcher by Deployments in the driver's namespace. Thread-safe."""

    name = "deployment"

    def __init__(
        self,
        api: DeploymentApi,
        node: NodeReader,
        pods: DaemonPods,
        roots: Callable[[], DriverRoots],
        *,
        wanted: bool = True,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """roots: of the driver's files and device nodes, as they are when a daemon is launched.

        wanted: whether it launches; else it only ends what is left of before, and may lack the rights to.
        """
        self._api = api
        self._node = node
        self._pods = pods
        self._roots = roots
        self._wanted = wanted
        self._clock = clock
        self._pause = pause

    def launch(self, daemon: MpsDaemon, directory: Path) -> None:
        """See Launcher. Raises MpsStarting while an earlier Deployment of this daemon is still being deleted."""
        roots = self._roots()
        folders = HostFolders(driver_root=roots.driver_root, dev=_dev(roots), daemon=directory)
        try:
            self._api.create(deployment(daemon, folders, self._pods, self._node.uid()))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            self._check(daemon)
        else:
            log.info("MPS daemon %s: Deployment %s made", daemon.id, self._called(daemon.id))

    def why_not_ready(self, daemon_id: str, directory: Path) -> str:
        """See Launcher. An API server that does not answer, or refuses to, is words too: the daemon may come."""
        try:
            why = self._why(daemon_id)
        except ApiError as error:
            return f"what it waits for cannot be read: {error}"
        if why.final:
            raise MpsError(f"MPS daemon {daemon_id} cannot run: {why.words}")
        return why.words

    def end(self, daemon_id: str, directory: Path, timeout_s: float) -> None:
        """See Launcher. The pods count, not the Deployment alone: the daemon must be off the card."""
        deadline = self._clock() + timeout_s
        try:
            while left := self._left(daemon_id, directory):
                if self._clock() >= deadline:
                    raise MpsError(f"MPS daemon {daemon_id} is not gone after {timeout_s:g} s: {left}")
                self._pause(POLL_S)
        except ApiError as error:
            if self._wanted or error.status not in _NO_LOOK or self._may_be_ours(directory):
                raise

    def present(self) -> Sequence[MpsDaemon]:
        """See Launcher. None where this launcher is not wanted and must not look. Raises ApiError."""
        node = self._pods.node_name
        try:
            found = self._api.labelled(node_labels(node))
        except ApiError as error:
            if self._wanted or error.status not in _NO_LOOK:
                raise
            log.debug("Deployments of earlier MPS daemons are not looked for: %s", error)
            return ()
        described = [describes(each) for each in found if node_of(each) == node]
        return tuple(daemon for daemon in described if daemon is not None)

    def _may_be_ours(self, directory: Path) -> bool:
        """Whether a Deployment may run the daemon of a folder, as far as the folder tells."""
        folder = Folder(directory)
        try:
            found = folder.description()
        except MpsError:
            found = None
        return folder.is_supervised() or (found is not None and found.launcher == self.name)

    def _called(self, daemon_id: str) -> str:
        return f"{self._api.namespace}/{name_of(daemon_id)}"

    def _check(self, daemon: MpsDaemon) -> None:
        """Whether the Deployment that is there already is the one that is wanted. Raises MpsError."""
        called = self._called(daemon.id)
        found = self._api.get(name_of(daemon.id))
        if found is None or _metadata(found).get("deletionTimestamp"):
            raise MpsStarting(f"Deployment {called} of an earlier try is still being deleted")
        if describes(found) != daemon or node_of(found) != self._pods.node_name:
            said = (_metadata(found).get("annotations") or {}).get(DESCRIPTION)
            raise MpsError(
                f"Deployment {called} is there already and is not the MPS daemon that is wanted on node "
                f"{self._pods.node_name}: it is on node {node_of(found)}, with annotation {DESCRIPTION}: "
                f"{str(said)[:_SHOWN]}. Delete it "
                f"(kubectl -n {self._api.namespace} delete deployment {name_of(daemon.id)})"
            )

    def _why(self, daemon_id: str) -> waiting.Why:
        found = self._api.get(name_of(daemon_id))
        if found is None or _metadata(found).get("deletionTimestamp"):
            return waiting.Why(f"somebody deleted Deployment {self._called(daemon_id)}", final=True)
        return waiting.of_deployment(found) or waiting.of_pods(self._api.pods(pod_labels(daemon_id)))

    def _left(self, daemon_id: str, directory: Path) -> str:
        """Have the Deployment deleted; what is still there, in words, '' when all is gone."""
        found = self._api.get(name_of(daemon_id))
        if found is not None and node_of(found) == self._pods.node_name:
            if not _metadata(found).get("deletionTimestamp"):
                self._delete(found)
            deleting = f"Deployment {self._called(daemon_id)} is being deleted"
            return "; ".join([deleting, *self._running(daemon_id, directory)])
        return "; ".join(self._running(daemon_id, directory))

    def _delete(self, found: Json) -> None:
        try:
            self._api.delete(found)
        except ApiError as error:
            if error.status != _CONFLICT:  # another one is there by now: the next look sees it
                raise

    def _running(self, daemon_id: str, directory: Path) -> list[str]:
        """The pods that are there on this node, in words."""
        try:
            pods = self._api.pods(pod_labels(daemon_id))
        except ApiError as error:
            if error.status not in _NO_LOOK:
                raise
            # Its lock is seen through all containers.
            log.warning("MPS daemon %s: its pods cannot be looked for: %s", daemon_id, error)
            return ["its supervisor runs"] if Folder(directory).is_supervised() else []
        return [
            f"pod {_metadata(pod).get('name')} is "
            + ("being deleted" if _metadata(pod).get("deletionTimestamp") else "there, and nobody deletes it")
            for pod in pods
            if (pod.get("spec") or {}).get("nodeName") == self._pods.node_name
            and (pod.get("status") or {}).get("phase") not in _OVER
        ]


def _dev(roots: DriverRoots) -> Path:
    """The whole ``/dev`` that has the GPUs' nodes: a driver container's own, else the host's."""
    whole = (roots.container_dev_root / "dev/null").exists()
    return (roots.dev_root if whole else Path("/")) / "dev"


def _metadata(found: Json) -> Json:
    return found.get("metadata") or {}
