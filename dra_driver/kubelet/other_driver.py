"""Another driver of our name on this node, found by its registration socket: told once, and stood aside for.

The kubelet gives a claim to the driver of its name that registered last, so two of them would each know half of the
claims. Other instances of this driver, as in a rolling update, do not count. Nothing of the other is touched: its
sockets are only asked for GetInfo, which the kubelet asks too.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from dra_driver.kubelet.plugin import Sockets
from dra_driver.kubelet.registration import INSTANCE, SELF_CHECK
from dra_driver.kubelet.sockets import target
from dra_driver.kubelet.texts import one_line
from dra_driver.ports import EventSink, Readiness
from dra_driver_api import names
from dra_driver_api.kubelet import registration_pb2, registration_pb2_grpc

log = logging.getLogger(__name__)

CONDITION: Final = "other driver"
EVENT: Final = "OtherDriverPresent"

_AGE_S: Final = 2.0
_ASK_SECONDS: Final = 1.0
"""Time limit of GetInfo, as the kubelet has it."""

_Key = tuple[Path, int, int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """A registration that is not this driver's: its socket and what it says of itself."""

    socket: Path
    endpoint: str
    versions: tuple[str, ...]


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
        self._ours: set[_Key] = set()
        self._found: Found | None = None
        self._aside = False

    @property
    def aside(self) -> bool:
        """Whether this driver stands aside, as of the last look. Never waits."""
        return self._aside

    def in_the_way(self) -> bool:
        """The same, after a look unless one was made in the last two seconds. May take a second for each socket."""
        with self._lock:
            now = self._clock()
            if self._looked is None or now - self._looked >= _AGE_S:
                found = self._look()
                if found != self._found:
                    self._tell(found)
                self._found = found
                self._aside = found is not None and (self._refuse or self._takes_ours(found))
                self._looked = self._clock()
            return self._aside

    def _look(self) -> Found | None:
        """The first that is registered beside us. One that was seen and is silent now is still there."""
        registry = self._own.registration.parent
        try:
            paths = sorted(path for path in registry.iterdir() if path.name.startswith(names.DRIVER_NAME))
            keys = [(path, seen.st_dev, seen.st_ino, seen.st_ctime_ns) for path in paths for seen in [path.lstat()]]
        except OSError as error:
            log.debug("whether another driver is registered in %s is not known: %s", registry, error)
            return self._found if registry.is_dir() else None
        self._ours.intersection_update(keys)
        for key in keys:
            if key not in self._ours and (found := self._ask(key)):
                return found
        return None

    def _ask(self, key: _Key) -> Found | None:
        """Who listens at a socket, None for nobody, for this driver, and for a driver of another name."""
        path = key[0]
        # A pool of its own, or gRPC would go on with a connection to whoever listened here before.
        with grpc.insecure_channel(target(path), options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            try:
                info, call = stub.GetInfo.with_call(
                    registration_pb2.InfoRequest(), timeout=_ASK_SECONDS, metadata=((SELF_CHECK, "1"),)
                )
            except grpc.RpcError as error:
                silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                return self._found if silent and self._found and self._found.socket == path else None
            marked = any(name == INSTANCE for name, _ in call.trailing_metadata() or ())
        if info.type != names.PLUGIN_TYPE_DRA or info.name != names.DRIVER_NAME:
            return None
        if Path(info.endpoint).parent == self._own.dra.parent and (marked or self._is_older_instance(path)):
            self._ours.add(key)
            return None
        return Found(path, info.endpoint or str(path), tuple(info.supported_versions))

    def _is_older_instance(self, path: Path) -> bool:
        """Whether it is this driver's before an update, of a version that does not mark its answers.

        Such a one has a pod's sockets, and holds the publisher's lock.
        """
        return path.name != names.REGISTRATION_SOCKET and not self._sole()

    def _takes_ours(self, found: Found) -> bool:
        return found.socket == self._own.registration or found.endpoint == str(self._own.dra)

    def _tell(self, found: Found | None) -> None:
        if found is None:
            text = f"no other driver is registered as {names.DRIVER_NAME} here any more"
            self._readiness.set(CONDITION, True, text)
            log.info("%s", text)
            return
        aside = self._refuse or self._takes_ours(found)
        done = (
            "this driver offers nothing and leaves claims to it until it leaves"
            if aside
            else "claims go to whichever registered last, and GPUs may be used twice, until it leaves"
        )
        text = one_line(
            f"another driver is registered as {names.DRIVER_NAME} on this node: {found.socket} answers with endpoint "
            f"{found.endpoint} ({', '.join(found.versions) or 'no versions'}) and is no instance of this driver; "
            f"{done}. Remove it from this node (NVIDIA's DRA driver: its DaemonSet), or keep this driver off the node "
            "by its node selector; --device-plugin-conflict says what happens meanwhile"
        )
        log.warning("%s", text)
        self._events.warning(EVENT, text)
        self._readiness.set(CONDITION, not aside, text)
