"""Whether a device plugin offers the same GPUs: the Node's allocatable resources tell. Both at once use a GPU twice."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from dra_driver.model.errors import ApiError
from dra_driver.ports import EventSink, Readiness

log = logging.getLogger(__name__)

CONDITION: Final = "device plugin"
EVENT: Final = "DevicePluginPresent"

_PREFIXES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
_AGE_S: Final = 30.0


class OtherPublisher:
    """Looks at what the kubelet counts of GPUs. refuse: whether nothing is to be offered beside a device plugin."""

    def __init__(
        self,
        allocatable: Callable[[], Mapping[str, str]],
        readiness: Readiness,
        events: EventSink,
        *,
        refuse: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allocatable, self._readiness, self._events = allocatable, readiness, events
        self._refuse, self._clock = refuse, clock
        self._looked: float | None = None
        self._found = ""

    def in_the_way(self) -> bool:
        """Whether nothing must be offered now. Looks at most each half minute; what cannot be read stays as it was."""
        now = self._clock()
        if self._looked is None or now - self._looked >= _AGE_S:
            self._looked = now
            try:
                found = ", ".join(f"{name}: {amount}" for name, amount in sorted(_counted(self._allocatable()).items()))
            except ApiError as error:
                log.debug("whether a device plugin offers GPUs here is not known: %s", error)
            else:
                if found != self._found:
                    self._tell(found)
                self._found = found
        return bool(self._found) and self._refuse

    def _tell(self, found: str) -> None:
        if not found:
            self._readiness.set(CONDITION, True, "no device plugin offers GPUs here any more")
            log.info("no device plugin offers GPUs here any more")
            return
        done = "nothing is offered by this driver until" if self._refuse else "GPUs may be used twice until"
        text = (
            f"a device plugin offers GPUs of this node ({found}): {done} it leaves. Take it off this node, or leave "
            "it the node and keep this driver away; --device-plugin-conflict says what happens meanwhile"
        )
        log.warning("%s", text)
        self._events.warning(EVENT, text)
        self._readiness.set(CONDITION, not self._refuse, text)


def _counted(allocatable: Mapping[str, str]) -> dict[str, str]:
    """Resources of GPUs that are there; the kubelet keeps those of a plugin that has left, at 0."""
    return {name: amount for name, amount in allocatable.items() if name.startswith(_PREFIXES) and amount != "0"}
