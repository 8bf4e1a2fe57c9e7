"""How the devices of a node are shared: the profile that settings name, and what was decided last, for who needs it."""

from collections.abc import Callable

from dra_driver.model.errors import DriverNotReady
from dra_driver.settings import Settings
from dra_driver.settings.profile_file import ProfileFile
from dra_driver.sharing.profile import Profile, Sharing
from dra_driver.sharing.standing import Standing
from dra_driver.slices.offering import Listener
from dra_driver.slices.profiles import Decision


def profile_reader(settings: Settings) -> Callable[[], Profile]:
    """Reads the sharing profile, an empty one where none is set. Raises SettingError for one that is wrong now."""
    if settings.sharing_profile is None:
        return Profile
    read = ProfileFile(settings.sharing_profile, settings.max_clients_per_gpu).read
    read()
    return read


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
