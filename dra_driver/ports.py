"""The seams: what the driver asks of hardware, cluster, disk and observers, as small protocols.

Implementations live in devices, cluster, cdi, claims and observe; hand-written fakes in tests/fakes. Errors named
here are those of ``dra_driver.model.errors``.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from dra_driver.model.claims import ClaimRef, PodRef
from dra_driver.model.devices import ComputeMode, Device, GpuProcess, Inventory
from dra_driver.model.mps import MpsDaemon, MpsFolders

Json = dict[str, Any]

NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})
"""No device's memory is limited."""

NO_DAEMONS: Final[Mapping[str, MpsFolders]] = MappingProxyType({})
"""No device is served by an MPS control daemon."""


class DeviceSource(Protocol):
    """Where the inventory comes from: NVML, or a scenario file."""

    def scan(self) -> Inventory:
        """Look at the node afresh. Raises DriverNotReady, DriverAbsent where no driver is installed or loaded."""

    def on_bus(self) -> tuple[str, ...] | None:
        """PCI addresses of the machine's GPUs, whether or not the driver has them; None when nobody can tell."""

    def close(self) -> None:
        """Let go of the driver. Idempotent."""


class GpuControl(Protocol):
    """Settings of one GPU, named by UUID. Every call has a time limit and raises a ControlError."""

    def compute_mode(self, gpu_uuid: str) -> ComputeMode:
        """Read the compute mode (a few µs)."""

    def set_compute_mode(self, gpu_uuid: str, mode: ComputeMode) -> None:
        """Set the compute mode through NVML."""

    def time_slice(self, gpu_uuid: str) -> int | None:
        """Read the time slice 0..3 with the driver's tool (slow), None when the tool cannot tell."""

    def set_time_slice(self, gpu_uuid: str, interval: int) -> None:
        """Set the time slice 0..3 with one run of the driver's ``nvidia-smi``."""

    def epoch(self) -> str:
        """A text that changes when the kernel driver is loaded anew or NVML was lost in between."""


class GpuMemory(Protocol):
    """What NVML says about the memory of one GPU, named by UUID. Calls have a time limit and raise a ControlError."""

    def check_memory_limits(self, gpu_uuid: str) -> None:
        """Read the limits of the root cgroup. Raises ControlUnsupported where driver or GPU does not know limits."""

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        """The processes that compute on it, as the host numbers them."""

    def epoch(self) -> str:
        """As in GpuControl: what was read holds for as long as this text."""


class MpsDaemons(Protocol):
    """MPS control daemons of this node. Calls raise MpsError, and ApiError where the API server has a part in it.

    Every call may be made again, after a kill at any point of it.
    """

    def check(self) -> None:
        """Raises MpsError, naming the path, when this node lacks what a daemon needs. Changes nothing."""

    def folders(self, daemon_id: str) -> MpsFolders:
        """Where clients meet a daemon, whether or not it is there."""

    def start(self, daemon: MpsDaemon) -> None:
        """Make its folders, mount its memory and have it started. Does not wait for it."""

    def wait(self, daemon_id: str, timeout_s: float) -> None:
        """Return when it serves, with its settings made. Raises MpsStarting when it may do so later."""

    def serves(self, daemon_id: str) -> bool:
        """Whether it serves now, as far as its folder tells. Costs next to nothing; never raises."""

    def session(self, daemon_id: str) -> str:
        """Which run of it serves now: another text after each start of the daemon, '' while it does not serve."""

    def stop(self, daemon_id: str, timeout_s: float) -> None:
        """End it (``quit`` first), wait until it is gone, take its folders away. One that is not there is success."""

    def present(self) -> Sequence[MpsDaemon]:
        """Daemons that left anything on this node: a folder, or a Deployment. What is not known of one is empty."""


class DeploymentApi(Protocol):
    """Deployments of the driver's own namespace, and their pods. All raise ApiError / ApiUnreachable."""

    @property
    def namespace(self) -> str:
        """Where they are."""

    def get(self, name: str) -> Json | None:
        """The Deployment, None when there is none."""

    def labelled(self, labels: Mapping[str, str]) -> Sequence[Json]:
        """The Deployments with all of these labels."""

    def create(self, deployment: Json) -> Json:
        """Create and return as stored. ApiError has status 409 when there is one of this name."""

    def delete(self, deployment: Json) -> None:
        """Delete with its UID as precondition; the object stays until its pods are gone. Missing is success."""

    def pods(self, labels: Mapping[str, str]) -> Sequence[Json]:
        """The pods with all of these labels."""


class ClaimReader(Protocol):
    """ResourceClaims in the API server."""

    def get(self, claim: ClaimRef) -> Json:
        """The ResourceClaim object. Raises ClaimNotFound, or ApiError / ApiUnreachable."""

    def list_allocated(self) -> list[Json]:
        """All claims of the cluster with an allocation for this driver. Raises ApiError."""


class ClassReader(Protocol):
    """DeviceClasses in the API server."""

    def get(self, name: str) -> Json | None:
        """The DeviceClass, as it was at most a minute ago; None for one that is gone or must not be read.

        Raises ApiError.
        """


class SliceStore(Protocol):
    """This node's ResourceSlices of this driver in the API server. All raise ApiError / ApiUnreachable."""

    def list(self) -> tuple[list[Json], str]:
        """The slices and the resourceVersion to watch from."""

    def watch(self, resource_version: str, timeout_seconds: float) -> Iterator[tuple[str, Json]]:
        """(event type, object) until the time is over or the server closes. HTTP 410 raises ApiError."""

    def create(self, resource_slice: Json) -> Json:
        """Create and return as stored."""

    def replace(self, resource_slice: Json) -> Json:
        """PUT with the resourceVersion in the object, return as stored."""

    def delete(self, resource_slice: Json) -> None:
        """Delete with the object's UID and resourceVersion as preconditions; missing is success."""


class NodeReader(Protocol):
    """The Node object."""

    def uid(self) -> str:
        """UID of this node's Node object. Raises ApiError."""


class EventSink(Protocol):
    """Kubernetes events about this node. Never raises: an event that cannot be written is logged."""

    def warning(self, reason: str, message: str) -> None:
        """Warning event on the Node."""

    def normal(self, reason: str, message: str) -> None:
        """Normal event on the Node."""


class PodEventSink(Protocol):
    """Kubernetes events about pods. Never raises, as EventSink."""

    def pod_warning(self, pod: PodRef, reason: str, message: str) -> None:
        """Warning event on a pod."""


class PlannedSpec(Protocol):
    """A CDI spec that was built and checked, ready to be written."""

    @property
    def claim_uid(self) -> str:
        """The claim it belongs to."""

    @property
    def text(self) -> str:
        """The file's content."""


class CdiSpecs(Protocol):
    """Transient CDI specs, one a claim."""

    def plan(
        self,
        claim_uid: str,
        devices: Sequence[Device],
        memory_limits: Mapping[str, int] = NO_LIMITS,
        daemons: Mapping[str, MpsFolders] = NO_DAEMONS,
    ) -> PlannedSpec:
        """Build and check; nothing is written. Raises CdiError naming the path that is missing.

        memory_limits: device -> bytes of GPU memory that the container's driver shall keep it to.
        daemons: device -> folders of the MPS control daemon that serves it.
        """

    def write(self, spec: PlannedSpec) -> None:
        """Write atomically. Raises CdiError."""

    def remove(self, claim_uid: str) -> None:
        """Remove; missing is success. Raises CdiError."""

    def exists(self, claim_uid: str) -> bool:
        """Whether the claim's file is there and not empty."""

    def holds(self, spec: PlannedSpec) -> bool:
        """Whether the claim's file has exactly the spec's text. Never raises."""

    def written(self) -> Mapping[str, tuple[str, ...]]:
        """Claim UID -> device names, read from the files that are there; unreadable ones map to ()."""


class Recorder(Protocol):
    """Where measurements go."""

    def observe_call(self, operation: str, seconds: float) -> None:
        """One claim done with success; operation is ``prepare`` or ``unprepare``."""

    def inflight(self, operation: str, change: int) -> None:
        """+1 when work on a claim begins, -1 when it ends."""

    def prepare_error(self, kind: str) -> None:
        """A claim could not be prepared; kind is ``DriverError.kind``."""

    def unprepare_error(self, kind: str) -> None:
        """A claim could not be unprepared."""

    def prepared_devices(self, counts: Mapping[str, int]) -> None:
        """Prepared devices by type (``gpu``, ``mig``)."""


class Readiness(Protocol):
    """Named conditions; the driver is ready when all of them hold."""

    def set(self, condition: str, ok: bool, message: str = "") -> None:
        """State a condition (``devices``, ``slices``, ``registration``, ``state``) and why it does not hold."""
