# Generated from dra_driver_api/kubelet/registration.proto by hack/codegen/stubs.py. DO NOT EDIT!
import grpc

from dra_driver_api.kubelet import registration_pb2

class RegistrationStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    GetInfo: grpc.UnaryUnaryMultiCallable[registration_pb2.InfoRequest, registration_pb2.PluginInfo]
    NotifyRegistrationStatus: grpc.UnaryUnaryMultiCallable[registration_pb2.RegistrationStatus, registration_pb2.RegistrationStatusResponse]

class RegistrationServicer:
    def GetInfo(self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext) -> registration_pb2.PluginInfo: ...
    def NotifyRegistrationStatus(self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext) -> registration_pb2.RegistrationStatusResponse: ...

def add_RegistrationServicer_to_server(servicer: RegistrationServicer, server: grpc.Server) -> None: ...
