"""Keeps the sharing profile that counts: the file's as it is now, or the last one that could be followed."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dra_driver.model.devices import Device
from dra_driver.model.errors import ApiError, SettingError
from dra_driver.sharing.profile import Labels, Profile, Sharing, Terms, share_out

_LABELS_AGE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """sharing: what counts, None while nothing can be decided. profile: what it follows.

    complaint: why the file's profile does not count, '' while it does.
    """

    sharing: Sharing | None
    profile: Profile
    complaint: str = ""


class Profiles:
    """Asked at each look at the node; not for several threads at once.

    read: the file's profile now, raising SettingError, as this does at the start. labels: those of the Node, raising
    ApiError; asked only where a rule needs them, at each look until they are known, and again each minute.
    """

    def __init__(
        self,
        terms: Terms,
        read: Callable[[], Profile],
        labels: Callable[[], Mapping[str, str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terms = terms
        self._read = read
        self._ask_labels = labels
        self._clock = clock
        self._labels: Labels | None = None
        self._labels_at = 0.0
        self._labels_fault = ""
        self._good: Profile | None = None
        # A file that is taken away before there are GPUs must not have them shared as if there were no profile.
        self._last = read()

    def decide(self, devices: Collection[Device]) -> Decision:
        """How these devices are shared.

        A new profile with a problem on any of them leaves the last one without in place; where there was none, or the
        last one has problems by now, the devices concerned are without sharing.
        """
        complaint = ""
        try:
            wanted = self._last = self._read()
        except SettingError as error:
            complaint = str(error)
            wanted = self._last
        found = self._share_out(devices, wanted)
        if found is None:
            complaint = (
                f"the labels of this Node are not known, and the sharing profile asks for them: {self._labels_fault}"
            )
        elif not found.problems:
            self._good = wanted if devices else self._good
            return Decision(sharing=found, profile=wanted, complaint=complaint)
        good = self._good
        if good is None or good == wanted:
            return Decision(sharing=found, profile=wanted, complaint=complaint)
        if not complaint and found is not None:
            complaint = "; ".join(dict.fromkeys(found.problems.values()))
        return Decision(sharing=self._share_out(devices, good), profile=good, complaint=complaint)

    def _share_out(self, devices: Collection[Device], profile: Profile) -> Sharing | None:
        """None where the labels have to be known and are not."""
        labels = self._known_labels() if profile.asks_labels else {}
        return None if labels is None else share_out(devices, profile, labels, self._terms)

    def _known_labels(self) -> Labels | None:
        if self._labels is None or self._clock() - self._labels_at >= _LABELS_AGE_S:
            try:
                self._labels = self._ask_labels()
            except ApiError as error:
                # The last known ones count on: a Node's labels seldom change.
                self._labels_fault = str(error)
            self._labels_at = self._clock()
        return self._labels
