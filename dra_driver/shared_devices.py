"""How the devices of a node are shared: the profile that settings name, and what was decided last, for who needs it."""

import logging
from collections.abc import Callable
from typing import Final

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.model.errors import DriverNotReady, SettingError, StateError
from dra_driver.settings import Settings
from dra_driver.settings.profile_file import ProfileFile, parse_profile
from dra_driver.sharing.profile import Profile, Sharing
from dra_driver.sharing.standing import Standing
from dra_driver.slices.offering import Listener
from dra_driver.slices.profiles import Decision

log = logging.getLogger(__name__)

_PROFILE_FACT: Final = "sharing_profile"


def profile_reader(settings: Settings) -> Callable[[], Profile]:
    """Reads the sharing profile, an empty one where none is set. Raises SettingError for one that is wrong now."""
    if settings.sharing_profile is None:
        return Profile
    read = ProfileFile(settings.sharing_profile, settings.max_clients_per_gpu).read
    read()
    return read


class LastingProfile:
    """Reads the sharing profile as ``profile_reader`` does, and knows the last good one over restarts.

    A node that restarts while the file is wrong goes on with that, as a driver that runs does. Where there is none, as
    at the first start, a wrong file is the error that it is.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingError for a file that is wrong now, when none is remembered."""
        self._file = (
            ProfileFile(settings.sharing_profile, settings.max_clients_per_gpu) if settings.sharing_profile else None
        )
        self._known = ""
        self._first: Profile | None = None
        self._store: Store | None = None
        if self._file is None:
            return
        self._known = _remembered(settings)
        try:
            self._file.read()
        except SettingError as error:
            try:
                self._first = parse_profile(self._known, settings.max_clients_per_gpu)
            except ValueError:
                raise error from None
            log.error("%s; the last good profile counts on", error)

    def keep_in(self, store: Store) -> None:
        """Remember what is read from now on."""
        self._store = store

    def read(self) -> Profile:
        """The file's profile now; at the first call the remembered one, if it has to do. Raises SettingError."""
        if self._file is None:
            return Profile()
        first, self._first = self._first, None
        if first is not None:
            return first
        found = self._file.read()
        if self._file.text != self._known and self._store is not None:
            self._known = self._file.text
            try:
                self._store.set_fact(_PROFILE_FACT, self._known)
            except StateError as error:
                log.warning("the sharing profile is not remembered for the next start: %s", error)
        return found


def _remembered(settings: Settings) -> str:
    try:
        store = Store.open_read_only(settings.state_directory / STATE_FILE)
    except StateError:
        return ""
    try:
        return store.fact(_PROFILE_FACT) or ""
    except StateError:
        return ""
    finally:
        store.close()


class KnownShares:
    """Keeps how devices are shared as it was decided last. Implements slices.offering.Listener, for another as well."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._counts: dict[str, int] | None = None

    def learn(self, sharing: Sharing | None) -> None:
        """How devices are shared, ahead of what live claims mean for that; None while it is not known."""
        if sharing is not None:
            counts = {name: shares.count for name, shares in sharing.shares.items() if shares.count}
            self._counts = (self._counts or {}) | counts

    def undecided(self, why: str) -> None:
        """See Listener."""
        self._listener.undecided(why)

    def decided(self, decision: Decision, sharing: Sharing, standing: Standing) -> None:
        """See Listener."""
        self.learn(sharing)
        self._listener.decided(decision, sharing, standing)

    def count(self, device: str) -> int:
        """Number of shares of a device, 0 where there was none. Raises DriverNotReady before anything is decided.

        A claim that got shares before their number was taken away still has the part of the device that they were.
        """
        if self._counts is None:
            raise DriverNotReady("how the GPUs of this node are shared is not decided yet")
        return self._counts.get(device, 0)
