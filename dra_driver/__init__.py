"""A DRA kubelet plugin that shares NVIDIA GPUs on Kubernetes; the packages below are drawn in ARCHITECTURE.md."""

__version__ = "0.1.0"
