"""Builds the project's container images without a container engine: root file system, Python packages, OCI layout.

``python -m hack.image --help`` is the way in. Nothing here runs in a cluster or is imported by the driver.
"""
