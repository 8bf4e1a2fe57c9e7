"""How the devices of a node are, as the kubelet is told. Frozen values, no I/O."""

from dataclasses import dataclass
from enum import Enum


class Health(Enum):
    """The kubelet's HealthStatus, with its numbers."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """One device of a pool. ``message`` is for who looks at a pod that has it: what is wrong and what to do."""

    pool: str
    device: str
    health: Health
    message: str = ""
