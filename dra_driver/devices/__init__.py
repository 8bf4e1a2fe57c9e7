"""What the node has and how a GPU is set: inventory, compute mode, time slice, for real and simulated nodes.

Nothing here knows of claims, Kubernetes objects or CDI. ``nvml`` alone may import pynvml.
"""
