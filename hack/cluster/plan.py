"""What a cluster is to be, as a value that can be kept and read again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hack.cluster import network, versions
from hack.cluster.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """kubernetes: its version. gates: on top of ``control_plane.gates``, for all components.

    apis: API versions to switch on, as ``resource.k8s.io/v1alpha3``, on top of what the gates need.
    """

    kubernetes: str = versions.KUBERNETES[0]
    nodes: int = 1
    gates: Mapping[str, bool] = field(default_factory=dict)
    apis: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises ClusterError."""
        versions.kubernetes(self.kubernetes)
        if not 1 <= self.nodes <= network.MOST_NODES:
            raise ClusterError(f"nodes: found {self.nodes}, want 1 to {network.MOST_NODES}")

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> "Plan":
        """From what ``dataclasses.asdict`` gave, through JSON. Raises TypeError or KeyError for anything else."""
        return cls(**{**kept, "apis": tuple(kept["apis"])})
