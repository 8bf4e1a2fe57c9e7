"""How much of a shared GPU's memory a claim may have, and whether a claim insists on that being enforced. Pure.

What a claim consumes of a device is its limit; nothing in NVIDIA's config types says it.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_driver.model.claims import AllocatedDevice, ClaimRef
from dra_driver.model.devices import Device, Gpu, MemoryLimits
from dra_driver.model.errors import BadConfig
from dra_driver.model.plan import PreparedDevice
from dra_driver.sharing.shares import MEMORY, SHARES, consumed

MEBIBYTE: Final = 1 << 20

ATTRIBUTE: Final = "memoryLimits"
"""The device attribute that says what becomes of limits."""

_NAMED: Final = rf"""(?:\.{ATTRIBUTE}\b|\[\s*["']{ATTRIBUTE}["']\s*\])"""
_WORD: Final = r"""["']{}["']"""
_ASKS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_NAMED}\s*==\s*{_WORD.format('enforced')}",
        rf"{_NAMED}\s*!=\s*{_WORD.format('observed')}",
        rf"{_NAMED}\s+in\s*\[\s*{_WORD.format('enforced')}\s*\]",
        rf"{_WORD.format('enforced')}\s*==\s*[^&|?]*{_NAMED}",
        rf"{_WORD.format('observed')}\s*!=\s*[^&|?]*{_NAMED}",
    )
)


class ShareMemory(Enum):
    """What a claim that names no memory gets of a device in a number of shares: NONE no limit, EVEN its part."""

    NONE = "none"
    EVEN = "even"


@dataclass(frozen=True, slots=True)
class LimitTerms:
    """share_memory: see there. shares: number of shares that a device is published in, or was last, 0 for none.

    ``shares`` may raise DriverNotReady while that is not decided yet.
    """

    share_memory: ShareMemory = ShareMemory.NONE
    shares: Callable[[str], int] = lambda device: 0


NO_EVEN_PARTS: Final = LimitTerms()
"""Only a claim that asks for memory has a limit."""


def asks_for_enforced(expression: str) -> bool:
    """Whether a CEL selector compares the attribute so that only ``enforced`` can be meant.

    Selectors are not evaluated here: the scheduler has done that, and all that matters is what the claim relied on. One
    that gives another way out (``... || ...``) is taken to insist all the same.
    """
    return any(pattern.search(expression) for pattern in _ASKS)


def check_enforced(claim: ClaimRef, allocated: AllocatedDevice, device: Device) -> None:
    """Raises BadConfig when a claim relies on enforced limits and the device does not have them now."""
    if not allocated.needs_enforced or not isinstance(device, Gpu) or device.memory_limits is MemoryLimits.ENFORCED:
        return
    now = device.memory_limits.value if device.memory_limits else "not told"
    raise BadConfig(
        f"request {allocated.request} of claim {claim} demands {ATTRIBUTE} == {MemoryLimits.ENFORCED.value}, and on "
        f"device {allocated.device} it is {now}: the NVIDIA driver or nvidia-cdi-hook of this node was changed since "
        "the claim was allocated (dra-driver doctor says what is missing). Delete the pod and its claim, so that it is "
        "allocated again where limits are enforced"
    )


def budget(allocated: AllocatedDevice, device: Device, terms: LimitTerms) -> int | None:
    """Bytes of a GPU's memory that one allocation result gives, in whole MiB; None for no limit.

    A MIG device has its limit in hardware.
    """
    if not isinstance(device, Gpu) or allocated.admin_access:
        return None
    memory = consumed(allocated.consumed_capacity, MEMORY, otherwise=0)
    if memory > 0:
        # NVML refuses a limit above what the GPU has.
        return _whole_mebibytes(min(memory, device.memory_bytes or memory))
    shares = consumed(allocated.consumed_capacity, SHARES, otherwise=0)
    if terms.share_memory is not ShareMemory.EVEN or shares <= 0 or device.memory_bytes is None:
        return None
    total = terms.shares(allocated.device)
    # A profile may have made fewer shares than the claim got.
    return _whole_mebibytes(device.memory_bytes * min(shares, total) // total) if total else None


def limits_to_set(claim: ClaimRef, devices: Iterable[PreparedDevice]) -> dict[str, int]:
    """Device -> bytes, for the GPUs of a claim whose limit its CDI file shall have enforced.

    Raises BadConfig when GPUs would need different limits: nvidia-cdi-hook reads one from the container's environment,
    for all of its GPUs.
    """
    found = _limited(device for device in devices if device.memory_enforced or device.memory_budget is None)
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {limit // MEBIBYTE} MiB" for name, limit in found.items())
        raise BadConfig(
            f"claim {claim} has GPUs with different memory limits ({shown}), and a container can be given one limit "
            "for all its GPUs: ask for the same memory on each, or make a claim for each and use each in a container "
            "of its own"
        )
    return found


def observed_budgets(devices: Iterable[PreparedDevice]) -> dict[str, int]:
    """Device -> bytes, for the GPUs of a claim whose use has to be watched."""
    return _limited(device for device in devices if not device.memory_enforced)


def budgets(devices: Iterable[PreparedDevice]) -> dict[str, int | None]:
    """Device -> bytes that a claim may have of it, enforced or not; None for no limit.

    Two shares of one GPU add up; with one that has no limit the GPU has none. Admin access has no part in it.
    """
    found: dict[str, int | None] = {}
    for device in devices:
        if not device.admin_access:
            more, before = device.memory_budget, found.get(device.device, 0)
            found[device.device] = None if more is None or before is None else before + more
    return found


def _limited(devices: Iterable[PreparedDevice]) -> dict[str, int]:
    return {name: limit for name, limit in budgets(devices).items() if limit is not None}


def _whole_mebibytes(amount: int) -> int:
    """Rounded down; a limit of nothing would be no share at all."""
    return max(amount // MEBIBYTE, 1) * MEBIBYTE
