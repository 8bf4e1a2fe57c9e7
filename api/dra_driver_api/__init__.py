"""The driver's contracts, importable alone: names, the opaque config types, the kubelet's gRPC messages."""
