"""Records how kubelet, driver and API server talk: ``python -m hack.trace``.

``relay`` stands between the kubelet and a driver, on any node. ``story`` plays what docs/kubelet.md tells on a cluster
of hack/cluster, and joins the relay's record with the API server's audit log.
"""
