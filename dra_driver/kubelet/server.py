"""The DRA socket and its v1 service: turns the kubelet's calls into calls of a ClaimService and back.

One claim's failure is that claim's answer. What preparing means is the ClaimService's business.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import grpc

from dra_driver.kubelet.device_health import STREAMS, DeviceHealthService
from dra_driver.kubelet.lanes import CALLS, Lane
from dra_driver.kubelet.sockets import SocketServer
from dra_driver.kubelet.texts import NO_LINE, one_line
from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import ClaimError, DriverError, StateError
from dra_driver.model.plan import PreparedDevice
from dra_driver.ports import Recorder
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, health_pb2_grpc

log = logging.getLogger(__name__)

MAX_FIELD_CHARS: Final = 253
"""Longest name of an object in Kubernetes (a DNS subdomain); namespaces and UIDs are shorter still."""

_SPARE_WORKERS: Final = 16
"""For calls that wait in no lane: those without claims, which is how probes ask, and those that are refused."""

Answer = TypeVar("Answer")


class ClaimService(Protocol):
    """What the kubelet asks for, one claim at a time; called from many threads."""

    def prepare(self, claim: ClaimRef, /) -> Sequence[PreparedDevice]:
        """Make a claim's devices ready. Raises DriverError, whose text reaches the pod's event."""

    def unprepare(self, claim: ClaimRef, /) -> None:
        """Give a claim's devices back; an unknown claim is a success. Raises DriverError."""


@dataclass(frozen=True, slots=True)
class Services:
    """What the kubelet is offered over the DRA socket."""

    claims: ClaimService
    health: DeviceHealthService


class DraServer(dra_pb2_grpc.DRAPluginServicer):
    """Serves NodePrepareResources and NodeUnprepareResources (``k8s.io.kubelet.pkg.apis.dra.v1``), and health."""

    def __init__(self, socket_path: Path, services: Services, recorder: Recorder, workers: int = 16) -> None:
        """``workers``: claims prepared at the same time, and claims unprepared at the same time.

        Raises SettingError when the socket path is too long.
        """
        self._service = services.claims
        self._health = services.health
        self._recorder = recorder
        # Threads are made when a call finds none idle, so room for a rush of pods costs nothing until it comes.
        # Health streams have room of their own: however many are open, none is where a claim would be worked on.
        self._server = SocketServer(socket_path, self._add_to, 2 * CALLS + STREAMS + _SPARE_WORKERS)
        self._prepare = Lane("prepare", recorder.prepare_error, workers)
        self._unprepare = Lane("unprepare", recorder.unprepare_error, workers)

    def _add_to(self, server: grpc.Server) -> None:
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self, server)
        health_pb2_grpc.add_DRAResourceHealthServicer_to_server(self._health, server)

    @property
    def path(self) -> Path:
        """The DRA socket."""
        return self._server.path

    def start(self) -> None:
        """Listen, also anew after the file was lost. Makes the directory (mode 0700). Raises StateError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot make directory {self.path.parent}: {error.strerror}") from error
        self._server.start()

    def in_place(self) -> bool:
        """Whether the file at the path is the socket that is listened on."""
        return self._server.in_place()

    def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones ``grace`` seconds, remove the socket. Idempotent."""
        self._health.close()
        self._server.stop(grace)
        self._prepare.close()
        self._unprepare.close()

    def NodePrepareResources(  # noqa: N802
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """One entry for each claim UID of the request."""
        return dra_pb2.NodePrepareResourcesResponse(claims=self._each(self._prepare, request.claims, self._prepare_one))

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """One entry for each claim UID of the request."""
        answers = self._each(self._unprepare, request.claims, self._unprepare_one)
        return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)

    def _each(
        self,
        lane: Lane,
        claims: Iterable[dra_pb2.Claim],
        answer: Callable[[dra_pb2.Claim, DriverError | None], Answer],
    ) -> dict[str, Answer]:
        by_uid: dict[str, dra_pb2.Claim] = {}
        for claim in claims:
            by_uid.setdefault(claim.uid, claim)
        if not by_uid:
            return {}
        with lane.call() as admitted:
            if not admitted or len(by_uid) == 1:
                refusal = None if admitted else lane.full
                return {uid: answer(claim, refusal) for uid, claim in by_uid.items()}
            answers = lane.map(lambda claim: answer(claim, None), by_uid.values())
            return dict(zip(by_uid, answers, strict=True))

    def _prepare_one(self, claim: dra_pb2.Claim, refusal: DriverError | None) -> dra_pb2.NodePrepareResourceResponse:
        devices, error = self._attempt(
            self._prepare, claim, lambda ref: [_device(device) for device in self._service.prepare(ref)], refusal
        )
        return dra_pb2.NodePrepareResourceResponse(devices=devices or (), error=error)

    def _unprepare_one(
        self, claim: dra_pb2.Claim, refusal: DriverError | None
    ) -> dra_pb2.NodeUnprepareResourceResponse:
        _, error = self._attempt(self._unprepare, claim, self._service.unprepare, refusal)
        return dra_pb2.NodeUnprepareResourceResponse(error=error)

    def _attempt(
        self,
        lane: Lane,
        claim: dra_pb2.Claim,
        work: Callable[[ClaimRef], Answer],
        refusal: DriverError | None,
    ) -> tuple[Answer | None, str]:
        """(result, '') or (None, error text); counted either way. refusal: answered instead of work."""
        ref = ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        started = time.monotonic()
        self._recorder.inflight(lane.operation, 1)
        try:
            _check(ref)
            if refusal is not None:
                raise refusal
            with lane.place():
                result = work(ref)
        except DriverError as error:
            text = event_text(error)
            lane.count_error(error.kind)
            log.warning("claim %s: %s failed: %s", _shown(ref), lane.operation, text)
            return None, text
        except Exception as error:
            log.exception("claim %s: %s failed with an unexpected error", _shown(ref), lane.operation)
            lane.count_error(DriverError.kind)
            return None, event_text(error, f"internal error: {type(error).__name__}: ")
        finally:
            self._recorder.inflight(lane.operation, -1)
        seconds = time.monotonic() - started
        self._recorder.observe_call(lane.operation, seconds)
        log.debug("claim %s: %s took %.1f ms", _shown(ref), lane.operation, seconds * 1000)
        return result, ""


def _check(claim: ClaimRef) -> None:
    """The kubelet always names all three; an empty UID would otherwise reach file names, a huge one log lines."""
    for field in ("namespace", "name", "uid"):
        length = len(getattr(claim, field))
        if length > MAX_FIELD_CHARS:
            raise ClaimError(
                f"request names a claim whose {field} has {length} characters, at most {MAX_FIELD_CHARS} are "
                f"allowed: not a valid {field}"
            )
    for field in ("namespace", "name", "uid"):
        if not getattr(claim, field):
            raise ClaimError(
                f"request names a claim without {field}: namespace {claim.namespace!r}, name {claim.name!r}, "
                f"uid {claim.uid!r}"
            )


def _shown(claim: ClaimRef) -> str:
    """The claim for log lines: without line breaks and not longer than a real claim could be."""
    return str(
        ClaimRef(*(NO_LINE.sub(" ", text[:MAX_FIELD_CHARS]) for text in (claim.namespace, claim.name, claim.uid)))
    )


def _device(prepared: PreparedDevice) -> dra_pb2.Device:
    return dra_pb2.Device(
        # The kubelet matches containers by the request of the pod; a sub-request is the allocator's business.
        request_names=dict.fromkeys(name.partition("/")[0] for name in prepared.requests),
        pool_name=prepared.pool,
        device_name=prepared.device,
        cdi_device_ids=prepared.cdi_ids,
        share_id=prepared.share_id,
    )


def event_text(error: Exception, prefix: str = "") -> str:
    """An error and its notes as one short line, never empty."""
    parts = [str(error), *getattr(error, "__notes__", ())]
    return one_line(prefix + ("; ".join(part for part in parts if part) or type(error).__name__))
