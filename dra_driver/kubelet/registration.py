"""The plugin registration service, through which the kubelet finds the driver. Nothing about claims.

The kubelet watches its registry directory: a socket that appears is asked for GetInfo and told the outcome
through NotifyRegistrationStatus (Kubernetes API ``pluginregistration``); one that vanishes is a plugin gone.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from dra_driver.kubelet.sockets import SocketServer
from dra_driver.ports import Readiness
from dra_driver_api import names
from dra_driver_api.kubelet import registration_pb2, registration_pb2_grpc

log = logging.getLogger(__name__)

CONDITION: Final = "registration"
"""Name of the readiness condition."""

SELF_CHECK: Final = "x-dra-driver-self-check"
"""Metadata key of calls that come from this driver's own health check, or another instance, not from the kubelet."""

INSTANCE: Final = "x-dra-driver-instance"
"""Metadata key by which an answer to such a call shows that it is this driver's and not another's of the same name."""

VERSIONS: Final = (names.DRA_SERVICE_V1, names.DRA_HEALTH_SERVICE)
"""Services at the DRA socket; the kubelet serves claims by the first that it knows."""

_WORKERS: Final = 2


class Registrar(registration_pb2_grpc.RegistrationServicer):
    """Answers the kubelet's plugin watcher and keeps what came of the registration."""

    def __init__(
        self,
        socket_path: Path,
        driver_name: str,
        endpoint: Path,
        versions: Sequence[str] = VERSIONS,
        readiness: Readiness | None = None,
    ) -> None:
        """endpoint: absolute path of the DRA socket. versions: services offered there.

        Raises SettingError when the socket path is too long.
        """
        self._driver_name = driver_name
        self._endpoint = endpoint
        self._versions = tuple(versions)
        self._readiness = readiness
        self._server = SocketServer(socket_path, self._add_to, _WORKERS)
        self._since = time.monotonic()
        self.registered = False
        self.asked = False
        self.last_error = ""

    def _add_to(self, server: grpc.Server) -> None:
        registration_pb2_grpc.add_RegistrationServicer_to_server(self, server)

    @property
    def path(self) -> Path:
        """The registration socket."""
        return self._server.path

    def start(self) -> None:
        """Listen, also anew after the file was lost; the kubelet has to register the driver again.

        Raises StateError.
        """
        self.registered = self.asked = False
        self._since = time.monotonic()
        # Before listening: the kubelet may be faster than the next line, and its word must stand.
        self._state(False, f"waiting for the kubelet to ask at {self.path}")
        self._server.start()
        log.info("registration socket %s is ready, DRA endpoint %s", self.path, self._endpoint)

    def in_place(self) -> bool:
        """Whether the kubelet can find the socket."""
        return self._server.in_place()

    def unasked_seconds(self) -> float:
        """How long the kubelet has left the socket unnoticed, 0 once it has called GetInfo."""
        return 0.0 if self.asked else time.monotonic() - self._since

    def stop(self, grace: float) -> None:
        """Take the socket away, which makes the kubelet deregister the driver. Idempotent."""
        self._server.remove_file()
        self._server.stop(grace)
        self.registered = False

    def GetInfo(  # noqa: N802
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        """Who we are and where the DRA service listens."""
        if any(key == SELF_CHECK for key, _ in context.invocation_metadata()):
            context.set_trailing_metadata(((INSTANCE, "1"),))
        else:
            self.asked = True
        return registration_pb2.PluginInfo(
            type=names.PLUGIN_TYPE_DRA,
            name=self._driver_name,
            endpoint=str(self._endpoint),
            supported_versions=self._versions,
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        """What the kubelet made of it; a refusal is answered with an error, as the Go helper library does."""
        self.registered = request.plugin_registered
        if self.registered:
            self.last_error = ""
            log.info("the kubelet has registered %s", self._driver_name)
            self._state(True)
        else:
            self.last_error = " ".join(request.error.split()) or "no reason given"
            message = f"the kubelet refused to register {self._driver_name}: {self.last_error}"
            log.error("%s", message)
            self._state(False, message)
            context.set_code(grpc.StatusCode.INTERNAL)
            context.set_details(message)
        return registration_pb2.RegistrationStatusResponse()

    def _state(self, ok: bool, message: str = "") -> None:
        if self._readiness is not None:
            self._readiness.set(CONDITION, ok, message)
