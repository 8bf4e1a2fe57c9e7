"""Plays the kubelet on a driver's sockets: registration, then one claim a call."""

import time
from pathlib import Path
from typing import Final

import grpc

from dra_driver_api import names
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, registration_pb2, registration_pb2_grpc
from hack.bench.errors import BenchError
from hack.bench.objects import Claim

CALL_S: Final = 60.0
"""Above the kubelet's own 45 s, so that a slow driver's answer is still seen."""


class Plugin:
    """The DRA service behind a socket. Safe for threads."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._stub = dra_pb2_grpc.DRAPluginStub(self._channel)

    def prepare(self, claim: Claim) -> str:
        """Prepare one claim. Returns why not, '' for success with at least one device."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=[_wire(claim)])
        try:
            answer = self._stub.NodePrepareResources(request, timeout=CALL_S).claims.get(claim.uid)
        except grpc.RpcError as error:
            return _reason(error)
        if answer is None:
            return "the answer has no entry for the claim"
        return answer.error or ("" if answer.devices else "the answer has no device")

    def unprepare(self, claim: Claim) -> str:
        """Unprepare one claim. Returns why not, '' for success."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_wire(claim)])
        try:
            answer = self._stub.NodeUnprepareResources(request, timeout=CALL_S).claims.get(claim.uid)
        except grpc.RpcError as error:
            return _reason(error)
        return "the answer has no entry for the claim" if answer is None else answer.error

    def empty_call(self) -> None:
        """A call without claims: what protocol and socket cost. Raises BenchError when it fails."""
        try:
            self._stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(), timeout=CALL_S)
        except grpc.RpcError as error:
            raise BenchError(f"the DRA socket does not answer: {_reason(error)}") from error

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def register(socket: Path, deadline: float) -> tuple[Path, float]:
    """Ask who is behind a registration socket and confirm. Returns the DRA socket and the time of the confirmation.

    deadline and time: ``time.monotonic`` values. Raises BenchError when it is no DRA driver, or not in time.
    """
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        try:
            seconds = max(0.1, deadline - time.monotonic())
            info = stub.GetInfo(registration_pb2.InfoRequest(), timeout=seconds, wait_for_ready=True)
            if info.type != names.PLUGIN_TYPE_DRA or names.DRA_SERVICE_V1 not in info.supported_versions:
                offered = ", ".join(info.supported_versions)
                raise BenchError(f"{socket} offers {info.type} {offered}, want {names.DRA_SERVICE_V1}")
            status = registration_pb2.RegistrationStatus(plugin_registered=True)
            stub.NotifyRegistrationStatus(status, timeout=seconds)
        except grpc.RpcError as error:
            raise BenchError(f"registration at {socket} failed: {_reason(error)}") from error
    return Path(info.endpoint), time.monotonic()


def _wire(claim: Claim) -> dra_pb2.Claim:
    return dra_pb2.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _reason(error: grpc.RpcError) -> str:
    call = error if isinstance(error, grpc.Call) else None
    return f"{call.code().name}: {call.details()}" if call else str(error)
