"""The gRPC messages byte by byte and the methods by name, since the kubelet knows nothing else of us."""

from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from dra_driver_api.kubelet import (
    dra_pb2,
    dra_pb2_grpc,
    health_pb2,
    health_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)


def text(number: int, value: str | bytes) -> bytes:
    """A length-delimited field."""
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(data)]) + data


def integer(number: int, value: int) -> bytes:
    """A varint field with a value below 128."""
    return bytes([number << 3, value])


CASES: dict[str, tuple[Message, bytes]] = {
    "PluginInfo": (
        registration_pb2.PluginInfo(
            type="DRAPlugin", name="gpu.nvidia.com", endpoint="/p/dra.sock", supported_versions=["v1.DRAPlugin", "x"]
        ),
        text(1, "DRAPlugin") + text(2, "gpu.nvidia.com") + text(3, "/p/dra.sock") + text(4, "v1.DRAPlugin")
        + text(4, "x"),
    ),
    "RegistrationStatus": (
        registration_pb2.RegistrationStatus(plugin_registered=True, error="no"),
        integer(1, 1) + text(2, "no"),
    ),
    "InfoRequest": (registration_pb2.InfoRequest(), b""),
    "RegistrationStatusResponse": (registration_pb2.RegistrationStatusResponse(), b""),
    "NodePrepareResourcesRequest": (
        dra_pb2.NodePrepareResourcesRequest(claims=[dra_pb2.Claim(namespace="ns", uid="u", name="n")]),
        text(1, text(1, "ns") + text(2, "u") + text(3, "n")),
    ),
    "NodePrepareResourcesResponse": (
        dra_pb2.NodePrepareResourcesResponse(
            claims={
                "u": dra_pb2.NodePrepareResourceResponse(
                    devices=[
                        dra_pb2.Device(
                            request_names=["a", "b"],
                            pool_name="node",
                            device_name="gpu-0",
                            cdi_device_ids=["k/c=u"],
                            share_id="s",
                        )
                    ],
                    error="e",
                )
            }
        ),
        text(
            1,
            text(1, "u")
            + text(
                2,
                text(
                    1,
                    text(1, "a") + text(1, "b") + text(2, "node") + text(3, "gpu-0") + text(4, "k/c=u")
                    + text(5, "s"),
                )
                + text(2, "e"),
            ),
        ),
    ),
    "NodeUnprepareResourcesRequest": (
        dra_pb2.NodeUnprepareResourcesRequest(claims=[dra_pb2.Claim(uid="u")]),
        text(1, text(2, "u")),
    ),
    "NodeUnprepareResourcesResponse": (
        dra_pb2.NodeUnprepareResourcesResponse(claims={"u": dra_pb2.NodeUnprepareResourceResponse(error="e")}),
        text(1, text(1, "u") + text(2, text(1, "e"))),
    ),
    "NodeWatchResourcesRequest": (health_pb2.NodeWatchResourcesRequest(), b""),
    "NodeWatchResourcesResponse": (
        health_pb2.NodeWatchResourcesResponse(
            devices=[
                health_pb2.DeviceHealth(
                    device=health_pb2.DeviceIdentifier(pool_name="p", device_name="d"),
                    health=health_pb2.UNHEALTHY,
                    last_updated_time=100,
                    health_check_timeout_seconds=30,
                    message="XID",
                )
            ]
        ),
        text(
            1, text(1, text(1, "p") + text(2, "d")) + integer(2, 2) + integer(3, 100) + integer(4, 30) + text(5, "XID")
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_message_is_written_as_the_kubelet_reads_it(name: str) -> None:
    message, wire = CASES[name]
    assert message.SerializeToString(deterministic=True) == wire


@pytest.mark.parametrize("name", CASES)
def test_message_is_read_from_the_kubelets_bytes(name: str) -> None:
    message, wire = CASES[name]
    assert type(message).FromString(wire) == message


def test_share_id_can_be_absent() -> None:
    assert not dra_pb2.Device(pool_name="p").HasField("share_id")


def test_health_status_has_the_kubelets_numbers() -> None:
    assert dict(health_pb2.HealthStatus.items()) == {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}


class Driver(
    registration_pb2_grpc.RegistrationServicer,
    dra_pb2_grpc.DRAPluginServicer,
    health_pb2_grpc.DRAResourceHealthServicer,
):
    """Answers every method with one recognisable message."""

    def GetInfo(  # noqa: N802
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(type="T")

    def NotifyRegistrationStatus(  # noqa: N802
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        return registration_pb2.RegistrationStatusResponse()

    def NodePrepareResources(  # noqa: N802
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        uids = (claim.uid for claim in request.claims)
        return dra_pb2.NodePrepareResourcesResponse(
            claims={uid: dra_pb2.NodePrepareResourceResponse(error="P") for uid in uids}
        )

    def NodeUnprepareResources(  # noqa: N802
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        uids = (claim.uid for claim in request.claims)
        return dra_pb2.NodeUnprepareResourcesResponse(
            claims={uid: dra_pb2.NodeUnprepareResourceResponse(error="U") for uid in uids}
        )

    def NodeWatchResources(  # noqa: N802
        self, request: health_pb2.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.NodeWatchResourcesResponse]:
        yield health_pb2.NodeWatchResourcesResponse()
        yield health_pb2.NodeWatchResourcesResponse(devices=[health_pb2.DeviceHealth(message="H")])


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    """A channel to a server of all three services that knows no types: bytes in, bytes out."""
    address = f"unix://{tmp_path}/s"
    server = grpc.server(futures.ThreadPoolExecutor(2))
    driver = Driver()
    registration_pb2_grpc.add_RegistrationServicer_to_server(driver, server)
    dra_pb2_grpc.add_DRAPluginServicer_to_server(driver, server)
    health_pb2_grpc.add_DRAResourceHealthServicer_to_server(driver, server)
    server.add_insecure_port(address)
    server.start()
    with grpc.insecure_channel(address) as open_channel:
        yield open_channel
    server.stop(None).wait(5)


CALLS = {
    "/pluginregistration.Registration/GetInfo": (b"", text(1, "T")),
    "/pluginregistration.Registration/NotifyRegistrationStatus": (integer(1, 1), b""),
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources": (
        text(1, text(2, "u")),
        text(1, text(1, "u") + text(2, text(2, "P"))),
    ),
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources": (
        text(1, text(2, "u")),
        text(1, text(1, "u") + text(2, text(1, "U"))),
    ),
}


@pytest.mark.parametrize("method", CALLS)
def test_method_answers_under_the_kubelets_name(channel: grpc.Channel, method: str) -> None:
    request, response = CALLS[method]
    same: Callable[[bytes], bytes] = bytes
    call = channel.unary_unary(method, request_serializer=same, response_deserializer=same)
    assert call(request, timeout=10) == response


def test_health_streams_under_the_kubelets_name(channel: grpc.Channel) -> None:
    method = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
    same: Callable[[bytes], bytes] = bytes
    call = channel.unary_stream(method, request_serializer=same, response_deserializer=same)
    assert list(call(b"", timeout=10)) == [b"", text(1, text(5, "H"))]


def test_stub_of_ours_reaches_the_method(channel: grpc.Channel) -> None:
    stub = dra_pb2_grpc.DRAPluginStub(channel)
    answer = stub.NodePrepareResources(dra_pb2.NodePrepareResourcesRequest(claims=[dra_pb2.Claim(uid="u")]), timeout=10)
    assert answer.claims["u"].error == "P"
