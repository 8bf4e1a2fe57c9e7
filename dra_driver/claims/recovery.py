"""What happens to the state at start.

Open the database (a damaged one is set aside, never overwritten), compare the boot id (after a reboot
nothing that was set on a GPU is assumed), and hold the CDI files of claims against the records: a file without a
record is a claim that was forgotten, so it is taken over if it can be proved, and removed if not.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dra_driver.claims.allocation import read_allocation
from dra_driver.claims.lifecycle import Edges
from dra_driver.claims.planning import Choice, choose, plan_daemons
from dra_driver.claims.store import Store
from dra_driver.model.claims import AllocatedDevice, Allocation, ClaimRef
from dra_driver.model.devices import Device
from dra_driver.model.errors import (
    ApiError,
    BadConfig,
    CdiError,
    DriverError,
    DriverNotReady,
    NotAllocated,
    StateError,
    UnknownDevice,
)
from dra_driver.model.plan import Plan, PreparedDevice, StartMpsDaemon
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.ports import CdiSpecs, EventSink, Json
from dra_driver.sharing.memory_limits import NO_EVEN_PARTS
from dra_driver.sharing.strategy import Strategies
from dra_driver_api.names import cdi_device_id

log = logging.getLogger(__name__)

Adopt = Callable[[ClaimRecord], bool]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_FACT = "boot_id"


def open_store(path: Path, events: EventSink) -> Store:
    """Open the state database; a damaged or foreign one is set aside under another name, with a Warning event.

    Raises StateError when the directory cannot be written.
    """
    try:
        return _open_verified(path)
    except StateError as error:
        if not path.exists() or not os.access(path.parent, os.W_OK) or not _is_damage(error):
            raise
        aside = _set_aside(path)
        message = f"{error}; it was set aside as {aside} and what can be proved is rebuilt from CDI files and claims"
        log.error("%s", message)
        events.warning("StateDatabaseDamaged", message)
        return _open_verified(path)


def _open_verified(path: Path) -> Store:
    if path.exists() and path.stat().st_size == 0:
        raise StateError(f"state database {path} is damaged: it is empty")
    store = Store.open(path)
    try:
        store.verify()
    except BaseException:
        store.close()
        raise
    return store


def _is_damage(error: StateError) -> bool:
    return not any(word in str(error) for word in ("unable to open", "is locked", "disk is full"))


def _set_aside(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def check_boot(store: Store, cdi: CdiSpecs, boot_id_path: Path = BOOT_ID) -> None:
    """Drop all records and their CDI files if the machine was rebooted since they were made.

    The kubelet prepares the claims of pods that start again. A boot id that cannot be read keeps the records.
    """
    try:
        current = boot_id_path.read_text().strip()
    except OSError as error:
        log.warning("boot id cannot be read (%s): prepared claims are kept", error)
        return
    known = store.fact(_BOOT_FACT)
    if known is not None and known != current:
        dropped = list(store.records())
        log.warning(
            "the node was rebooted: %d prepared claims and all that was set on GPUs are forgotten",
            len(dropped),
        )
        for record in dropped:
            try:
                cdi.remove(record.claim.uid)
            except CdiError as error:
                log.warning("claim %s of before the reboot: %s", record.claim, error)
        store.clear()
    if known != current:
        store.set_fact(_BOOT_FACT, current)


class Rebuild:
    """Takes over claims that have a CDI file and no record, or one that knows their UID alone."""

    def __init__(
        self, edges: Edges, pool: str, strategies: Strategies, adopt: Adopt, discard: Callable[[ClaimRef], bool]
    ) -> None:
        self._store = edges.store
        self._cdi = edges.cdi
        self._api = edges.api
        self._adopt = adopt
        self._discard = discard
        self._pool = pool
        self._strategies = strategies
        self._limit_terms = edges.limit_terms

    def run(self, devices: Mapping[str, Device]) -> None:
        """Give every CDI file of a claim a record, or remove the file.

        A file whose claim is allocated on this node becomes a completed record. With the API server down the
        devices are held in the name of the UID alone until the sweep learns more. A file that tells no device, or
        whose claim does not exist, is removed.
        """
        orphans = {uid: names for uid, names in self._cdi.written().items() if not self._is_known(uid)}
        if not orphans:
            return
        try:
            claims: dict[str, Json] | None = {c["metadata"]["uid"]: c for c in self._api.list_allocated()}
        except ApiError as error:
            log.warning("CDI files without record, and the API server does not say whose they are: %s", error)
            claims = None
        for uid, names in orphans.items():
            try:
                self._settle(uid, self._record(uid, names, claims, devices))
            except DriverError as error:
                # One file must not keep the node from serving.
                log.warning("CDI file of claim uid %s: %s", uid, error)

    def _is_known(self, uid: str) -> bool:
        record = self._store.get(uid)
        return record is not None and bool(record.claim.name)

    def _settle(self, uid: str, record: ClaimRecord | None) -> None:
        if record is None:
            if self._discard(ClaimRef("", "", uid)):
                log.warning("removed the CDI file of claim uid %s: no such claim is allocated on this node", uid)
        elif self._adopt(record):
            log.warning("claim %s had a CDI file and no record: taken over", record.claim)

    def _record(
        self, uid: str, names: Iterable[str], claims: Mapping[str, Json] | None, devices: Mapping[str, Device]
    ) -> ClaimRecord | None:
        if claims is None:
            plan = self._as_the_file_tells(uid, names, devices)
            claim = ClaimRef("", "", uid)
        else:
            found = claims.get(uid)
            if found is None:
                return None
            claim = ClaimRef(found["metadata"]["namespace"], found["metadata"]["name"], uid)
            plan = self._allocated(claim, found, names, devices)
        if not plan.devices:
            return None
        return ClaimRecord(claim=claim, state=ClaimState.COMPLETED, plan=plan, prepared_at=time.time())

    def _as_the_file_tells(self, uid: str, names: Iterable[str], devices: Mapping[str, Device]) -> Plan:
        return Plan(devices=tuple(_bare(uid, devices[name], self._pool) for name in names if name in devices))

    def _allocated(self, claim: ClaimRef, found: Json, names: Iterable[str], devices: Mapping[str, Device]) -> Plan:
        try:
            allocation = read_allocation(claim, found, self._pool)
        except (NotAllocated, UnknownDevice) as error:
            log.warning("claim %s is not taken over: %s", claim, error)
            return Plan()
        except BadConfig as error:
            log.warning("claim %s is taken over as its CDI file tells: %s", claim, error)
            return self._as_the_file_tells(claim.uid, names, devices)
        # Its containers have the limits that they started with, whatever the node can do now.
        here = tuple(replace(a, needs_enforced=False) for a in allocation.devices if a.device in devices)
        try:
            choices = self._choose(replace(allocation, devices=here), devices)
            daemons = plan_daemons(claim, choices, self._strategies)
        except DriverError as error:
            # Its containers may run all the same, say with a feature gate that was on then: hold the devices.
            log.warning("claim %s is taken over without its sharing config: %s", claim, error)
            return Plan(devices=tuple(_held(claim.uid, devices[allocated.device], allocated) for allocated in here))
        return Plan(
            devices=tuple(choice.prepared for choice in choices),
            steps=tuple(StartMpsDaemon(daemon=daemon) for daemon in daemons),
        )

    def _choose(self, allocation: Allocation, devices: Mapping[str, Device]) -> tuple[Choice, ...]:
        try:
            return choose(allocation, devices, self._strategies, self._limit_terms)
        except DriverNotReady as error:
            log.warning("claim %s is taken over without an even part of memory: %s", allocation.claim, error)
            return choose(allocation, devices, self._strategies, NO_EVEN_PARTS)


def _held(uid: str, device: Device, allocated: AllocatedDevice) -> PreparedDevice:
    """As ``_bare``, in the way that the claim has the device."""
    return replace(
        _bare(uid, device, allocated.pool),
        admin_access=allocated.admin_access,
        share_id=allocated.share_id,
        consumed_capacity=allocated.consumed_capacity,
    )


def _bare(uid: str, device: Device, pool: str) -> PreparedDevice:
    return PreparedDevice(
        requests=(),
        pool=pool,
        device=device.name,
        uuid=device.uuid,
        gpu_uuid=device.physical.uuid,
        cdi_ids=(cdi_device_id(uid, device.name),),
    )
