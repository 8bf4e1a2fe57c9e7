"""What live claims mean for devices whose sharing was changed under them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_driver.model.devices import Device
from dra_driver.model.plan import PreparedDevice
from dra_driver.model.records import ClaimRecord
from dra_driver.model.texts import listed
from dra_driver.sharing.shares import SHARES, WHOLE, ConsumableShares, consumed

_SHOWN = 3


@dataclass(slots=True)
class _Held:
    """What live claims have of one device, their names by the way they have it."""

    whole: list[str] = field(default_factory=list)
    by_share: list[str] = field(default_factory=list)
    shares: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """device name -> what is to be told of it.

    withheld: devices that live claims hold in another way than they are to be shared now: to offer them would give
    away what is taken. exceeded: devices of which live claims have more shares than there are now; the scheduler
    counts those, so nothing more is placed there.
    """

    withheld: Mapping[str, str]
    exceeded: Mapping[str, str]


def stand(
    devices: Iterable[Device], shares: Mapping[str, ConsumableShares], records: Iterable[ClaimRecord]
) -> Standing:
    """Hold the claims of this node against how its devices are shared now."""
    held = _held(records)
    withheld: dict[str, str] = {}
    exceeded: dict[str, str] = {}
    for device in devices:
        now, found = shares.get(device.name, WHOLE), held.get(device.uuid)
        if found is None:
            continue
        others = found.whole if now.shared else found.by_share
        if others:
            way, wanted = ("whole", f"shared ({now})") if now.shared else ("by shares", "whole")
            withheld[device.name] = (
                f"device {device.name} is to be {wanted} and is held {way} by live claims "
                f"({listed(others, _SHOWN)}): it is not offered until they have left; they are served on"
            )
        elif now.count and found.shares > now.count:
            exceeded[device.name] = (
                f"device {device.name} has {now.count} shares now and live claims hold {found.shares}: nothing more "
                "is placed there until enough of them have left"
            )
    return Standing(withheld=withheld, exceeded=exceeded)


def _held(records: Iterable[ClaimRecord]) -> dict[str, _Held]:
    """By UUID of the device. Admin access looks on and holds nothing."""
    found: dict[str, _Held] = {}
    for record in records:
        claim = f"{record.claim.namespace}/{record.claim.name}" if record.claim.name else record.claim.uid
        for device in record.devices:
            if device.admin_access:
                continue
            held = found.setdefault(device.uuid, _Held())
            way = held.by_share if device.share_id else held.whole
            if claim not in way:
                way.append(claim)
            held.shares += consumed_shares(device)
    return found


def consumed_shares(device: PreparedDevice) -> int:
    """Shares that a claim has of a device; 1 where the allocation does not say, or says what is no amount."""
    return consumed(device.consumed_capacity, SHARES, otherwise=1)
