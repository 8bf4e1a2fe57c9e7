"""A kubelet without containers: prepares claims of this node's pods, reads the CDI specs, reports in events.

Drivers are reached through the real registration and DRA sockets; pods and events live in the simulated cluster.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dra_driver.model.errors import DriverError
from dra_driver.simulator import objects
from dra_driver.simulator.claim_manager import ClaimManager, Grant, ManagerError, claim_names
from dra_driver.simulator.kinds import EVENTS, PODS, RESOURCE_SLICES
from dra_driver.simulator.plugin_watcher import PluginWatcher
from dra_driver.simulator.runtime import CdiRegistry, Edits, InjectionError
from dra_driver.simulator.statuses import StatusError
from dra_driver.simulator.store import Store

log = logging.getLogger(__name__)

Json = dict[str, Any]
T = TypeVar("T")

WIPE_SECONDS = 30.0
"""How long slices outlive the last connection of their driver."""

_FIRST_RETRY = 0.2
_LONGEST_RETRY = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that a container got. ``gpu_uuid`` is what the published ResourceSlice says, '' if nothing."""

    claim: str
    request: str
    pool: str
    device: str
    gpu_uuid: str
    cdi_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container as a runtime would have started it."""

    namespace: str
    pod: str
    pod_uid: str
    name: str
    devices: tuple[Device, ...]
    edits: Edits


@dataclass(slots=True)
class _PodState:
    containers: tuple[Container, ...] | None = None
    retry_at: float = 0.0
    delay: float = field(default=_FIRST_RETRY)


class Kubelet:
    """One node. Pods bound to it are started, retried and ended in a thread of its own."""

    def __init__(
        self,
        store: Store,
        node_name: str,
        registry: Path,
        cdi_directories: Sequence[Path],
        *,
        wipe_seconds: float = WIPE_SECONDS,
    ) -> None:
        """registry: the ``plugins_registry`` directory. cdi_directories: where the runtime looks for specs."""
        self.plugins = PluginWatcher(registry)
        self.claims = ClaimManager(store, self.plugins)
        self.cdi = CdiRegistry(cdi_directories)
        self._store = store
        self._node_name = node_name
        self._wipe_seconds = wipe_seconds
        self._pods: dict[str, _PodState] = {}
        self._gone_since: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="kubelet", daemon=True)

    def start(self) -> "Kubelet":
        """Remove what an earlier life published, as the kubelet does, and start working."""
        for resource_slice in self._slices():
            self._store.delete(RESOURCE_SLICES, resource_slice["metadata"]["name"])
        self.plugins.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop working; pods and claims stay as they are. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.plugins.stop()

    def containers(self, pod: str, namespace: str = "default") -> tuple[Container, ...]:
        """The running containers of a pod, () when it does not run."""
        return tuple(
            container
            for state in list(self._pods.values())
            for container in state.containers or ()
            if (container.namespace, container.pod) == (namespace, pod)
        )

    def wait_for(self, look: Callable[[], T], timeout: float) -> T | None:
        """Wait until ``look`` gives something true, asked after each write to the cluster."""
        return self._store.wait_for(look, timeout)

    # The pod loop.

    def _loop(self) -> None:
        while not self._stopping.is_set():
            version = self._store.version
            try:
                self._sync()
            except StatusError as error:
                log.info("the cluster changed underneath the kubelet, looking again: %s", error)
            self._store.wait_change(version, _FIRST_RETRY / 2)

    def _sync(self) -> None:
        pods = self._store.find(PODS, fields=f"spec.nodeName={self._node_name}")
        for pod in pods:
            self._sync_pod(pod)
        alive = {pod["metadata"]["uid"] for pod in pods}
        for uid in self.claims.referenced_pods() - alive:
            self._forget(uid)
        for uid in [uid for uid in self._pods if uid not in alive]:
            del self._pods[uid]
        self._wipe_slices()

    def _sync_pod(self, pod: Json) -> None:
        state = self._pods.setdefault(pod["metadata"]["uid"], _PodState())
        if time.monotonic() < state.retry_at:
            return
        try:
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod, state)
            elif state.containers is None:
                self._begin(pod, state)
        except DriverError as error:
            state.retry_at = time.monotonic() + state.delay
            state.delay = min(state.delay * 2, _LONGEST_RETRY)
            log.info("pod %s is retried: %s", pod["metadata"]["name"], error)

    def _begin(self, pod: Json, state: _PodState) -> None:
        """Prepare, then start all containers."""
        try:
            self.claims.prepare(pod)
        except ManagerError as error:
            self._event(pod, "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {error}")
            raise
        try:
            started = tuple(self._container(pod, container) for container in pod["spec"]["containers"])
        except InjectionError as error:
            self._event(pod, "Failed", f"Error: failed to create containerd container: {error}")
            raise
        state.containers, state.delay = started, _FIRST_RETRY
        statuses = [{"name": c.name, "ready": True, "state": {"running": {}}} for c in started]
        self._set_status(pod, {"phase": "Running", "containerStatuses": statuses})

    def _end(self, pod: Json, state: _PodState) -> None:
        """Stop the containers, unprepare, and only then let the pod go."""
        state.containers = None
        metadata = pod["metadata"]
        self.claims.unprepare(metadata["uid"])
        if metadata.get("deletionGracePeriodSeconds") != 0:
            self._set_status(pod, {"phase": "Succeeded", "containerStatuses": []})
        self._store.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"], grace_seconds=0)

    def _forget(self, pod_uid: str) -> None:
        """A pod that vanished without being ended: force-deleted."""
        try:
            self.claims.unprepare(pod_uid)
        except ManagerError as error:
            log.info("claims of the vanished pod %s are retried: %s", pod_uid, error)

    def _container(self, pod: Json, container: Json) -> Container:
        metadata = pod["metadata"]
        devices = tuple(self._devices(pod, container))
        return Container(
            namespace=metadata["namespace"],
            pod=metadata["name"],
            pod_uid=metadata["uid"],
            name=container["name"],
            devices=devices,
            edits=self.cdi.inject(cdi_id for device in devices for cdi_id in device.cdi_ids),
        )

    def _devices(self, pod: Json, container: Json) -> list[Device]:
        by_entry = claim_names(pod)
        found: list[Device] = []
        for wanted in (container.get("resources") or {}).get("claims") or []:
            claim, request = by_entry[wanted["name"]], wanted.get("request", "")
            for grant in self.claims.grants(pod["metadata"]["namespace"], claim, request):
                found.append(
                    Device(
                        claim=claim,
                        request=request or ",".join(grant.requests),
                        pool=grant.pool,
                        device=grant.device,
                        gpu_uuid=self._uuid(grant),
                        cdi_ids=grant.cdi_ids,
                    )
                )
        return found

    # The cluster.

    def _slices(self) -> list[Json]:
        return self._store.find(RESOURCE_SLICES, fields=f"spec.nodeName={self._node_name}")

    def _uuid(self, grant: Grant) -> str:
        """UUID of a device in the newest generation of its pool."""
        slices = [s["spec"] for s in self._slices() if s["spec"]["driver"] == grant.driver]
        pool = [spec for spec in slices if spec["pool"]["name"] == grant.pool]
        newest = max((spec["pool"].get("generation", 0) for spec in pool), default=0)
        for spec in pool:
            for device in spec.get("devices") or []:
                if spec["pool"].get("generation", 0) == newest and device["name"] == grant.device:
                    uuid: str = (device.get("attributes") or {}).get("uuid", {}).get("string", "")
                    return uuid
        return ""

    def _wipe_slices(self) -> None:
        """Remove the slices of drivers that have been away for too long."""
        now = time.monotonic()
        for resource_slice in self._slices():
            driver = resource_slice["spec"]["driver"]
            if self.plugins.connected(driver):
                self._gone_since.pop(driver, None)
            elif now - self._gone_since.setdefault(driver, now) >= self._wipe_seconds:
                log.info("DRA driver %s has been away for %g s: removing its slices", driver, self._wipe_seconds)
                self._store.delete(RESOURCE_SLICES, resource_slice["metadata"]["name"])

    def _set_status(self, pod: Json, status: Json) -> None:
        metadata = pod["metadata"]
        patch = {"metadata": {"name": metadata["name"]}, "status": status}
        self._store.patch(PODS, metadata["name"], patch, metadata["namespace"], status=True)

    def _event(self, pod: Json, reason: str, message: str) -> None:
        """A Warning about a pod; a repeated one is counted."""
        metadata, now = pod["metadata"], objects.now()
        selector = f"involvedObject.uid={metadata['uid']},reason={reason}"
        for known in self._store.find(EVENTS, metadata["namespace"], fields=selector):
            if known["message"] == message:
                patch = {"count": known["count"] + 1, "lastTimestamp": now}
                self._store.patch(EVENTS, known["metadata"]["name"], patch, metadata["namespace"])
                return
        event = {
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet", "host": self._node_name},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node_name,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._store.create(EVENTS, event, metadata["namespace"])
