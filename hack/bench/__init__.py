"""Measures a DRA driver as the kubelet sees it: ``python -m hack.bench``, ``make bench``.

Load comes through the kubelet's protocol and any API server; of the driver's own code only the simulated node and
API server are used. Targets and figures are printed, never enforced.
"""
