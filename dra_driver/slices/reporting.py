"""Tells people how publishing goes: log, readiness condition ``slices``, events on the Node."""

import logging
import re
from collections.abc import Mapping

from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.ports import EventSink, Readiness

logger = logging.getLogger(__name__)

CONDITION = "slices"

_CONFLICTS = (404, 409)
_PATIENCE = 3
"""Conflicts in a row that are nothing but two writers meeting."""

_TOLD_AT_ONCE = 64

_REMEDIES = {
    401: "the service account's token is not accepted",
    403: "check the ClusterRole of the driver's service account and the cluster's admission policies",
    413: "the object is larger than the API server takes",
    422: "the API server does not accept the content of the slice",
}


class Reporter:
    """Keeps count, so that each distinct refusal is told once and not with every retry."""

    def __init__(self, events: EventSink, readiness: Readiness) -> None:
        self._events = events
        self._readiness = readiness
        self._told: set[str] = set()
        self._refused = False
        self._conflicts = 0

    def waiting(self) -> None:
        """Nothing has been published yet."""
        self._readiness.set(CONDITION, False, "ResourceSlices are not published yet")

    def standing_by(self) -> None:
        """Another instance of the driver publishes; this one is as ready as it can be."""
        self._readiness.set(CONDITION, True, "standing by: another instance of the driver publishes")

    def standing_aside(self) -> None:
        """Another driver of this name publishes, or may; a condition of its own tells of it."""
        self._readiness.set(CONDITION, True, "nothing is published beside another driver")

    def published(self, slices: int, devices: int, generation: int, writes: int) -> None:
        """The API server holds what we want."""
        text = f"{devices} devices in {slices} slices, generation {generation}"
        self._readiness.set(CONDITION, True, text)
        logger.log(logging.INFO if writes else logging.DEBUG, "ResourceSlices: %s (%d writes)", text, writes)
        if self._refused:
            self._events.normal("ResourceSlicesPublished", f"{devices} devices are published")
        self._refused = False
        self._conflicts = 0
        self._told.clear()

    def failed(self, error: ApiError, retry_s: float) -> None:
        """An attempt failed and will be made again in ``retry_s`` seconds."""
        if isinstance(error, ApiUnreachable):
            self._not_ready(f"API server cannot be reached: {error}", retry_s)
            return
        if error.status in _CONFLICTS:
            self._conflicts += 1
            if self._conflicts < _PATIENCE:
                logger.info("ResourceSlices changed while being written, again in %.1f s: %s", retry_s, error)
                return
        remedy = _REMEDIES.get(error.status)
        text = f"API server refuses the ResourceSlices: {error}" + (f"; {remedy}" if remedy else "")
        self._not_ready(text, retry_s)
        self._refused = True
        self._tell("ResourceSlicesRefused", text)

    def dropped(self, gates: Mapping[str, str]) -> None:
        """The API server stored a slice without these fields (field name -> its feature gate)."""
        fields, missing = ", ".join(sorted(gates)), ", ".join(sorted(set(gates.values())))
        text = f"API server dropped {fields}: its feature gates {missing} are off; devices are published without"
        logger.warning("%s", text)
        self._tell("ResourceSliceFieldsDropped", text)

    def contested(self, repairs: int, who: str) -> None:
        """Slices had to be restored again and again."""
        logger.warning("ResourceSlices of this node were changed %d times, last by %s", repairs, who)
        if repairs == _PATIENCE:
            text = f"ResourceSlices of this node are changed or deleted again and again, last by {who}: "
            self._tell("ResourceSlicesContested", text + "is another driver for gpu.nvidia.com running here?")

    def _not_ready(self, text: str, retry_s: float) -> None:
        logger.warning("%s (again in %.1f s)", text, retry_s)
        self._readiness.set(CONDITION, False, text)

    def _tell(self, reason: str, text: str) -> None:
        """One event for each distinct text; the random end of a generated name does not make it distinct."""
        known = f"{reason} " + re.sub(r'-[a-z0-9]{5}"', '-"', text)
        if known not in self._told and len(self._told) < _TOLD_AT_ONCE:
            self._told.add(known)
            self._events.warning(reason, text)
