"""How many claims may have one device at once, and how its capacities are published for that. Pure.

Values and policies are those of NVIDIA's driver (its applyConsumableShares), but for two things that the API's rules
and the scheduler's arithmetic ask for, named where they are done.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_driver.ports import Json
from dra_driver_api.quantity import Notation, Quantity, format_bytes

VALID: Final = "'disabled', 'memory', 'unlimited', or a positive integer"

MEMORY: Final = "memory"
SHARES: Final = "shares"

_MEMORY_STEP: Final = 1 << 20
_COUNT: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


class SharesMode(Enum):
    """What claims on one device share out among them: nothing, its memory, or a number of shares."""

    DISABLED = "disabled"
    MEMORY = "memory"
    UNLIMITED = "unlimited"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class ConsumableShares:
    """How one device is shared.

    count: shares of the device, only with mode COUNT, else 0. max_per_claim: most shares that one request can have,
    0 for all of them.
    """

    mode: SharesMode = SharesMode.DISABLED
    count: int = 0
    max_per_claim: int = 0

    @classmethod
    def parse(cls, text: str) -> "ConsumableShares":
        """``disabled``, ``memory``, ``unlimited`` or a positive number. Raises ValueError that says so."""
        if text in ("disabled", "memory", "unlimited"):
            return cls(SharesMode(text))
        if not _COUNT.fullmatch(text) or int(text) < 1:
            raise ValueError(f"must be {VALID}")
        return cls(SharesMode.COUNT, int(text))

    @property
    def shared(self) -> bool:
        """Whether several claims may have the device."""
        return self.mode is not SharesMode.DISABLED

    def __str__(self) -> str:
        return str(self.count) if self.mode is SharesMode.COUNT else self.mode.value


WHOLE: Final = ConsumableShares()
"""One claim has the device."""


def consumed(capacity: Iterable[tuple[str, str]], name: str, otherwise: int) -> int:
    """Amount of a capacity that a claim consumed of a device.

    otherwise: where the allocation does not say, or says what is no amount of anything, which no API server lets
    through.
    """
    for known, amount in capacity:
        if known == name:
            try:
                found = Quantity.parse(amount).amount
            except ValueError:
                break
            return found if found >= 0 else otherwise
    return otherwise


def consumable(
    capacity: Mapping[str, Json], shares: ConsumableShares, memory_bytes: int | None
) -> tuple[dict[str, Json], str]:
    """The capacities of a shared device with their request policies, and what has to be told of them, '' for nothing.

    capacity: as of a device that is not shared, name -> ``{"value": ...}``. memory_bytes: the amount behind
    ``memory``. A device whose memory is not known gets no ``shares`` either, as NVIDIA's driver has it.
    """
    # A request that does not name a capacity takes its policy's default, and all of it where there is no policy: the
    # first claim would have every multiprocessor of a MIG device and no second one would ever fit.
    policed = {name: {**value, "requestPolicy": {"default": "0"}} for name, value in capacity.items()}
    available = (memory_bytes or 0) // _MEMORY_STEP * _MEMORY_STEP
    if MEMORY not in capacity or not available:
        note = f"{SHARES} left out: its memory is not known" if shares.count else ""
        return policed, note
    policed[MEMORY] = _memory(shares.mode, available)
    if shares.count:
        policed[SHARES] = _shares(shares)
    return policed, ""


def _memory(mode: SharesMode, available: int) -> Json:
    whole, step = format_bytes(available), format_bytes(_MEMORY_STEP)
    if mode is SharesMode.MEMORY:
        limits = {"min": step, "max": whole}
        # The API refuses a step that leads from the minimum to beyond the value.
        return _policy(whole, whole, limits | ({"step": step} if available > _MEMORY_STEP else {}))
    return _policy(whole, "0", {"min": "0", "max": whole, "step": step})


def _shares(shares: ConsumableShares) -> Json:
    limits = {"min": "1", "max": _number(shares.max_per_claim or shares.count)}
    # As above: a single share has no step.
    return _policy(_number(shares.count), "1", limits | ({"step": "1"} if shares.count > 1 else {}))


def _policy(value: str, default: str, limits: Mapping[str, str]) -> Json:
    return {"value": value, "requestPolicy": {"default": default, "validRange": dict(limits)}}


def _number(count: int) -> str:
    return str(Quantity.of(count, Notation.DECIMAL_SI))
