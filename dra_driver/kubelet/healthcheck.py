"""The gRPC health check (``grpc.health.v1``) that probes use: asks both sockets as the kubelet would.

It tells whether the kubelet could be served, not whether the kubelet has registered us: that is readiness.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.kubelet.registration import SELF_CHECK
from dra_driver.kubelet.sockets import target
from dra_driver.model.errors import SettingError
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, registration_pb2, registration_pb2_grpc

log = logging.getLogger(__name__)

SERVICES: Final = ("", "liveness")
"""Service names that can be asked for."""

CALL_SECONDS: Final = 2.0
"""Time limit of each of the two calls; probes give up after 10 s."""

_WORKERS: Final = 2


class HealthServer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """``grpc.health.v1.Health`` over TCP; Watch and List are not offered."""

    def __init__(
        self,
        port: int,
        registration_socket: Path,
        dra_socket: Path,
        host: str = "[::]",
        aside: Callable[[], bool] = lambda: False,
    ) -> None:
        """port: negative is off, 0 any free one. host: as in URIs; '[::]' is all addresses, IPv4 included.

        aside: whether the sockets are left to another driver now; a restart would not help then.
        """
        self._address = f"{host}:{port}"
        self._sockets = (registration_socket, dra_socket)
        self._aside = aside
        self._executor: ThreadPoolExecutor | None = None
        self._server: grpc.Server | None = None
        self._wanted = port >= 0
        self._serving = True
        self.port: int | None = None

    def start(self) -> None:
        """Listen unless the port is negative. Raises SettingError when the port cannot be had."""
        if not self._wanted:
            return
        self._executor = ThreadPoolExecutor(_WORKERS, thread_name_prefix="health")
        # Without SO_REUSEPORT a port that is taken is an error and not a share of somebody else's probes.
        self._server = grpc.server(self._executor, options=(("grpc.so_reuseport", 0),))
        health_pb2_grpc.add_HealthServicer_to_server(self, self._server)
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            self.stop()
            raise SettingError(
                f"health check address {self._address} cannot be used, it may be taken: "
                "set --healthcheck-port to a free port, 0 for any, -1 for none"
            ) from error
        self._server.start()
        log.info("gRPC health check at port %d", self.port)

    def stop(self) -> None:
        """Stop listening. Idempotent."""
        if self._server is not None and self._executor is not None:
            self._server.stop(None).wait()
            self._executor.shutdown(wait=False)
        self._server = self._executor = self.port = None

    def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """SERVING when both sockets answer, else NOT_SERVING; a service that is unknown is NOT_FOUND."""
        if request.service not in SERVICES:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details(f"unknown service {request.service!r}: want '' or 'liveness'")
            return health_pb2.HealthCheckResponse()
        failure = self._failure()
        if bool(failure) == self._serving:
            self._serving = not failure
            log.log(logging.WARNING if failure else logging.INFO, "health check: %s", failure or "serving")
        status = health_pb2.HealthCheckResponse
        return status(status=status.NOT_SERVING if failure else status.SERVING)

    def _failure(self) -> str:
        """What does not answer, '' when all is well."""
        if self._aside():
            return ""
        registration_socket, dra_socket = self._sockets
        return _ask(registration_socket, _get_info) or _ask(dra_socket, _prepare_nothing)


def _get_info(channel: grpc.Channel) -> None:
    stub = registration_pb2_grpc.RegistrationStub(channel)
    stub.GetInfo(registration_pb2.InfoRequest(), timeout=CALL_SECONDS, metadata=((SELF_CHECK, "1"),))


def _prepare_nothing(channel: grpc.Channel) -> None:
    stub = dra_pb2_grpc.DRAPluginStub(channel)
    stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(), timeout=CALL_SECONDS)


def _ask(path: Path, call: Callable[[grpc.Channel], None]) -> str:
    # A new channel each time: a kept one would go on talking to a socket that nobody can find any more. And a
    # pool of its own, or gRPC would give it the old connection after all.
    with grpc.insecure_channel(target(path), options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        try:
            call(channel)
        except grpc.RpcError as error:
            return f"{path} does not answer: {error.code().name} {error.details()}"
    return ""
