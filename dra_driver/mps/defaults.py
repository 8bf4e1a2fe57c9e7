"""The settings of a daemon: made by commands to it, and held against what it says, since exit codes say nothing."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from dra_driver.model.errors import MpsError
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps.tool import shown_output

_AMOUNT: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NO_LIMIT: Final = 100


class SettingRefused(MpsError):
    """The daemon does not have a setting that it was told to have; asking again is no use."""


def make(daemon: MpsDaemon, ask: Callable[[str], str]) -> None:
    """Make all settings. ask: sends a command and returns the answer; raises MpsError.

    Raises SettingRefused, naming the setting, what was asked and what the daemon said.
    """
    if daemon.thread_percentage is not None:
        command = f"set_default_active_thread_percentage {daemon.thread_percentage}"
        answer = ask(command)
        # 0 means no limit, and is shown as that.
        wanted = daemon.thread_percentage or _NO_LIMIT
        if _NUMBER.fullmatch(answer) is None or Decimal(answer) != wanted:
            raise _refused(daemon, command, f"{wanted}.0", answer)
    for device, limit in daemon.memory_limits:
        command = f"set_default_device_pinned_mem_limit {device} {limit}"
        said = ask(command)
        answer = ask(f"get_default_device_pinned_mem_limit {device}")
        if not same_amount(limit, answer):
            raise _refused(daemon, command, limit, " ".join(filter(None, (said, answer))))


def same_amount(asked: str, shown: str) -> bool:
    """Whether an amount as the daemon shows it is the one asked for: ``2G`` is ``2048M``.

    What does not fit into the last digit shown is cut off, or rounded: driver 580 shows 1500M as ``1G``.
    """
    one, other = _AMOUNT.fullmatch(asked), _AMOUNT.fullmatch(shown)
    if one is None or other is None:
        return False
    step = Decimal(_UNITS[other[3].upper()]) / 10 ** len(other[2] or "")
    more = _bytes(one) - _bytes(other)
    return bool(-step / 2 <= more < step)


def _bytes(amount: re.Match[str]) -> Decimal:
    return Decimal(f"{amount[1]}.{amount[2] or '0'}") * _UNITS[amount[3].upper()]


def _refused(daemon: MpsDaemon, command: str, wanted: str, answer: str) -> SettingRefused:
    said = f'it says "{shown_output(answer)}"' if answer else "it says nothing"
    return SettingRefused(f'MPS daemon {daemon.id}: "{command}" was not taken: {said} where {wanted} is expected')
