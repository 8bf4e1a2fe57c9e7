# Generated from dra_driver_api/kubelet/dra.proto by hack/codegen/stubs.py. DO NOT EDIT!
import grpc

from dra_driver_api.kubelet import dra_pb2

class DRAPluginStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    NodePrepareResources: grpc.UnaryUnaryMultiCallable[dra_pb2.NodePrepareResourcesRequest, dra_pb2.NodePrepareResourcesResponse]
    NodeUnprepareResources: grpc.UnaryUnaryMultiCallable[dra_pb2.NodeUnprepareResourcesRequest, dra_pb2.NodeUnprepareResourcesResponse]

class DRAPluginServicer:
    def NodePrepareResources(self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext) -> dra_pb2.NodePrepareResourcesResponse: ...
    def NodeUnprepareResources(self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext) -> dra_pb2.NodeUnprepareResourcesResponse: ...

def add_DRAPluginServicer_to_server(servicer: DRAPluginServicer, server: grpc.Server) -> None: ...
