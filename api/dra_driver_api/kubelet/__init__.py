"""The kubelet's gRPC interfaces: the .proto files and what ``make stubs`` generates from them. Nothing by hand.

registration: how the kubelet finds a plugin. dra: preparing and unpreparing claims. health: health of devices.
Import the module that is needed (``from dra_driver_api.kubelet import dra_pb2``); this one imports none.
"""
