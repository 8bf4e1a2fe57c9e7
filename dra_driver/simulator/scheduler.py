"""Stand-in for scheduler and claim controller: claims from templates, allocation, binding, clean-up afterwards.

The choice of devices is in ``allocator``. Runs in a thread of its own, or pass by pass for tests.
"""

import logging
import threading
from typing import Any

from dra_driver.model.errors import DriverError
from dra_driver.scheduling import allocator
from dra_driver.scheduling.consumption import Usage
from dra_driver.scheduling.pools import candidates
from dra_driver.scheduling.requests import CannotAllocate
from dra_driver.simulator.claim_manager import claim_names
from dra_driver.simulator.kinds import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dra_driver.simulator.statuses import StatusError
from dra_driver.simulator.store import Store

log = logging.getLogger(__name__)

Json = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
_OVER = ("Succeeded", "Failed")


class Scheduler:
    """Works on the whole cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)

    def start(self) -> "Scheduler":
        """Work until stopped."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """One pass: let go of what nobody uses, make claims, place pending pods in the order they came."""
        pods = self._store.find(PODS)
        self._release_claims(pods)
        waiting = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        for pod in sorted(waiting, key=lambda p: int(p["metadata"]["resourceVersion"])):
            if not pod["spec"].get("nodeName"):
                self._place(self._with_claims(pod))

    def _loop(self) -> None:
        while not self._stopping.is_set():
            version = self._store.version
            try:
                self.look()
            except StatusError as error:
                log.info("the cluster changed underneath the scheduler, looking again: %s", error)
            self._store.wait_change(version, 0.2)

    # Claims from templates.

    def _with_claims(self, pod: Json) -> Json:
        """The pod after its templates were turned into claims."""
        metadata, known = pod["metadata"], (pod.get("status") or {}).get("resourceClaimStatuses") or []
        missing = [
            entry
            for entry in pod["spec"].get("resourceClaims") or []
            if "resourceClaimTemplateName" in entry and all(s["name"] != entry["name"] for s in known)
        ]
        if not missing:
            return pod
        try:
            made = [{"name": e["name"], "resourceClaimName": self._make_claim(pod, e)} for e in missing]
        except StatusError as error:
            self._explain(pod, f"waiting for ResourceClaimTemplate: {error}")
            return pod
        patch = {"status": {"resourceClaimStatuses": [*known, *made]}}
        return self._store.patch(PODS, metadata["name"], patch, metadata["namespace"], status=True)

    def _make_claim(self, pod: Json, entry: Json) -> str:
        metadata = pod["metadata"]
        template = self._store.get(CLAIM_TEMPLATES, entry["resourceClaimTemplateName"], metadata["namespace"])
        inner = template["spec"].get("metadata") or {}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        claim = {
            "metadata": {
                "generateName": f"{metadata['name']}-{entry['name']}-",
                "labels": inner.get("labels") or {},
                "annotations": {**(inner.get("annotations") or {}), POD_CLAIM_ANNOTATION: entry["name"]},
                "ownerReferences": [owner | {"controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"]["spec"],
        }
        name: str = self._store.create(RESOURCE_CLAIMS, claim, metadata["namespace"])["metadata"]["name"]
        return name

    # Placing pods.

    def _place(self, pod: Json) -> None:
        """Bind the pod to the first node on which all its claims fit, or say why it has to wait."""
        namespace = pod["metadata"]["namespace"]
        reasons: list[str] = []
        try:
            names = [name for name in claim_names(pod).values() if name]
            claims = [self._store.get(RESOURCE_CLAIMS, name, namespace) for name in names]
        except DriverError as error:
            self._explain(pod, str(error))
            return
        nodes = self._store.find(NODES)
        for node in nodes:
            try:
                self._allocate_on(node["metadata"]["name"], pod, claims)
            except CannotAllocate as reason:
                reasons.append(str(reason))
                continue
            self._bind(pod, node["metadata"]["name"])
            return
        listed = ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
        self._explain(pod, f"0/{len(nodes)} nodes are available: {listed or 'no node'}.")

    def _allocate_on(self, node: str, pod: Json, claims: list[Json]) -> None:
        """Allocate what is not allocated yet, all or nothing, and reserve all claims for the pod."""
        devices = candidates(self._store.find(RESOURCE_SLICES), node)
        classes = {c["metadata"]["name"]: c for c in self._store.find(DEVICE_CLASSES)}
        in_use = Usage.of(self._store.find(RESOURCE_CLAIMS))
        allocations: list[Json] = []
        for claim in claims:
            known = (claim.get("status") or {}).get("allocation")
            if known is not None and node not in _nodes_of(known):
                raise CannotAllocate(f"ResourceClaim {claim['metadata']['name']} is allocated on another node")
            chosen = known or allocator.allocate(claim, classes, devices, in_use, node)
            if known is None:
                in_use |= Usage.of([{"status": {"allocation": chosen}}])
            allocations.append(chosen)
        for claim, allocation in zip(claims, allocations, strict=True):
            self._reserve(claim, allocation, pod)

    def _reserve(self, claim: Json, allocation: Json, pod: Json) -> None:
        if FINALIZER not in claim["metadata"].get("finalizers", []):
            claim["metadata"].setdefault("finalizers", []).append(FINALIZER)
            claim = self._store.replace(RESOURCE_CLAIMS, claim)
        status = claim.get("status") or {}
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        others = [c for c in status.get("reservedFor") or [] if c["uid"] != consumer["uid"]]
        claim["status"] = {**status, "allocation": allocation, "reservedFor": [*others, consumer]}
        self._store.replace(RESOURCE_CLAIMS, claim, status=True)

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]
        self._store.patch(PODS, metadata["name"], {"spec": {"nodeName": node}}, metadata["namespace"])
        condition = {"type": "PodScheduled", "status": "True"}
        status = {"status": {"conditions": [condition]}}
        self._store.patch(PODS, metadata["name"], status, metadata["namespace"], status=True)

    def _explain(self, pod: Json, message: str) -> None:
        metadata = pod["metadata"]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        patch = {"status": {"conditions": [condition]}}
        self._store.patch(PODS, metadata["name"], patch, metadata["namespace"], status=True)

    # Letting go.

    def _release_claims(self, pods: list[Json]) -> None:
        """Drop reservations of pods that are over; deallocate, and delete what was made for one pod only."""
        using = {p["metadata"]["uid"] for p in pods if (p.get("status") or {}).get("phase") not in _OVER}
        for claim in self._store.find(RESOURCE_CLAIMS):
            self._release(claim, using)

    def _release(self, claim: Json, using: set[str]) -> None:
        metadata, reserved = claim["metadata"], (claim.get("status") or {}).get("reservedFor") or []
        left = [consumer for consumer in reserved if consumer["uid"] in using]
        if len(left) < len(reserved):
            status = {**claim["status"], "reservedFor": left} if left else {}
            claim = self._store.replace(RESOURCE_CLAIMS, {**claim, "status": status}, status=True)
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER in finalizers and not (claim.get("status") or {}).get("allocation"):
            finalizers.remove(FINALIZER)
            self._store.replace(RESOURCE_CLAIMS, claim)
        owners = {owner["uid"] for owner in metadata.get("ownerReferences") or [] if owner["kind"] == "Pod"}
        if owners and not owners & using and "deletionTimestamp" not in metadata:
            self._store.delete(RESOURCE_CLAIMS, metadata["name"], metadata["namespace"])


def _nodes_of(allocation: Json) -> list[str]:
    """The nodes that an allocation made here names."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    return [value for term in terms for field in term.get("matchFields") or [] for value in field["values"]]


def _age(pod: Json) -> tuple[str, str]:
    return (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])
