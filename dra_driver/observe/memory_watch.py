"""Watches what claims use of a GPU's memory where no driver keeps them to their limits, and tells who uses too much.

It looks only while such claims are prepared, and once a minute whether there are any: another instance of the driver
may have prepared them, or recovery found them. A look costs one NVML call a GPU and reads a few files below /proc; the
API server is asked for a claim's pods only where the GPU's processes have more than the smallest budget on it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.model.claims import ClaimRef, PodRef
from dra_driver.model.errors import ApiError, ClaimNotFound, ControlError, DriverError
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.observe.process_pods import ProcessPods
from dra_driver.ports import ClaimReader, GpuMemory, PodEventSink
from dra_driver.sharing.memory_limits import MEBIBYTE, budgets, observed_budgets

log = logging.getLogger(__name__)

EVENT: Final = "GPUMemoryExceeded"
INTERVAL_S: Final = 10.0
IDLE_S: Final = 60.0
TELL_AGAIN_S: Final = 60.0
_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Budget:
    """What one claim may use of one GPU: bytes, None for no limit. watched: whether that is only observed."""

    claim: ClaimRef
    device: str
    limit: int | None
    watched: bool


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a look rests on. records: those of this node's claims, raising StateError."""

    records: Callable[[], Iterable[ClaimRecord]]
    memory: GpuMemory
    pods: ProcessPods
    claims: ClaimReader


class MemoryWatch:
    """One thread, which sleeps until ``wake`` while there is nothing to watch. exceeded: counts what was told.

    idle_s: how long it sleeps at most.
    """

    def __init__(
        self,
        sources: Sources,
        events: PodEventSink,
        exceeded: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
    ) -> None:
        self._sources = sources
        self._events = events
        self._exceeded = exceeded
        self._clock = clock
        self._idle_s = idle_s
        self._reserved: dict[str, tuple[PodRef, ...]] = {}
        self._strangers: dict[str, set[str]] = {}
        self._told_at: dict[str, float] = {}
        self._faults: dict[str, str] = {}
        self._began = False
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that must live for as long as the driver does."""
        return (self._thread,)

    def start(self) -> None:
        """Look at once, for claims that were prepared before."""
        self._thread.start()

    def wake(self) -> None:
        """There may be something to watch now."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread; a look that is going on is waited for a moment. Idempotent."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_GRACE_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                watching = self.look()
            except DriverError as error:
                log.warning("use of GPU memory is not known: %s", error)
                watching = True
            except Exception:
                log.exception("looking at the use of GPU memory failed; doing it again")
                watching = True
            if watching:
                self._stop.wait(INTERVAL_S)
            else:
                self._wake.wait(self._idle_s)

    def look(self) -> bool:
        """Look once; whether there is anything to watch. Raises StateError."""
        by_gpu = _budgets(self._sources.records())
        live = {budget.claim.uid for on_gpu in by_gpu.values() for budget in on_gpu}
        for known in (self._reserved, self._told_at):
            for uid in known.keys() - live:
                del known[uid]
        for uuid in self._strangers.keys() - by_gpu.keys():
            del self._strangers[uuid]
        if by_gpu and not self._began:
            self._began = True
            self._sources.pods.tell_if_blind()
        for gpu_uuid, on_gpu in by_gpu.items():
            self._look_at(gpu_uuid, on_gpu)
        return bool(by_gpu)

    def _look_at(self, gpu_uuid: str, on_gpu: list[_Budget]) -> None:
        used = self._used(gpu_uuid)
        watched = [(budget, budget.limit) for budget in on_gpu if budget.watched and budget.limit is not None]
        if sum(used.values()) <= min(limit for _, limit in watched):
            return
        self._learn_pods(gpu_uuid, on_gpu, used.keys())
        for budget, limit in watched:
            mine = [pod for pod in self._reserved.get(budget.claim.uid, ()) if pod.uid in used]
            amount = sum(used[pod.uid] for pod in mine)
            # What a pod uses cannot be told apart by its claims.
            others = [other.limit for other in on_gpu if other is not budget and self._shares_pod(other, mine)]
            if None not in others and amount > limit + sum(filter(None, others)):
                self._tell(budget, limit, max(mine, key=lambda pod: used[pod.uid]), amount)

    def _used(self, gpu_uuid: str) -> dict[str, int]:
        """Pod UID -> bytes of a GPU; processes of no pod are left out."""
        try:
            processes = self._sources.memory.processes(gpu_uuid)
        except ControlError as error:
            if self._faults.get(gpu_uuid) != str(error):
                self._faults[gpu_uuid] = str(error)
                log.warning("use of GPU memory cannot be watched: %s", error)
            return {}
        self._faults.pop(gpu_uuid, None)
        used: dict[str, int] = {}
        for process in processes:
            pod = self._sources.pods.pod_of(process.pid)
            if pod is not None and process.memory_bytes is not None:
                used[pod] = used.get(pod, 0) + process.memory_bytes
        return used

    def _learn_pods(self, gpu_uuid: str, on_gpu: Iterable[_Budget], users: Iterable[str]) -> None:
        """Read whose the claims are, unless each pod on the GPU is known as theirs or as that of nobody here."""
        claims = [budget.claim for budget in on_gpu]
        unknown = self._unknown(claims, users)
        if all(claim.uid in self._reserved for claim in claims) and unknown <= self._strangers.get(gpu_uuid, set()):
            return
        for claim in claims:
            try:
                self._reserved[claim.uid] = _reserved_for(self._sources.claims.get(claim))
            except ClaimNotFound:
                # It was deleted, or made anew, before the kubelet gave it back.
                self._reserved[claim.uid] = ()
            except ApiError as error:
                log.debug("the pods of claim %s are not known: %s", claim, error)
                return
        self._strangers[gpu_uuid] = self._unknown(claims, users)

    def _unknown(self, claims: Iterable[ClaimRef], users: Iterable[str]) -> set[str]:
        return set(users) - {pod.uid for claim in claims for pod in self._reserved.get(claim.uid, ())}

    def _shares_pod(self, budget: _Budget, pods: Iterable[PodRef]) -> bool:
        return not set(pods).isdisjoint(self._reserved.get(budget.claim.uid, ()))

    def _tell(self, budget: _Budget, limit: int, pod: PodRef, amount: int) -> None:
        now = self._clock()
        if now - self._told_at.get(budget.claim.uid, -TELL_AGAIN_S) < TELL_AGAIN_S:
            return
        self._told_at[budget.claim.uid] = now
        claim = f"{budget.claim.namespace}/{budget.claim.name}"
        self._events.pod_warning(
            pod,
            EVENT,
            f"claim {claim} uses {amount // MEBIBYTE} MiB of the memory of {budget.device} and may have "
            f"{limit // MEBIBYTE} MiB: nothing here stops it, and other pods on the GPU may find no memory. "
            "Have it use less, or ask for more in the claim's capacity.requests.memory",
        )
        self._exceeded()


def _budgets(records: Iterable[ClaimRecord]) -> Mapping[str, list[_Budget]]:
    """GPU UUID -> what claims may use of it, for GPUs on which any of that has to be watched."""
    found: dict[str, list[_Budget]] = {}
    for record in records:
        if record.state is not ClaimState.COMPLETED or not record.claim.name:
            continue
        uuids = {device.device: device.uuid for device in record.devices}
        watched = observed_budgets(record.devices)
        for device, limit in budgets(record.devices).items():
            found.setdefault(uuids[device], []).append(_Budget(record.claim, device, limit, device in watched))
    return {uuid: on_gpu for uuid, on_gpu in found.items() if any(budget.watched for budget in on_gpu)}


def _reserved_for(claim: Mapping[str, Any]) -> tuple[PodRef, ...]:
    """The pods in ``status.reservedFor``, which are in the claim's namespace."""
    namespace = str(claim["metadata"].get("namespace", ""))
    consumers = (claim.get("status") or {}).get("reservedFor") or ()
    return tuple(
        PodRef(namespace, str(each.get("name")), str(each.get("uid")))
        for each in consumers
        if each.get("resource") == "pods" and not each.get("apiGroup")
    )
