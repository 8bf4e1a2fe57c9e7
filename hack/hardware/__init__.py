"""The driver on real GPUs under a real Kubernetes, on a machine without a network: pack here, run there.

``python -m hack.hardware pack`` gathers programs, Python packages and the pods' root file system in a few archives;
``python -m hack.hardware run`` unpacks them on the machine with the GPUs, starts a cluster, and plays scenes with pods
that compute. Settings of the cards are only read: whatever differs at the end makes the run fail.
"""
