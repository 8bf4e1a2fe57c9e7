"""What a claim relies on because its DeviceClass asks for it. Classes are read only where that may be broken."""

from collections.abc import Callable
from dataclasses import replace

from dra_driver.claims.allocation import expressions
from dra_driver.model.claims import AllocatedDevice, Allocation
from dra_driver.model.devices import Gpu, Inventory, MemoryLimits
from dra_driver.model.errors import DriverNotReady
from dra_driver.ports import ClassReader
from dra_driver.sharing.memory_limits import asks_for_enforced


def with_class_demands(allocation: Allocation, inventory: Callable[[], Inventory], classes: ClassReader) -> Allocation:
    """The allocation, with demands for enforced memory limits that come from DeviceClasses.

    A class is read only for a share of a GPU that does not enforce limits now. One that was changed since the claim was
    allocated counts as it is now. Without an inventory nothing is prepared anew, so nothing is asked. Raises ApiError.
    """
    if not any(device.share_id for device in allocation.devices):
        return allocation
    try:
        devices = inventory().devices
    except DriverNotReady:
        return allocation

    def completed(allocated: AllocatedDevice) -> AllocatedDevice:
        device = devices.get(allocated.device)
        settled = allocated.needs_enforced or not allocated.share_id or not allocated.device_class
        if settled or not isinstance(device, Gpu) or device.memory_limits is MemoryLimits.ENFORCED:
            return allocated
        spec = (classes.get(allocated.device_class) or {}).get("spec") or {}
        return replace(allocated, needs_enforced=any(asks_for_enforced(text) for text in expressions(spec)))

    return replace(allocation, devices=tuple(map(completed, allocation.devices)))
