# Generated from dra_driver_api/kubelet/health.proto by hack/codegen/stubs.py. DO NOT EDIT!
from collections.abc import Iterator

import grpc

from dra_driver_api.kubelet import health_pb2

class DRAResourceHealthStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    NodeWatchResources: grpc.UnaryStreamMultiCallable[health_pb2.NodeWatchResourcesRequest, health_pb2.NodeWatchResourcesResponse]

class DRAResourceHealthServicer:
    def NodeWatchResources(self, request: health_pb2.NodeWatchResourcesRequest, context: grpc.ServicerContext) -> Iterator[health_pb2.NodeWatchResourcesResponse]: ...

def add_DRAResourceHealthServicer_to_server(servicer: DRAResourceHealthServicer, server: grpc.Server) -> None: ...
