"""A real Kubernetes on this machine, without a container engine: etcd, control plane, kubelets, containerd.

``Cluster`` in ``hack.cluster.cluster`` is for tests, ``python -m hack.cluster`` for people. Nothing here knows what
the driver does; only ``driver`` knows how it is started. Needs root, Go, and Debian's runc and CNI plugins.
"""
