"""Hand-written stand-ins for what the claim lifecycle acts through: claims in the API, GPU settings, CDI files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import ComputeMode, Device
from dra_driver.model.errors import ApiError, ApiUnreachable, CdiError, ClaimNotFound, DriverError, MpsStarting
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.ports import NO_DAEMONS, NO_LIMITS, Json
from dra_driver_api.names import CDI_KIND


class FakeClaims:
    """ResourceClaims by UID; ``down`` makes every read fail, ``refusal`` is the server's answer to each ``get``."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.down = False
        self.refusal: ApiError | None = None
        self.reads = 0

    def add(self, claim: Json) -> ClaimRef:
        """Add or replace a claim object."""
        metadata = claim["metadata"]
        self.objects[metadata["uid"]] = claim
        return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])

    def get(self, claim: ClaimRef) -> Json:
        """As ApiClaims.get."""
        self.reads += 1
        if self.down:
            raise ApiUnreachable("connection refused")
        if self.refusal is not None:
            raise self.refusal
        if claim.uid not in self.objects:
            raise ClaimNotFound(f"claim {claim} not found")
        return self.objects[claim.uid]

    def list_allocated(self) -> list[Json]:
        """As ApiClaims.list_allocated."""
        if self.down:
            raise ApiUnreachable("connection refused")
        return [claim for claim in self.objects.values() if claim["status"].get("allocation")]


class FakeClasses:
    """DeviceClasses by name -> spec; ``error`` is raised by each read."""

    def __init__(self) -> None:
        self.specs: dict[str, Json] = {}
        self.error: ApiError | None = None
        self.reads: list[str] = []

    def get(self, name: str) -> Json | None:
        """As ClassReader."""
        self.reads.append(name)
        if self.error is not None:
            raise self.error
        return {"spec": self.specs[name]} if name in self.specs else None


@dataclass
class FakeControl:
    """GPU settings kept in dicts; ``calls`` is what was set, in order."""

    modes: dict[str, ComputeMode] = field(default_factory=dict)
    slices: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, str, object]] = field(default_factory=list)
    current_epoch: str = "epoch-1"
    fail_set_time_slice: Callable[[str, int], Exception | None] = lambda uuid, interval: None
    fail_set_compute_mode: Callable[[str], Exception | None] = lambda uuid: None
    reads: list[str] = field(default_factory=list)

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """As GpuControl."""
        self.reads.append(gpu_uuid)
        return self.modes.get(gpu_uuid, ComputeMode.DEFAULT)

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """As GpuControl."""
        self.calls.append(("compute_mode", gpu_uuid, mode))
        if error := self.fail_set_compute_mode(gpu_uuid):
            raise error
        self.modes[gpu_uuid] = mode

    def time_slice(self, gpu_uuid: str) -> int | None:
        """As GpuControl."""
        return self.slices.get(gpu_uuid)

    def set_time_slice(self, gpu_uuid: str, interval: int) -> None:
        """As GpuControl."""
        self.calls.append(("time_slice", gpu_uuid, interval))
        if error := self.fail_set_time_slice(gpu_uuid, interval):
            raise error
        self.slices[gpu_uuid] = interval

    def epoch(self) -> str:
        """As GpuControl."""
        return self.current_epoch

    @property
    def slices_set(self) -> list[object]:
        """The intervals that were set, in order."""
        return [value for what, _, value in self.calls if what == "time_slice"]


class FakeMpsDaemons:
    """Daemons in a dict; ``calls`` is what was asked for, in order.

    slow: they do not serve until ``ready`` names them. on_wait, on_stop: called by each wait and stop, before they end.
    fail_*: raised by the next such calls. runs: what a test counts up when a daemon was started anew by whoever
    launched it. looked_for: calls of ``present``.
    """

    def __init__(self) -> None:
        self.started: dict[str, MpsDaemon] = {}
        self.ready: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.slow = False
        self.runs: dict[str, int] = {}
        self.on_wait: Callable[[], None] = lambda: None
        self.on_stop: Callable[[], None] = lambda: None
        self.looked_for = 0
        self.fail_check: list[DriverError] = []
        self.fail_start: list[DriverError] = []
        self.fail_wait: list[DriverError] = []
        self.fail_stop: list[DriverError] = []

    def check(self) -> None:
        """As MpsDaemons."""
        if self.fail_check:
            raise self.fail_check.pop()

    def folders(self, daemon_id: str) -> MpsFolders:
        """As MpsDaemons."""
        return MpsFolders(pipe=f"/mps/{daemon_id}/pipe", shm=f"/mps/{daemon_id}/shm")

    def start(self, daemon: MpsDaemon) -> None:
        """As MpsDaemons."""
        self.calls.append(("start", daemon.id))
        if self.fail_start:
            raise self.fail_start.pop()
        self.started[daemon.id] = daemon

    def wait(self, daemon_id: str, timeout_s: float) -> None:
        """As MpsDaemons."""
        self.calls.append(("wait", daemon_id))
        self.on_wait()
        if self.fail_wait:
            raise self.fail_wait.pop()
        if self.slow and daemon_id not in self.ready:
            raise MpsStarting(f"MPS control daemon {daemon_id} does not serve yet: its image is being pulled")
        self.ready.add(daemon_id)

    def serves(self, daemon_id: str) -> bool:
        """As MpsDaemons."""
        return daemon_id in self.started and daemon_id in self.ready

    def session(self, daemon_id: str) -> str:
        """As MpsDaemons."""
        return f"run {self.runs.get(daemon_id, 0)}" if self.serves(daemon_id) else ""

    def stop(self, daemon_id: str, timeout_s: float) -> None:
        """As MpsDaemons."""
        self.calls.append(("stop", daemon_id))
        self.on_stop()
        if self.fail_stop:
            raise self.fail_stop.pop()
        self.started.pop(daemon_id, None)
        self.ready.discard(daemon_id)

    def present(self) -> Sequence[MpsDaemon]:
        """As MpsDaemons."""
        self.looked_for += 1
        return tuple(self.started.values())


@dataclass(frozen=True)
class FakeSpec:
    """A planned spec."""

    claim_uid: str
    text: str


class FakeCdi:
    """CDI files in a dict; ``fail_write`` and ``fail_plan`` make the next calls fail.

    limits: memory limits that were planned last, by claim. daemons: likewise folders of MPS control daemons.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, ...]] = {}
        self.fail_write = 0
        self.fail_plan = 0
        self.limits: dict[str, dict[str, int]] = {}
        self.daemons: dict[str, dict[str, MpsFolders]] = {}
        self._planned: dict[str, tuple[str, ...]] = {}

    def plan(
        self,
        claim_uid: str,
        devices: Sequence[Device],
        memory_limits: Mapping[str, int] = NO_LIMITS,
        daemons: Mapping[str, MpsFolders] = NO_DAEMONS,
    ) -> FakeSpec:
        """As CdiSpecs."""
        if self.fail_plan:
            self.fail_plan -= 1
            raise CdiError("/dev/nvidia0 is missing")
        self._planned[claim_uid] = tuple(device.name for device in devices)
        self.limits[claim_uid] = dict(memory_limits)
        self.daemons[claim_uid] = dict(daemons)
        return FakeSpec(claim_uid, f"{CDI_KIND} {claim_uid}")

    def write(self, spec: FakeSpec) -> None:
        """As CdiSpecs."""
        if self.fail_write:
            self.fail_write -= 1
            raise CdiError("no space left on device")
        self.files[spec.claim_uid] = self._planned[spec.claim_uid]

    def holds(self, spec: FakeSpec) -> bool:
        """As CdiSpecs."""
        return self.files.get(spec.claim_uid) == self._planned[spec.claim_uid]

    def remove(self, claim_uid: str) -> None:
        """As CdiSpecs."""
        self.files.pop(claim_uid, None)

    def exists(self, claim_uid: str) -> bool:
        """As CdiSpecs."""
        return claim_uid in self.files

    def written(self) -> Mapping[str, tuple[str, ...]]:
        """As CdiSpecs."""
        return dict(self.files)


@dataclass
class FakeEvents:
    """Events as (type, reason, message)."""

    events: list[tuple[str, str, str]] = field(default_factory=list)

    def warning(self, reason: str, message: str) -> None:
        """As EventSink."""
        self.events.append(("Warning", reason, message))

    def normal(self, reason: str, message: str) -> None:
        """As EventSink."""
        self.events.append(("Normal", reason, message))
