"""What kube-scheduler decides about devices: which fit a request, which a claim gets. Pure functions over API objects.

Used by the simulated cluster to allocate, and by ``dra-driver explain`` to say why not.
Rules: ``k8s.io/dynamic-resource-allocation/structured``.
"""
