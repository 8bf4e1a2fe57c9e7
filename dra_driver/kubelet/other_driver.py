"""Another driver of our name on this node, found by its registration socket: told once, and stood aside for.

The kubelet gives a claim to the driver of its name that registered last, so two of them would each know half of the
claims. Other instances of this driver, as in a rolling update, do not count. Nothing of the other is touched: its
sockets are only asked for GetInfo, which the kubelet asks too.
"""

import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from dra_driver.kubelet.plugin import Sockets
from dra_driver.kubelet.registration import INSTANCE, SELF_CHECK, VERSIONS
from dra_driver.kubelet.sockets import MAX_PATH_BYTES, is_served, target
from dra_driver.kubelet.texts import one_line
from dra_driver.model.errors import StateError
from dra_driver.ports import EventSink, Readiness
from dra_driver_api import names
from dra_driver_api.kubelet import registration_pb2, registration_pb2_grpc

log = logging.getLogger(__name__)

CONDITION: Final = "other driver"
EVENT: Final = "OtherDriverPresent"

_AGE_S: Final = 2.0
_ASK_SECONDS: Final = 1.0
"""Time limit of GetInfo, as the kubelet has it."""

_FIRST_PATIENCE_S: Final = 10.0
_LONGEST_PATIENCE_S: Final = 300.0
_FORGET_S: Final = 600.0
_TELL_AGAIN_S: Final = 60.0
_SHOWN: Final = 150
"""Characters of what the other says of itself, so that there is room for what to do."""

_Key = tuple[Path, int, int, int]
"""A socket file that is the same one: path, device, inode and time of change."""


@dataclass(frozen=True, slots=True)
class Found:
    """A registration that is not this driver's: its socket and what it says of itself."""

    socket: Path
    endpoint: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What somebody who listens at a socket says. info: None for no answer, or none that can be understood."""

    key: _Key
    info: registration_pb2.PluginInfo | None
    marked: bool = False


class _Patience:
    """Whether one that was here has left. In seconds of the clock that is given.

    The first time that is so at once. One that comes back within ten minutes is waited for longer each time, so that a
    driver which starts and fails again and again does not have this one register and publish in between.
    """

    def __init__(self) -> None:
        self._came_back = 0
        self._left = -math.inf
        self._away: float | None = None

    @property
    def wanted(self) -> float:
        """How long it must have been away."""
        if not self._came_back:
            return 0.0
        return min(_FIRST_PATIENCE_S * 2.0 ** min(self._came_back - 1, 10), _LONGEST_PATIENCE_S)

    def has_come(self, now: float) -> None:
        """After it was not here."""
        self._came_back = self._came_back + 1 if now - self._left < _FORGET_S else 0

    def is_here(self) -> None:
        """As before."""
        self._away = None

    def has_left(self, now: float) -> bool:
        """Whether one that cannot be seen has been away for long enough."""
        if self._away is None:
            self._away = now
        if now - self._away < self.wanted:
            return False
        self._left, self._away = now, None
        return True


class OtherDriver:
    """Looks for it, and says whether this driver stands aside until it has left. Thread-safe.

    own: where this driver would have its sockets. refuse: whether to stand aside for one that has other sockets; where
    it has the same there is no choice. sole: whether no other instance of this driver is in the plugin directory, as
    far as locks tell.
    """

    def __init__(
        self,
        own: Sockets,
        readiness: Readiness,
        events: EventSink,
        *,
        refuse: bool,
        sole: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own, self._readiness, self._events = own, readiness, events
        self._refuse, self._sole, self._clock = refuse, sole, clock
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._harmless: set[_Key] = set()
        self._found: Found | None = None
        self._patience = _Patience()
        self._told = -math.inf
        self._aside = False

    @property
    def aside(self) -> bool:
        """Whether this driver stands aside, as of the last look. Never waits."""
        return self._aside

    def in_the_way(self) -> bool:
        """The same, after a look unless one was made in the last two seconds. May take a second."""
        with self._lock:
            now = self._clock()
            if self._looked is None or now - self._looked >= _AGE_S:
                found = self._settled(self._look(), now)
                if found != self._found:
                    self._tell(found, now)
                self._found = found
                self._aside = found is not None and (self._refuse or self._takes_ours(found))
                self._looked = self._clock()
            return self._aside

    def _settled(self, found: Found | None, now: float) -> Found | None:
        """What counts after this look: one that was here and is away for the moment is here still."""
        if found is not None:
            if self._found is None:
                self._patience.has_come(now)
            self._patience.is_here()
        elif self._found is not None and not self._patience.has_left(now):
            return self._found
        return found

    def _look(self) -> Found | None:
        """One that is registered beside us, the same as before if there are several."""
        registry = self._own.registration.parent
        try:
            keys = list(_sockets(registry))
        except OSError as error:
            log.debug("whether another driver is registered in %s is not known: %s", registry, error)
            return self._found if os.path.isdir(registry) else None
        self._harmless.intersection_update(keys)
        answers = _ask(key for key in keys if key not in self._harmless)
        found = [other for answer in answers if (other := self._judge(answer))]
        return self._found if self._found in found else next(iter(found), None)

    def _judge(self, answer: _Answer) -> Found | None:
        """None for this driver and for one of another name. One that was understood before and is not now is there."""
        path, info = answer.key[0], answer.info
        if info is None:
            return self._found if self._found and self._found.socket == path else None
        if info.type != names.PLUGIN_TYPE_DRA or info.name != names.DRIVER_NAME:
            self._harmless.add(answer.key)
            return None
        if Path(info.endpoint).parent == self._own.dra.parent:
            if answer.marked:
                self._harmless.add(answer.key)
                return None
            if self._is_older_instance(path, info.supported_versions):
                return None
        return Found(path, info.endpoint or str(path), tuple(info.supported_versions))

    def _is_older_instance(self, path: Path, versions: Iterable[str]) -> bool:
        """Whether it is this driver's before an update, of a version that does not mark its answers.

        Such a one has a pod's sockets, offers nothing that this one does not, and holds the publisher's lock. That is
        asked at each look: once it has ended, another that looks like it is none.
        """
        if path.name == names.REGISTRATION_SOCKET or not set(versions) <= set(VERSIONS):
            return False
        # One that answered and then ended holds no lock, and does not count either.
        return not self._sole() or not _listens(path)

    def _takes_ours(self, found: Found) -> bool:
        return found.socket == self._own.registration or found.endpoint == str(self._own.dra)

    def _tell(self, found: Found | None, now: float) -> None:
        if found is None:
            text = f"no other driver is registered as {names.DRIVER_NAME} here any more"
            self._readiness.set(CONDITION, True, text)
            log.info("%s", text)
            return
        aside = self._refuse or self._takes_ours(found)
        done = (
            "this driver offers nothing and leaves claims to it"
            if aside
            else "claims go to whichever registered last, and GPUs may be used twice,"
        )
        patience = self._patience.wanted
        until = f"it has been away for {patience:.0f} s, since it comes and goes" if patience else "it leaves"
        text = one_line(
            f"another driver is registered as {names.DRIVER_NAME} on this node: {found.socket} answers with endpoint "
            f"{found.endpoint[:_SHOWN]} ({', '.join(found.versions)[:_SHOWN] or 'no versions'}) and is no instance of "
            f"this driver; {done} until {until}. Remove it from this node (NVIDIA's DRA driver: its DaemonSet), or "
            "keep this driver off the node by its node selector; --device-plugin-conflict says what happens meanwhile"
        )
        self._readiness.set(CONDITION, not aside, text)
        if self._found is None or now - self._told >= _TELL_AGAIN_S:
            self._told = now
            log.warning("%s", text)
            self._events.warning(EVENT, text)


def _sockets(registry: Path) -> Iterator[_Key]:
    """Sockets of our name's drivers, also behind links, as the kubelet takes them. Raises OSError for the folder.

    To one whose path is too long nobody can connect.
    """
    for name in sorted(os.listdir(registry)):
        path = registry / name
        if not name.startswith(names.DRIVER_NAME) or len(os.fsencode(path)) > MAX_PATH_BYTES:
            continue
        try:
            seen = path.stat()
        except OSError:
            continue
        if stat.S_ISSOCK(seen.st_mode):
            yield path, seen.st_dev, seen.st_ino, seen.st_ctime_ns


def _listens(path: Path) -> bool:
    """Whether somebody does, also where that cannot be told."""
    try:
        return is_served(path)
    except StateError as error:
        log.debug("%s", error)
        return True


def _ask(keys: Iterable[_Key]) -> list[_Answer]:
    """GetInfo of all who listen, at once, so that those who are silent take a second together."""
    with ExitStack() as channels:
        calls = [(key, channels.enter_context(_Call(key[0]))) for key in keys if _listens(key[0])]
        return [_Answer(key, *call.answer()) for key, call in calls]


class _Call:
    """One GetInfo that is under way."""

    def __init__(self, path: Path) -> None:
        # A pool of its own, or gRPC would go on with a connection to whoever listened here before.
        self._channel = grpc.insecure_channel(target(path), options=(("grpc.use_local_subchannel_pool", 1),))
        stub = registration_pb2_grpc.RegistrationStub(self._channel)
        self._call: Any = stub.GetInfo.future(
            registration_pb2.InfoRequest(), timeout=_ASK_SECONDS, metadata=((SELF_CHECK, "1"),)
        )

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def answer(self) -> tuple[registration_pb2.PluginInfo | None, bool]:
        """What came, and whether it is marked as this driver's. Waits for it."""
        try:
            info = self._call.result()
        except grpc.RpcError:
            return None, False
        return info, any(name == INSTANCE for name, _ in self._call.trailing_metadata() or ())
