"""The kubelet's side: registration, the DRA v1 service, the devices' health, the gRPC health check.

No Kubernetes API, no GPU.
"""
