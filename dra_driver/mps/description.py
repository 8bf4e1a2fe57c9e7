"""What daemon.json says: the daemon, what launches it, where its memory is from. Text and values, no I/O."""

import json
import re
from dataclasses import dataclass
from typing import Final

from dra_driver.model.errors import MpsError
from dra_driver.model.mps import MpsDaemon

_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,80}-[0-9a-f]{5}")
_DEVICE: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,100}")
_LIMIT: Final = re.compile(r"[0-9]{1,13}[KMG]")
_MOST: Final = 100
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Description:
    """A daemon as its supervisor and a later driver are told of it.

    launcher: ``process`` or ``deployment``. mounted: the driver has mounted memory at ``shm``; else it is a plain
    folder.
    """

    daemon: MpsDaemon
    launcher: str
    mounted: bool

    def encode(self) -> bytes:
        """The text of daemon.json. Raises MpsError for a value that ``decode`` would refuse."""
        raw = _checked(self.daemon).dump() | {"launcher": self.launcher, "mounted": self.mounted}
        return f"{json.dumps(raw, indent=1)}\n".encode()


def decode(text: bytes, daemon_id: str) -> Description:
    """The opposite of ``encode``. Raises MpsError for a damaged text, or one of another daemon."""
    try:
        raw = json.loads(text)
        found = Description(MpsDaemon.load(raw), str(raw["launcher"]), raw["mounted"] is True)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MpsError(
            f"MPS daemon {daemon_id}: its description is damaged: {type(error).__name__}: {error}"
        ) from error
    if found.daemon.id != daemon_id:
        raise MpsError(f"MPS daemon {daemon_id}: its description is that of {_shown(found.daemon.id)}")
    _checked(found.daemon)
    return found


def is_id(text: str) -> bool:
    """Whether a text is ``<claim uid>-<5 hex digits>``, and so safe as a folder's name."""
    return _ID.fullmatch(text) is not None


def checked_id(text: str) -> str:
    """The id itself. Raises MpsError for any other text."""
    if not is_id(text):
        raise MpsError(f"MPS daemon {_shown(text)}: not an id of the form <claim uid>-<5 hex digits>")
    return text


def _checked(daemon: MpsDaemon) -> MpsDaemon:
    """The daemon itself: each value that gets into a command or an environment is one word. Raises MpsError."""
    checked_id(daemon.id)
    values = [(_DEVICE, device) for device in (*daemon.devices, *daemon.gpus, *dict(daemon.memory_limits))]
    values += [(_LIMIT, limit) for _, limit in daemon.memory_limits]
    for form, value in values:
        if form.fullmatch(value) is None:
            raise MpsError(f"MPS daemon {daemon.id}: {_shown(value)} is not of the form {form.pattern}")
    if daemon.thread_percentage is not None and not 0 <= daemon.thread_percentage <= _MOST:
        raise MpsError(f"MPS daemon {daemon.id}: {daemon.thread_percentage} is not a percentage from 0 to {_MOST}")
    return daemon


def _shown(value: str) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
