"""How the devices are that this node offers or that its claims hold. Pure."""

from collections.abc import Iterable

from dra_driver.model.devices import Inventory
from dra_driver.model.health import DeviceHealth, Health
from dra_driver.model.plan import PreparedDevice
from dra_driver.model.records import ClaimRecord


def device_health(
    pool: str, inventory: Inventory | None, records: Iterable[ClaimRecord], doubt: str = ""
) -> tuple[DeviceHealth, ...]:
    """One entry a device: each that is on offer, and each that a claim holds and that is not what it was.

    inventory: None where there is no NVIDIA driver. doubt: why there is none, or why the inventory may be out of date:
    what would be healthy is unknown then.
    """
    offered = inventory.devices if inventory else {}
    health = Health.UNKNOWN if doubt else Health.HEALTHY
    found = {(pool, name): DeviceHealth(pool=pool, device=name, health=health, message=doubt) for name in offered}
    for held in (device for record in records for device in record.devices):
        now = offered.get(held.device)
        if now is None or now.uuid != held.uuid:
            found[held.pool, held.device] = DeviceHealth(
                pool=held.pool, device=held.device, health=Health.UNHEALTHY, message=_lost(held, inventory, doubt)
            )
    return tuple(found.values())


def _lost(held: PreparedDevice, inventory: Inventory | None, doubt: str) -> str:
    became = _what_became(held, inventory, doubt)
    return (
        f"device {held.device} was {held.uuid} when its claim was prepared, but {became}: "
        "delete the claim's pods so that it is unprepared and allocated again"
    )


def _what_became(held: PreparedDevice, inventory: Inventory | None, doubt: str) -> str:
    if inventory is None:
        return f"this node has no NVIDIA driver now ({doubt or 'see the log of the DRA driver'})"
    offered = inventory.devices
    for name, device in offered.items():
        if device.uuid == held.uuid:
            return f"that is {name} now, since the NVIDIA driver has numbered its GPUs anew"
    instead = f" and {offered[held.device].uuid} has its name" if held.device in offered else ""
    card = next((gpu for gpu in inventory.gpus if gpu.uuid == held.gpu_uuid), None)
    whole = held.uuid == held.gpu_uuid
    if card is None:
        which = "that GPU" if whole else f"its GPU {held.gpu_uuid}"
        why = doubt or "if it fell off the bus, the node's kernel log has an Xid error"
        return f"the NVIDIA driver does not list {which} now{instead} ({why})"
    if whole:
        return f"that GPU is in MIG mode now{instead}"
    if not card.mig_enabled:
        return f"its GPU {card.uuid} is not in MIG mode now{instead}"
    return f"its GPU {card.uuid} has no such MIG device now{instead}"
