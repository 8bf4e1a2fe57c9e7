"""Another DRA driver of the same name, as NVIDIA's comes to a node: with the sockets that Kubernetes' Go helper makes.

It removes what is at its paths without asking, listens, and answers the kubelet. It prepares nothing.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

from dra_driver.kubelet.sockets import target
from dra_driver_api import names
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, registration_pb2, registration_pb2_grpc

VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""What NVIDIA's driver says that it serves."""


class OtherDraDriver(registration_pb2_grpc.RegistrationServicer, dra_pb2_grpc.DRAPluginServicer):
    """registry, plugins: the kubelet's folders as seen here. kubelet_plugins: the latter as the kubelet sees it."""

    def __init__(
        self,
        registry: Path,
        plugins: Path,
        *,
        name: str = names.DRIVER_NAME,
        pod_uid: str = "",
        kubelet_plugins: Path | None = None,
        versions: Sequence[str] = VERSIONS,
    ) -> None:
        registration, dra = names.socket_names(pod_uid)
        self.registration = registry / registration
        self.dra = plugins / names.DRIVER_NAME / dra
        self.name, self.versions = name, versions
        self.endpoint = str((kubelet_plugins or plugins) / names.DRIVER_NAME / dra)
        self.asked: list[str] = []
        """The kubelet's calls, and others'."""
        self.silent = threading.Event()
        """Set: calls are not answered until it is cleared."""
        self._servers: list[grpc.Server] = []

    def start(self) -> "OtherDraDriver":
        """Listen at both sockets, whoever has them."""
        for path, add in (
            (self.dra, dra_pb2_grpc.add_DRAPluginServicer_to_server),
            (self.registration, registration_pb2_grpc.add_RegistrationServicer_to_server),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            server = grpc.server(ThreadPoolExecutor(4))
            add(self, server)
            server.add_insecure_port(target(path))
            server.start()
            self._servers.append(server)
        return self

    def stop(self) -> None:
        """Take the sockets away, those that the kubelet finds first. Idempotent."""
        self.silent.clear()
        if self._servers:
            self.registration.unlink(missing_ok=True)
        while self._servers:
            self._servers.pop().stop(None).wait()

    def die(self) -> None:
        """End as a killed process does: the files stay, and nobody listens."""
        for path, server in zip((self.dra, self.registration), self._servers, strict=True):
            kept = path.with_name(f"kept-{path.name}")
            path.rename(kept)
            server.stop(None).wait()
            kept.rename(path)
        self._servers.clear()

    # What it is asked.

    def GetInfo(  # noqa: N802
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        """Who this is."""
        self.asked.append("GetInfo")
        while self.silent.is_set() and context.is_active():
            threading.Event().wait(0.01)
        return registration_pb2.PluginInfo(
            type=names.PLUGIN_TYPE_DRA, name=self.name, endpoint=self.endpoint, supported_versions=self.versions
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        """Nothing of interest."""
        self.asked.append("registered" if request.plugin_registered else f"refused: {request.error}")
        return registration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(  # noqa: N802
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Refuse each claim."""
        self.asked += [f"prepare {claim.name}" for claim in request.claims]
        refused = dra_pb2.NodePrepareResourceResponse(error="the other driver prepares nothing")
        return dra_pb2.NodePrepareResourcesResponse(claims={claim.uid: refused for claim in request.claims})

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """A claim that it does not know is a success."""
        self.asked += [f"unprepare {claim.name}" for claim in request.claims]
        done = dra_pb2.NodeUnprepareResourceResponse()
        return dra_pb2.NodeUnprepareResourcesResponse(claims={claim.uid: done for claim in request.claims})
