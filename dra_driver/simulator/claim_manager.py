"""The kubelet's DRA manager: which claims are prepared for which pods. No pod loop and no containers here.

Rules and wording: ``pkg/kubelet/cm/dra/manager.go`` of Kubernetes 1.36.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dra_driver.model.errors import DriverError
from dra_driver.simulator.kinds import RESOURCE_CLAIMS
from dra_driver.simulator.plugin_watcher import Plugin, PluginWatcher
from dra_driver.simulator.statuses import StatusError
from dra_driver.simulator.store import Store
from dra_driver_api.kubelet import dra_pb2

Json = dict[str, Any]
Key = tuple[str, str]


class ManagerError(DriverError):
    """Claims of a pod cannot be prepared or unprepared now; the text is what the kubelet puts into an event."""

    kind = "kubelet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One prepared device of a claim, as the driver answered it."""

    claim: str
    driver: str
    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None

    def serves(self, request: str) -> bool:
        """Whether a container that names ``request`` ('' = none) gets this device."""
        return not request or not self.requests or request in self.requests


@dataclass(slots=True)
class ClaimInfo:
    """What the kubelet remembers of a claim. ``grants`` is only ever added to; ``answers`` are the first ones."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    grants: list[Grant] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    prepared: bool = False

    @property
    def message(self) -> dra_pb2.Claim:
        """The claim as it is named to drivers."""
        return dra_pb2.Claim(namespace=self.namespace, name=self.name, uid=self.uid)


class ClaimManager:
    """Prepares claims once for all pods of the node. Calls of one manager are serialised."""

    def __init__(self, store: Store, watcher: PluginWatcher) -> None:
        self._store = store
        self._watcher = watcher
        self._claims: dict[Key, ClaimInfo] = {}
        self._lock = threading.RLock()

    def prepare(self, pod: Json) -> None:
        """Prepare what a pod claims and is not prepared yet. Raises ManagerError."""
        with self._lock:
            try:
                self._prepare(pod)
            except DriverError as error:
                raise ManagerError(f"prepare dynamic resources: {error}") from error

    def unprepare(self, pod_uid: str) -> None:
        """Let go of a pod's claims; unprepares those that no other pod uses. Raises ManagerError."""
        with self._lock:
            try:
                self._unprepare(pod_uid)
            except DriverError as error:
                raise ManagerError(f"unprepare dynamic resources: {error}") from error

    def grants(self, namespace: str, claim: str, request: str = "") -> list[Grant]:
        """The devices of a prepared claim that a container with this request gets."""
        with self._lock:
            info = self._claims.get((namespace, claim))
            return [grant for grant in info.grants if grant.serves(request)] if info else []

    def referenced_pods(self) -> set[str]:
        """UIDs of pods that hold claims."""
        with self._lock:
            return {uid for info in self._claims.values() for uid in info.pods}

    def first_answer(self, namespace: str, claim: str) -> bytes:
        """What the driver answered when a claim was prepared first, serialised; b'' for an unknown claim."""
        with self._lock:
            info = self._claims.get((namespace, claim))
            return next(iter(info.answers.values()), b"") if info else b""

    def ask_again(self, namespace: str, claim: str) -> bytes:
        """Call NodePrepareResources for a known claim once more, as after a restart of the kubelet.

        Returns the claim's answer serialised deterministically. Raises ManagerError and PluginError.
        """
        with self._lock:
            info = self._claims.get((namespace, claim))
            if info is None:
                raise ManagerError(f"ResourceClaim {claim} is not known to the kubelet")
            response = self._watcher.plugin(info.drivers[0]).prepare([info.message])
            if info.uid not in response.claims:
                raise ManagerError("NodePrepareResources skipped 1 ResourceClaims")
            return response.claims[info.uid].SerializeToString(deterministic=True)

    def forget_prepared(self) -> None:
        """What a restart of the kubelet does: references and devices are kept, nothing counts as prepared."""
        with self._lock:
            for info in self._claims.values():
                info.prepared = False

    def _prepare(self, pod: Json) -> None:
        wanted = [self._look_up(pod, name) for name in claim_names(pod).values() if name]
        plugins = {d: self._watcher.plugin(d) for info in wanted for d in info.drivers}
        pending: dict[str, ClaimInfo] = {}
        for info in wanted:
            known = self._claims.setdefault((info.namespace, info.name), info)
            if known.uid != info.uid:
                raise ManagerError(
                    f"old ResourceClaim with same name {info.name} and different UID {known.uid} still exists "
                    "(previous pod force-deleted?!)"
                )
            known.pods.add(pod["metadata"]["uid"])
            if not known.prepared:
                pending[known.uid] = known
        for driver, plugin in plugins.items():
            self._call_prepare(plugin, [info for info in pending.values() if driver in info.drivers])
        for info in pending.values():
            info.prepared = True

    def _look_up(self, pod: Json, name: str) -> ClaimInfo:
        """The claim in the API server, refused when the pod may not use it."""
        namespace, pod_uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        try:
            claim = self._store.get(RESOURCE_CLAIMS, name, namespace)
        except StatusError as error:
            raise ManagerError(f"fetch ResourceClaim {name}: {error}") from error
        uid, status = claim["metadata"]["uid"], claim.get("status") or {}
        if not any(consumer["uid"] == pod_uid for consumer in status.get("reservedFor") or []):
            pod_name = pod["metadata"]["name"]
            raise ManagerError(f"pod {pod_name} ({pod_uid}) is not allowed to use ResourceClaim {name} ({uid})")
        if not status.get("allocation"):
            raise ManagerError(f"ResourceClaim {name}: not allocated")
        results = status["allocation"]["devices"].get("results") or []
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        return ClaimInfo(namespace, name, uid, drivers)

    def _call_prepare(self, plugin: Plugin, claims: list[ClaimInfo]) -> None:
        if not claims:
            return
        response = plugin.prepare([info.message for info in claims])
        by_uid = {info.uid: info for info in claims}
        for uid, answer in sorted(response.claims.items()):
            info = by_uid.get(uid)
            if info is None:
                raise ManagerError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if answer.error:
                raise ManagerError(f"NodePrepareResources failed for ResourceClaim {info.name}: {answer.error}")
            info.answers.setdefault(plugin.driver, answer.SerializeToString(deterministic=True))
            info.grants.extend(_grants(info.name, plugin.driver, answer.devices))
        _check_complete("NodePrepareResources", len(claims), len(response.claims))

    def _unprepare(self, pod_uid: str) -> None:
        batches: dict[str, list[ClaimInfo]] = {}
        leaving: list[ClaimInfo] = []
        for info in [info for info in self._claims.values() if pod_uid in info.pods]:
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
                continue
            leaving.append(info)
            for driver in info.drivers:
                batches.setdefault(driver, []).append(info)
        for driver, claims in batches.items():
            self._call_unprepare(self._watcher.plugin(driver), claims)
        for info in leaving:
            del self._claims[(info.namespace, info.name)]

    def _call_unprepare(self, plugin: Plugin, claims: list[ClaimInfo]) -> None:
        response = plugin.unprepare([info.message for info in claims])
        by_uid = {info.uid: info for info in claims}
        for uid, answer in sorted(response.claims.items()):
            if uid not in by_uid:
                raise ManagerError(f"NodeUnprepareResources returned result for unknown claim UID {uid}")
            if answer.error:
                name = by_uid[uid].name
                raise ManagerError(f"NodeUnprepareResources failed for ResourceClaim {name}: {answer.error}")
        _check_complete("NodeUnprepareResources", len(claims), len(response.claims))


def claim_names(pod: Json) -> dict[str, str]:
    """Name of the ResourceClaim behind each of a pod's ``spec.resourceClaims``, '' where none is needed.

    Raises ManagerError when the claim of a template has not been made yet.
    """
    statuses = {
        entry["name"]: entry.get("resourceClaimName", "")
        for entry in (pod.get("status") or {}).get("resourceClaimStatuses") or []
    }
    found: dict[str, str] = {}
    for entry in pod["spec"].get("resourceClaims") or []:
        if "resourceClaimName" in entry:
            found[entry["name"]] = entry["resourceClaimName"]
        elif entry["name"] in statuses:
            found[entry["name"]] = statuses[entry["name"]]
        else:
            pod_name = pod["metadata"]["name"]
            raise ManagerError(f'pod "{pod_name}": ResourceClaim of {entry["name"]} has not been created yet')
    return found


def _grants(claim: str, driver: str, devices: Iterable[dra_pb2.Device]) -> list[Grant]:
    return [
        Grant(
            claim=claim,
            driver=driver,
            requests=tuple(device.request_names),
            pool=device.pool_name,
            device=device.device_name,
            cdi_ids=tuple(device.cdi_device_ids),
            share_id=device.share_id if device.HasField("share_id") else None,
        )
        for device in devices
    ]


def _check_complete(call: str, asked: int, answered: int) -> None:
    if asked != answered:
        raise ManagerError(f"{call} skipped {asked - answered} ResourceClaims")
