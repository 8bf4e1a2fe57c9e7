"""A DRA driver for the kubelet's tests: both sockets, answers to order, CDI specs with a harmless device node."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import yaml

from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, registration_pb2, registration_pb2_grpc

KIND = "k8s.gpu.nvidia.com/claim"
DRIVER = "gpu.nvidia.com"


class FakePlugin(dra_pb2_grpc.DRAPluginServicer, registration_pb2_grpc.RegistrationServicer):
    """devices: (device, requests) that every claim gets. errors: by claim name. calls: what was asked, in order."""

    def __init__(self, root: Path, *, endpoint: str = "dra.sock", kind: str = "DRAPlugin") -> None:
        self.registry, self.cdi = root / "registry", root / "cdi"
        for directory in (self.registry, self.cdi):
            directory.mkdir(exist_ok=True)
        self.endpoint = root / endpoint
        self.devices: list[tuple[str, tuple[str, ...]]] = [("gpu-0", ("gpu",))]
        self.errors: dict[str, str] = {}
        self.skip = False
        self.write_specs = True
        self.calls: list[tuple[str, str]] = []
        self.told: list[registration_pb2.RegistrationStatus] = []
        self.versions = ["v1.DRAPlugin"]
        self.name, self.kind = DRIVER, kind
        self._server: grpc.Server | None = None

    def start(self) -> "FakePlugin":
        """Listen on both sockets, over stale files of an earlier life."""
        server = grpc.server(ThreadPoolExecutor(2))
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self, server)
        registration_pb2_grpc.add_RegistrationServicer_to_server(self, server)
        for path in (self.endpoint, self.registration):
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{path}")
        server.start()
        self._server = server
        return self

    @property
    def registration(self) -> Path:
        return self.registry / f"{self.endpoint.stem}-reg.sock"

    def stop(self, leave_files: bool = False) -> None:
        if self._server is None:
            return
        self._server.stop(None).wait()
        self._server = None
        if not leave_files:
            self.registration.unlink(missing_ok=True)

    def GetInfo(  # noqa: N802
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type=self.kind, name=self.name, endpoint=str(self.endpoint), supported_versions=self.versions
        )

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        self.told.append(request)
        return registration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(  # noqa: N802
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        response = dra_pb2.NodePrepareResourcesResponse()
        for claim in () if self.skip else request.claims:
            self.calls.append(("prepare", claim.name))
            response.claims[claim.uid].CopyFrom(self._prepare(claim))
        return response

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self.calls.append(("unprepare", claim.name))
            response.claims[claim.uid].error = self.errors.get(claim.name, "")
            (self.cdi / f"{claim.uid}.yaml").unlink(missing_ok=True)
        return response

    def _prepare(self, claim: dra_pb2.Claim) -> dra_pb2.NodePrepareResourceResponse:
        if claim.name in self.errors:
            return dra_pb2.NodePrepareResourceResponse(error=self.errors[claim.name])
        if self.write_specs:
            edits = [
                {
                    "name": f"{claim.uid}-{d}",
                    "containerEdits": {"deviceNodes": [{"path": f"/dev/{d}", "hostPath": "/dev/null"}]},
                }
                for d, _ in self.devices
            ]
            spec = {"cdiVersion": "0.7.0", "kind": KIND, "devices": edits}
            (self.cdi / f"{claim.uid}.yaml").write_text(yaml.safe_dump(spec))
        return dra_pb2.NodePrepareResourceResponse(
            devices=[
                dra_pb2.Device(
                    request_names=requests,
                    pool_name="node-a",
                    device_name=device,
                    cdi_device_ids=[f"{KIND}={claim.uid}-{device}"],
                )
                for device, requests in self.devices
            ]
        )
