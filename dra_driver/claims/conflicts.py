"""Whether a claim may have its devices while others hold theirs. Pure."""

import json
from collections.abc import Iterable, Sequence

from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import DeviceBusy
from dra_driver.model.plan import PreparedDevice
from dra_driver.model.records import ClaimState, Holder


def check_within_claim(claim: ClaimRef, devices: Sequence[PreparedDevice]) -> None:
    """Raises DeviceBusy when one claim has a device twice without admin access and without shares.

    Several shares of one device are fine if each is another one and they ask for the same sharing.
    """
    seen: dict[str, list[PreparedDevice]] = {}
    for device in devices:
        if device.admin_access:
            continue
        others = seen.setdefault(device.uuid, [])
        for other in others:
            _check_beside(claim, device, other)
        others.append(device)


def _check_beside(claim: ClaimRef, device: PreparedDevice, other: PreparedDevice) -> None:
    if not (device.share_id and other.share_id) or device.share_id == other.share_id:
        raise DeviceBusy(
            f"device {device.device} is allocated twice to claim {claim} "
            f"(requests {', '.join(other.requests)} and {', '.join(device.requests)})"
        )
    if device.sharing != other.sharing:
        raise DeviceBusy(
            f"two requests of claim {claim} ask for different sharing on device {device.device}: "
            f"{_words(other.sharing)} and {_words(device.sharing)}"
        )


def check_against_others(claim: ClaimRef, devices: Iterable[PreparedDevice], holders: Iterable[Holder]) -> None:
    """Raises DeviceBusy, naming the holder, when another claim holds a device or the card under it.

    Admin access on either side is no conflict. Two shares of one device may live together when their sharing
    config is the same. A full GPU and a MIG device of the same card exclude each other.
    """
    others = [holder for holder in holders if holder.claim.uid != claim.uid and not holder.device.admin_access]
    for device in devices:
        if device.admin_access:
            continue
        for holder in others:
            if holder.device.gpu_uuid == device.gpu_uuid:
                _check_pair(device, holder)


def check_clients(claim: ClaimRef, devices: Sequence[PreparedDevice], holders: Iterable[Holder], most: int) -> None:
    """Raises DeviceBusy when shares would give a physical GPU more than ``most`` clients.

    The scheduler counts shares where there is a number of them, and nothing where claims share memory only. Each hold
    on the card counts, of whichever of its MIG devices; admin access does not.
    """
    held = [h.device for h in holders if h.claim.uid != claim.uid and not h.device.admin_access]
    new = [device for device in devices if not device.admin_access]
    for uuid in dict.fromkeys(device.gpu_uuid for device in new if device.share_id):
        here = sum(device.gpu_uuid == uuid for device in held)
        wanted = sum(device.gpu_uuid == uuid for device in new)
        if here + wanted > most:
            names = ", ".join(dict.fromkeys(device.device for device in new if device.gpu_uuid == uuid))
            raise DeviceBusy(
                f"device {names} has no room for claim {claim}: it would be client number {here + wanted} of GPU "
                f"{uuid}, at most {most} are allowed (--max-clients-per-gpu={most}). Wait for pods on that GPU to end, "
                "or delete this one so that it is scheduled elsewhere"
            )


def _check_pair(device: PreparedDevice, holder: Holder) -> None:
    held = holder.device
    if held.uuid == device.uuid:
        if not (held.share_id and device.share_id):
            unfinished = _UNFINISHED.get(holder.state, "")
            raise DeviceBusy(
                f"requested device {device.device} is already allocated to different claim {holder.claim}{unfinished}"
                f"{_apart(device, held)}; wait for its pods to end, or share one ResourceClaim between the pods"
            )
        if held.sharing != device.sharing:
            raise DeviceBusy(
                f"requested device {device.device} has conflicting configuration with already prepared claim "
                f"{holder.claim}: it has {_words(held.sharing)}, this claim asks for {_words(device.sharing)}; give "
                "all claims on a GPU one config, such as that of their DeviceClass, or wait for the other's pods to end"
            )
    elif device.uuid == device.gpu_uuid or held.uuid == held.gpu_uuid:
        raise DeviceBusy(
            f"requested device {device.device} overlaps with {held.device} of the same GPU, "
            f"held by claim {holder.claim}; the MIG layout changed under a live claim"
        )


def _apart(device: PreparedDevice, held: PreparedDevice) -> str:
    """Why two ways of sharing cannot be on one card, where that is what the claims ask for."""
    ours, theirs = _strategy(device.sharing), _strategy(held.sharing)
    if not (ours and theirs) or ours == theirs:
        return ""
    return f", which has it with {theirs}, and this claim asks for {ours}: never both on one GPU"


def _strategy(sharing: str) -> str:
    return str(json.loads(sharing)["strategy"]) if sharing else ""


_UNFINISHED = {
    ClaimState.STARTED: " (its preparation is not finished)",
    ClaimState.ENDING: " (it is being unprepared)",
}


def _words(sharing: str) -> str:
    """A normalised config in short, such as ``TimeSlicing (interval Long)``."""
    if not sharing:
        return "no sharing config"
    config = json.loads(sharing)
    strategy = config.pop("strategy")
    details = ", ".join(f"{key} {_plain(value)}" for part in config.values() for key, value in part.items())
    return f"{strategy} ({details})" if details else strategy


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
