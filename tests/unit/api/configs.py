"""Raw opaque parameters for the tests of this directory."""

from typing import Any

API_VERSION = "resource.nvidia.com/v1beta1"


def raw(kind: str = "GpuConfig", /, **fields: Any) -> dict[str, Any]:
    """Parameters as a manifest has them."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def slicing(kind: str = "GpuConfig", /, **blocks: Any) -> dict[str, Any]:
    """Parameters that ask for time slicing."""
    return raw(kind, sharing={"strategy": "TimeSlicing", **blocks})


def mps(kind: str = "GpuConfig", /, **fields: Any) -> dict[str, Any]:
    """Parameters that ask for MPS with these settings."""
    return raw(kind, sharing={"strategy": "MPS", "mpsConfig": fields})
