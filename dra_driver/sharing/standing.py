"""What live claims mean for devices whose sharing was changed under them. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dra_driver.model.devices import Device, MigDevice
from dra_driver.model.plan import PreparedDevice
from dra_driver.model.records import ClaimRecord
from dra_driver.model.texts import listed
from dra_driver.sharing.shares import SHARES, WHOLE, ConsumableShares, consumed

_SHOWN = 3
_PLACE = re.compile(r"gpu-\d+-mig-.+-(\d+)")
"""Name of a MIG device, and the memory slice at which it begins."""
_SERVED = "; they are served on"


@dataclass(slots=True)
class _Held:
    """What live claims have of one device, their names by the way they have it.

    uncounted: claims that have a share and no number of shares, as from a time when the device was shared in another
    mode: the scheduler sees nothing of them in a number of shares.
    """

    device: str
    gpu_uuid: str
    whole: list[str] = field(default_factory=list)
    by_share: list[str] = field(default_factory=list)
    shares: int = 0
    uncounted: int = 0

    @property
    def claims(self) -> list[str]:
        """All of them, once each."""
        return [*self.whole, *(name for name in self.by_share if name not in self.whole)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """device name -> what is to be told of it.

    withheld: devices of which live claims have what the scheduler would give away again: they hold them in another way
    than they are to be shared now. exceeded: devices of which live claims have more shares than there are now; the
    scheduler counts those, so nothing more is placed there. lost: devices that live claims hold and that are none of
    the node's any more, as after another MIG layout was made; by UUID.
    """

    withheld: Mapping[str, str] = field(default_factory=dict)
    exceeded: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


def stand(
    devices: Iterable[Device],
    shares: Mapping[str, ConsumableShares],
    records: Iterable[ClaimRecord],
    others: Iterable[Device] = (),
) -> Standing:
    """Hold the claims of this node against how its devices are shared now. others: devices that are not offered."""
    offered, held = list(devices), _held(records)
    withheld: dict[str, str] = {}
    exceeded: dict[str, str] = {}
    for device in offered:
        now, found = shares.get(device.name, WHOLE), held.get(device.uuid)
        if why := _under_it(device, held) or (_otherwise(device, now, found) if found else ""):
            withheld[device.name] = f"device {device.name} {why}"
        elif found and now.count and found.shares > now.count:
            exceeded[device.name] = (
                f"device {device.name} has {now.count} shares now and live claims hold {found.shares}: nothing more "
                "is placed there until enough of them have left"
            )
    there = {device.uuid for device in (*offered, *others)}
    lost = {uuid: _gone(uuid, found) for uuid, found in held.items() if uuid not in there}
    return Standing(withheld=withheld, exceeded=exceeded, lost=lost)


def _gone(uuid: str, found: _Held) -> str:
    return (
        f"device {found.device} ({uuid}) is not on this node any more, and live claims "
        f"({listed(found.claims, _SHOWN)}) hold it: delete their pods, which cannot use it, so that they are allocated "
        "again"
    )


def _under_it(device: Device, held: Mapping[str, _Held]) -> str:
    """Why a device must wait that was made of what claims hold: a MIG device, or a card of a MIG device."""
    card = device.physical.uuid
    for uuid, other in held.items():
        if other.gpu_uuid != card or uuid == device.uuid:
            continue
        claims = listed(other.claims, _SHOWN)
        if card in (uuid, device.uuid):
            return (
                f"is of GPU {card}, of which live claims ({claims}) hold {other.device}: its MIG mode was changed "
                "under them, and it is not offered until they have left"
            )
        if isinstance(device, MigDevice) and _is_in_place_of(device, other.device):
            return (
                f"was made where {other.device} was, which live claims ({claims}) hold: their containers may have what "
                "opens it, and it is not offered until they have left"
            )
    return ""


def _is_in_place_of(device: MigDevice, former: str) -> bool:
    """Whether a device begins where one of another name began.

    NVIDIA's driver numbers GPU instances by size and place, and one of the same number has the same capability files. A
    device of the same name is not the scheduler's to give away again as long as the claim is there.
    """
    found = _PLACE.fullmatch(former)
    return found is not None and device.name != former and int(found[1]) == device.placement_start


def _otherwise(device: Device, now: ConsumableShares, found: _Held) -> str:
    """Why a device that is held in another way than it is to be shared must wait."""
    others = found.whole if now.shared else found.by_share
    if others:
        way, wanted = ("whole", f"shared ({now})") if now.shared else ("by shares", "whole")
        return (
            f"is to be {wanted} and is held {way} by live claims ({listed(others, _SHOWN)}): it is not offered until "
            f"they have left{_SERVED}"
        )
    # A device whose memory is not known is published without a number of shares, so nobody counts them anyway.
    if found.uncounted and now.count and found.shares >= now.count and device.memory_bytes:
        return (
            f"has {now.count} shares now and {found.shares} are taken, {found.uncounted} of them by claims of before "
            "there was a number of shares, which the scheduler does not count: it is not offered until enough of them "
            f"have left{_SERVED}"
        )
    return ""


def _held(records: Iterable[ClaimRecord]) -> dict[str, _Held]:
    """By UUID of the device. Admin access looks on and holds nothing."""
    found: dict[str, _Held] = {}
    for record in records:
        claim = f"{record.claim.namespace}/{record.claim.name}" if record.claim.name else record.claim.uid
        for device in record.devices:
            if device.admin_access:
                continue
            held = found.setdefault(device.uuid, _Held(device.device, device.gpu_uuid))
            way = held.by_share if device.share_id else held.whole
            if claim not in way:
                way.append(claim)
            held.shares += consumed_shares(device)
            held.uncounted += SHARES not in dict(device.consumed_capacity)
    return found


def consumed_shares(device: PreparedDevice) -> int:
    """Shares that a claim has of a device; 1 where the allocation does not say, or says what is no amount."""
    return consumed(device.consumed_capacity, SHARES, otherwise=1)
