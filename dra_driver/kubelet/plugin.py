"""The kubelet plugin as a whole: both sockets, their order, and a thread that keeps them findable.

What is served over the sockets is in ``server`` and ``registration``.
"""

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from dra_driver.kubelet.registration import CONDITION, Registrar
from dra_driver.kubelet.server import DraServer, Services
from dra_driver.kubelet.sockets import sweep_stale
from dra_driver.model.errors import DriverError, SettingError
from dra_driver.ports import Readiness, Recorder
from dra_driver_api import names

log = logging.getLogger(__name__)

_POD_UID: Final = re.compile(r"[A-Za-z0-9-]{1,63}")
_PODS_REGISTRATION: Final = re.compile(rf"{re.escape(names.DRIVER_NAME)}-{_POD_UID.pattern}-reg\.sock")
_PODS_DRA: Final = re.compile(rf"dra-{_POD_UID.pattern}\.sock")
_DEREGISTER_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """How patient the watcher is, in seconds.

    poll: between looks at the sockets. longest_wait: the same while the kubelet's directory is missing,
    reached by doubling. unasked: without a GetInfo from the kubelet until that is reported.
    """

    poll: float = 1.0
    longest_wait: float = 8.0
    unasked: float = 60.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """Absolute paths of the two sockets; the kubelet's registry is the folder of the first, never made here."""

    registration: Path
    dra: Path

    @classmethod
    def of(cls, registry_dir: Path, plugin_dir: Path, pod_uid: str | None = None) -> Self:
        """registry_dir: the kubelet's ``plugins_registry``. plugin_dir: the driver's own.

        With a pod UID they differ from pod to pod, so that an old and a new pod can serve side by side during a
        rolling update (kubelet 1.33 and later). Raises SettingError when the UID cannot be part of a file name.
        """
        if pod_uid and not _POD_UID.fullmatch(pod_uid):
            raise SettingError(f"pod UID {pod_uid!r} is not valid: want letters, digits and '-', at most 63")
        registration, dra = names.socket_names(pod_uid or "")
        return cls(registry_dir.absolute() / registration, plugin_dir.absolute() / dra)


class KubeletPlugin:
    """Serves claims and the devices' health to the kubelet and keeps the driver registered."""

    def __init__(
        self,
        sockets: Sockets,
        services: Services,
        recorder: Recorder,
        readiness: Readiness,
        times: WatchTimes = WatchTimes(),
        stand_aside: Callable[[], bool] = lambda: False,
    ) -> None:
        """stand_aside: whether the kubelet is to be left to another driver of this name now.

        Raises SettingError for a socket path that is too long.
        """
        self._registry_dir = sockets.registration.parent
        self._dra = DraServer(sockets.dra, services, recorder)
        self._registrar = Registrar(sockets.registration, names.DRIVER_NAME, sockets.dra, readiness=readiness)
        self._readiness = readiness
        self._times = times
        self._stand_aside = stand_aside
        self._stopping = threading.Event()
        self._told_unasked = False
        self._watcher = threading.Thread(target=self._watch, name="kubelet-watcher", daemon=True)

    @property
    def registration_socket(self) -> Path:
        """Where the kubelet finds the driver."""
        return self._registrar.path

    @property
    def dra_socket(self) -> Path:
        """Where the kubelet prepares and unprepares claims."""
        return self._dra.path

    @property
    def registered(self) -> bool:
        """Whether the kubelet has confirmed the registration over the present socket."""
        return self._registrar.registered

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that must live for as long as the plugin does."""
        return (self._watcher,)

    def start(self) -> None:
        """Serve claims, then let the kubelet find us, now or when its directory appears or another driver has left.

        Raises StateError when a socket cannot be had, for one because another instance serves it.
        """
        if self._stand_aside():
            self._deregister()
        else:
            self._serve()
        # After ours are there, so that the kubelet at no time finds the driver without a socket.
        sweep_stale(self._registry_dir, _PODS_REGISTRATION)
        sweep_stale(self._dra.path.parent, _PODS_DRA)
        self._watcher.start()

    def _serve(self) -> None:
        self._dra.start()
        try:
            self._listen_for_kubelet()
        except DriverError:
            self._dra.stop(0)
            raise

    def stop(self, grace: float) -> None:
        """Deregister, let running calls end within ``grace`` seconds, remove both sockets. Idempotent."""
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._readiness.set(CONDITION, False, "the driver is stopping")
        self._registrar.stop(_DEREGISTER_SECONDS)
        self._dra.stop(grace)
        log.info("the kubelet plugin has stopped")

    def _watch(self) -> None:
        wait = self._times.poll
        while not self._stopping.wait(wait):
            wait = self._times.poll if self._look() else min(wait * 2, self._times.longest_wait)

    def _look(self) -> bool:
        """Put right what is missing; False when that has to wait."""
        if self._stand_aside():
            self._deregister()
            return True
        try:
            if not self._dra.in_place():
                self._dra.start()
                log.warning("DRA socket %s was not there and is now", self._dra.path)
                # The kubelet has to connect to the new socket, so it has to find us anew.
                self._listen_for_kubelet()
            elif not self._registrar.in_place():
                self._listen_for_kubelet()
            elif self._registrar.unasked_seconds() >= self._times.unasked:
                self._tell_unasked()
        except DriverError as error:
            self._readiness.set(CONDITION, False, str(error))
            return False
        return self._registrar.in_place()

    def _deregister(self) -> None:
        """Have the kubelet forget this driver; calls over connections that it has are still answered."""
        self._registrar.stop(_DEREGISTER_SECONDS)
        self._readiness.set(CONDITION, False, f"not registered beside another driver for {names.DRIVER_NAME}")

    def _listen_for_kubelet(self) -> None:
        if self._registry_dir.is_dir():
            self._told_unasked = False
            self._registrar.start()
            return
        self._readiness.set(
            CONDITION,
            False,
            f"the kubelet's plugin registry {self._registry_dir} is missing or no directory: waiting for it; "
            "if the kubelet's root is elsewhere, set --kubelet-registrar-directory-path",
        )

    def _tell_unasked(self) -> None:
        if self._told_unasked:
            return
        self._told_unasked = True
        message = (
            f"no kubelet has asked at {self._registrar.path} for {self._times.unasked:.0f} s: is "
            f"{self._registry_dir} the plugin registry of this node's kubelet, mounted at the same path? If "
            "the kubelet's root is elsewhere, set --kubelet-registrar-directory-path"
        )
        log.warning("%s", message)
        self._readiness.set(CONDITION, False, message)
