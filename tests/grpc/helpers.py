"""What the gRPC tests share: the test as kubelet, services to order, a recorder that remembers."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kubelet.device_health import DeviceHealthService, Look
from dra_driver.kubelet.server import Services
from dra_driver.kubelet.sockets import target
from dra_driver.model.claims import ClaimRef
from dra_driver.model.plan import PreparedDevice
from dra_driver_api.kubelet import (
    dra_pb2,
    dra_pb2_grpc,
    health_pb2,
    health_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)

CALL_SECONDS = 10

HealthStream = Any
"""An open NodeWatchResources: an iterator of messages and a grpc.Call at once."""


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Return as soon as the condition holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def prepared(device: str = "gpu-0", *requests: str, share_id: str | None = None) -> PreparedDevice:
    """A prepared device of node-a."""
    return PreparedDevice(
        requests=requests or ("gpu",),
        pool="node-a",
        device=device,
        uuid=f"GPU-{device}",
        gpu_uuid=f"GPU-{device}",
        cdi_ids=(f"k8s.gpu.nvidia.com/claim=uid-{device}",),
        share_id=share_id,
    )


class Service:
    """A claim service whose answer to a claim is set by UID: devices, an error, or something to call."""

    def __init__(self) -> None:
        self.on: dict[str, Sequence[PreparedDevice] | Exception | Callable[[], object]] = {}
        self.calls: list[tuple[str, ClaimRef]] = []

    def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        return self._answer("prepare", claim)

    def unprepare(self, claim: ClaimRef) -> None:
        self._answer("unprepare", claim)

    def _answer(self, what: str, claim: ClaimRef) -> Sequence[PreparedDevice]:
        self.calls.append((what, claim))
        answer = self.on.get(claim.uid, (prepared(),))
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer()
            return (prepared(),)
        return answer


def services(claims: Service, look: Look = lambda: None) -> Services:
    """What a driver offers; ``look`` gives the devices' health."""
    return Services(claims, DeviceHealthService(look))


class Remembering:
    """A recorder that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        self.errors: list[tuple[str, str]] = []

    def observe_call(self, operation: str, seconds: float) -> None:
        self.calls[operation] += 1

    def inflight(self, operation: str, change: int) -> None:
        self.now[operation] += change

    def prepare_error(self, kind: str) -> None:
        self.errors.append(("prepare", kind))

    def unprepare_error(self, kind: str) -> None:
        self.errors.append(("unprepare", kind))

    def prepared_devices(self, counts: Mapping[str, int]) -> None:
        raise AssertionError("the kubelet's side does not count devices")


def claim(uid: str = "uid-1", name: str = "claim-1", namespace: str = "default") -> dra_pb2.Claim:
    """A claim as the kubelet names it."""
    return dra_pb2.Claim(namespace=namespace, name=name, uid=uid)


def prepare(path: Path, *claims: dra_pb2.Claim) -> Mapping[str, dra_pb2.NodePrepareResourceResponse]:
    """NodePrepareResources over a connection of its own."""
    with grpc.insecure_channel(target(path)) as channel:
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
        return dra_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=CALL_SECONDS).claims


def unprepare(path: Path, *claims: dra_pb2.Claim) -> Mapping[str, dra_pb2.NodeUnprepareResourceResponse]:
    """NodeUnprepareResources over a connection of its own."""
    with grpc.insecure_channel(target(path)) as channel:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
        return dra_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=CALL_SECONDS).claims


def get_info(path: Path) -> registration_pb2.PluginInfo:
    """GetInfo over a connection of its own."""
    with grpc.insecure_channel(target(path)) as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        return stub.GetInfo(registration_pb2.InfoRequest(), timeout=CALL_SECONDS)


def notify(path: Path, error: str = "") -> None:
    """NotifyRegistrationStatus: registered when there is no error."""
    with grpc.insecure_channel(target(path)) as channel:
        status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        registration_pb2_grpc.RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=CALL_SECONDS)


def register(path: Path) -> registration_pb2.PluginInfo:
    """What the kubelet does with a socket that appears in its registry."""
    info = get_info(path)
    notify(path)
    return info


@contextmanager
def health_stream(path: Path) -> Iterator[HealthStream]:
    """NodeWatchResources over a connection of its own, which is closed at the end."""
    with grpc.insecure_channel(target(path), options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        stub = health_pb2_grpc.DRAResourceHealthStub(channel)
        stream = stub.NodeWatchResources(health_pb2.NodeWatchResourcesRequest(), timeout=60)
        yield stream  # which is cancelled when nobody holds it


def healths(stream: HealthStream) -> dict[str, str]:
    """Health of each device in the next message of a stream, by name."""
    return {d.device.device_name: health_pb2.HealthStatus.Name(d.health) for d in next(stream).devices}
