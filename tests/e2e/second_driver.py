"""A second DRA driver on the node, as small as one can be: network ports, each an environment variable for containers.

The kubelet calls it in the test's process. Its pool has the node's name, as the GPUs' has, and its ports are named as
GPUs are, so that nothing but the driver's name tells results of the two apart.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, registration_pb2, registration_pb2_grpc
from dra_driver_api.names import DRA_SERVICE_V1, PLUGIN_TYPE_DRA
from hack.cluster.api import Api
from hack.cluster.driver import is_registered
from hack.cluster.node import Node
from tests.e2e.manifests import RESOURCE, Json
from tests.e2e.waiting import until

DRIVER: Final = "nic.example.com"
VARIABLE: Final = "GPU_NIC"
"""Set in containers to the port's name and MTU. Begins as the variables do that the test image tells of."""
PORTS: Final = ("gpu-3", "gpu-99")
"""Names of a GPU that the node has and of one that it has not."""
SLICE: Final = f"/apis/{RESOURCE}/resourceslices/{DRIVER}"

_REGISTRY: Final = "/var/lib/kubelet/plugins_registry"
_CALLS: Final = 8
_STOP_S: Final = 5.0

_CLASS: Final[Json] = {
    "apiVersion": RESOURCE,
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def request(port: str) -> Json:
    """A request of a claim, called ``nic``, for a port by name."""
    right_one = {"cel": {"expression": f'device.attributes["{DRIVER}"].port == "{port}"'}}
    return {"name": "nic", "exactly": {"deviceClassName": DRIVER, "selectors": [right_one]}}


def config(mtu: int) -> Json:
    """Config of a claim, for all its requests, of a kind that only this driver knows."""
    parameters = {"apiVersion": f"{DRIVER}/v1", "kind": "PortConfig", "mtu": mtu}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


class SecondDriver(dra_pb2_grpc.DRAPluginServicer, registration_pb2_grpc.RegistrationServicer):
    """The driver. With ``prepare_error`` or ``unprepare_error`` set it refuses all claims with that text."""

    def __init__(self, node: Node, api: Api) -> None:
        """api: of the administrator."""
        self.prepare_error = ""
        self.unprepare_error = ""
        self.refused: list[str] = []
        """Texts that it has refused claims with."""
        self._node = node
        self._api = api
        # The kubelet takes the socket that it finds there for the DRA service too.
        self._socket = node.machine.path(f"{_REGISTRY}/{DRIVER}-reg.sock")
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Publish the ports, listen and wait for the kubelet, if it does not run yet."""
        if self._server is not None:
            return
        self._api.apply_all([_CLASS, self._slice()])
        self._server = grpc.server(ThreadPoolExecutor(_CALLS))
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self, self._server)
        registration_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.start()
        until(self._registered, f"the kubelet to register {DRIVER}")

    def stop(self) -> None:
        """Listen no more, and wait until the kubelet knows it; what was published stays."""
        if self._server is not None:
            self._socket.unlink(missing_ok=True)
            self._server.stop(_STOP_S).wait()
            self._server = None
            until(lambda: not self._registered(), f"the kubelet to forget {DRIVER}")

    def heal(self) -> None:
        """Serve, and refuse nothing."""
        self.prepare_error = self.unprepare_error = ""
        self.refused.clear()
        self.start()

    def withdraw(self) -> None:
        """Take the ports out of the cluster."""
        for path in (SLICE, f"/apis/{RESOURCE}/deviceclasses/{DRIVER}"):
            if self._api.find(path):
                self._api.request("DELETE", path)

    def cdi_file(self, uid: str) -> str:
        """Name of the CDI file of a claim."""
        return f"{DRIVER}-port_{uid}.json"

    # The kubelet's calls.

    def GetInfo(self, request: registration_pb2.InfoRequest, context: object) -> registration_pb2.PluginInfo:  # noqa: N802
        """Who this is."""
        return registration_pb2.PluginInfo(type=PLUGIN_TYPE_DRA, name=DRIVER, supported_versions=[DRA_SERVICE_V1])

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: object
    ) -> registration_pb2.RegistrationStatusResponse:
        """Nothing; the pods show whether it was registered."""
        return registration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(  # noqa: N802
        self, request: dra_pb2.NodePrepareResourcesRequest, context: object
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Write a CDI file for each claim."""
        answers = {claim.uid: self._prepare(claim) for claim in request.claims}
        return dra_pb2.NodePrepareResourcesResponse(claims=answers)

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: object
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Remove them."""
        answers = {claim.uid: self._unprepare(claim) for claim in request.claims}
        return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)

    def _prepare(self, claim: dra_pb2.Claim) -> dra_pb2.NodePrepareResourceResponse:
        if self.prepare_error:
            self.refused.append(self.prepare_error)
            return dra_pb2.NodePrepareResourceResponse(error=self.prepare_error)
        path = f"/apis/{RESOURCE}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        allocation = self._api.get(path)["status"]["allocation"]["devices"]
        results = [each for each in allocation["results"] if each["driver"] == DRIVER]
        mtus = [
            each["opaque"]["parameters"]["mtu"]
            for each in allocation.get("config", ())
            if each["opaque"]["driver"] == DRIVER
        ]
        names = {each["device"]: f"{claim.uid}-{each['device']}" for each in results}
        self._write(claim.uid, {name: f"{VARIABLE}={port}:{mtus[-1]}" for port, name in names.items()})
        devices = [
            dra_pb2.Device(
                request_names=[each["request"]],
                pool_name=each["pool"],
                device_name=each["device"],
                cdi_device_ids=[f"{DRIVER}/port={names[each['device']]}"],
            )
            for each in results
        ]
        return dra_pb2.NodePrepareResourceResponse(devices=devices)

    def _unprepare(self, claim: dra_pb2.Claim) -> dra_pb2.NodeUnprepareResourceResponse:
        if self.unprepare_error:
            self.refused.append(self.unprepare_error)
            return dra_pb2.NodeUnprepareResourceResponse(error=self.unprepare_error)
        (self._node.cdi_directory / self.cdi_file(claim.uid)).unlink(missing_ok=True)
        return dra_pb2.NodeUnprepareResourceResponse()

    def _write(self, uid: str, variables: dict[str, str]) -> None:
        devices = [{"name": name, "containerEdits": {"env": [text]}} for name, text in variables.items()]
        spec: dict[str, Any] = {"cdiVersion": "0.6.0", "kind": f"{DRIVER}/port", "devices": devices}
        path = self._node.cdi_directory / self.cdi_file(uid)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(json.dumps(spec), encoding="utf-8")
        fresh.replace(path)

    def _registered(self) -> bool:
        metrics = self._api.raw("GET", f"/api/v1/nodes/{self._node.name}/proxy/metrics")
        return is_registered(metrics.decode("utf-8"), DRIVER)

    def _slice(self) -> Json:
        return {
            "apiVersion": RESOURCE,
            "kind": "ResourceSlice",
            "metadata": {"name": DRIVER},
            "spec": {
                "driver": DRIVER,
                "nodeName": self._node.name,
                "pool": {"name": self._node.name, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": port, "attributes": {"port": {"string": port}}} for port in PORTS],
            },
        }
