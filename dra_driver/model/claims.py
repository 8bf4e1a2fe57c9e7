"""A ResourceClaim as the driver sees it: who it is, what was allocated, which opaque configs came along."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Name of a claim as the kubelet gives it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod that a claim is reserved for."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedDevice:
    """One entry of ``status.allocation.devices.results`` that belongs to this driver.

    consumed_capacity: capacity name -> Quantity string, empty unless the device is shared by capacity.
    device_class: name of the request's DeviceClass, '' if the claim does not say.
    needs_enforced: whether selectors ask for a device that enforces memory limits, as far as they have been read: the
    claim's own at once, its class's where it matters.
    """

    request: str
    pool: str
    device: str
    admin_access: bool = False
    share_id: str | None = None
    consumed_capacity: tuple[tuple[str, str], ...] = ()
    device_class: str = ""
    needs_enforced: bool = False


class ConfigSource(Enum):
    """``source`` of an allocated config; a class's config loses to a claim's."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueConfig:
    """One opaque config of this driver. An empty ``requests`` means all requests."""

    source: ConfigSource
    requests: tuple[str, ...]
    parameters: Mapping[str, Any] | str | bytes | None
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What of a claim concerns this driver, in the API's order."""

    claim: ClaimRef
    devices: tuple[AllocatedDevice, ...]
    configs: tuple[OpaqueConfig, ...]
