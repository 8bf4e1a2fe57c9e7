"""Launches supervisors as processes of this node. They have a session of their own, and outlive the driver.

One that ends while it is wanted is started again, after a pause that grows. Implements launcher.Launcher.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_driver.model.errors import MpsError
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps import running
from dra_driver.mps.folders import Folder

log = logging.getLogger(__name__)

OUTPUT: Final = "supervisor"
"""In ``log``: what supervisors print."""

_LOOK_S: Final = 0.25
_POLL_S: Final = 0.05
_LONG_S: Final = 60.0
_LAST_S: Final = 1.0
_MOST_OUTPUT: Final = 1 << 18


@dataclass(slots=True)
class _Wanted:
    """A daemon that is to be served. pause_s: before the next start; it begins anew when one has run for long."""

    folder: Folder
    child: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started: float = 0.0
    pause_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waits_s(self) -> float:
        """Seconds until it may be started."""
        return max(0.0, self.started + self.pause_s - time.monotonic())


class ProcessLauncher:
    """Supervisors as children of this process. Implements launcher.Launcher.

    driver_root: as this process, and so the supervisor, sees it. first_pause_s, longest_pause_s: between two starts of
    a supervisor that ends; each pause is twice the one before.
    """

    name = "process"

    def __init__(
        self,
        driver_root: Path,
        first_pause_s: float = 1.0,
        longest_pause_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        self._driver_root = driver_root
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._patience_s = patience_s
        self._wanted: dict[str, _Wanted] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._watch: threading.Thread | None = None

    def launch(self, daemon: MpsDaemon, directory: Path) -> None:
        """See Launcher."""
        with self._changed:
            wanted = self._wanted.setdefault(daemon.id, _Wanted(Folder(directory)))
            if self._watch is None:
                self._watch = threading.Thread(target=self._keep, name="mps-supervisors", daemon=True)
                self._watch.start()
            self._changed.notify_all()
        self._tend(daemon.id, wanted)

    def why_not_ready(self, daemon_id: str, directory: Path) -> str:
        """See Launcher."""
        folder = Folder(directory)
        if folder.description() is None:
            raise MpsError(f"MPS daemon {daemon_id}: its folder {directory} is gone")
        wanted = self._wanted.get(daemon_id)
        if wanted is None:
            return "" if folder.is_supervised() else "no process has been started for it"
        if folder.is_supervised() or _runs(wanted.child):
            return "its processes are starting"
        return f"it is started again in {wanted.waits_s:.0f} s, after {wanted.starts} starts"

    def end(self, daemon_id: str, directory: Path, timeout_s: float) -> None:
        """See Launcher. Who is in the way for two thirds of the time is killed."""
        with self._changed:
            wanted = self._wanted.pop(daemon_id, None)
        began = time.monotonic()
        if wanted is not None:
            with wanted.lock:  # A start that is on its way is over.
                pass
        self._ask_to_end(directory)
        while self._left(directory, wanted):
            if time.monotonic() - began > timeout_s * 2 / 3:
                self._kill(daemon_id, directory, began + max(timeout_s, timeout_s * 2 / 3 + _LAST_S))
            time.sleep(_POLL_S)

    def present(self) -> Sequence[MpsDaemon]:
        """None that have no folder: processes without one end by themselves."""
        return ()

    def close(self) -> None:
        """Start nothing again. What runs goes on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._watch is not None:
            self._watch.join()
        for wanted in list(self._wanted.values()):
            with wanted.lock:  # A start that is on its way is over.
                if wanted.child is not None and wanted.child.poll() is None:
                    # Not ours to wait for any more: else Python would, or complain that nobody does.
                    wanted.child.returncode = 0

    def _keep(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._wanted:
                    self._changed.wait()
                if self._closed:
                    return
                everyone = list(self._wanted.items())
            for daemon_id, wanted in everyone:
                try:
                    self._tend(daemon_id, wanted)
                except MpsError as error:
                    log.warning("%s", error)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, _LOOK_S)

    def _tend(self, daemon_id: str, wanted: _Wanted) -> None:
        """Start its supervisor if it has none and may have one. Raises MpsError when that fails."""
        with wanted.lock:
            if self._wanted.get(daemon_id) is not wanted or self._closed:
                return
            # Also one of an earlier driver, or one that has just been started and not locked the folder yet.
            if _runs(wanted.child) or wanted.folder.is_supervised() or wanted.waits_s > 0:
                return
            if not wanted.folder.path.is_dir() or wanted.folder.is_stopping():
                return
            if wanted.child is not None:
                failure = wanted.folder.failure()
                log.warning(
                    "MPS daemon %s is started again: %s", daemon_id, failure.text if failure else "no reason known"
                )
            self._start(daemon_id, wanted)

    def _start(self, daemon_id: str, wanted: _Wanted) -> None:
        lasted = time.monotonic() - wanted.started
        again = wanted.starts > 0 and lasted < max(_LONG_S, 2 * wanted.pause_s)
        wanted.pause_s = min(self._longest_pause_s, 2 * wanted.pause_s) if again else self._first_pause_s
        wanted.started = time.monotonic()
        wanted.starts += 1
        try:
            path = wanted.folder.log / OUTPUT
            cut = path.exists() and path.stat().st_size > _MOST_OUTPUT
            with path.open("wb" if cut else "ab") as output:
                wanted.child = subprocess.Popen(
                    self._command(wanted.folder.path),
                    cwd="/",
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            raise MpsError(f"MPS daemon {daemon_id}: its supervisor cannot be started: {error}") from error

    def _command(self, directory: Path) -> list[str]:
        options = ["--driver-root", str(self._driver_root), "--patience", f"{self._patience_s:g}"]
        return [sys.executable, "-P", "-m", "dra_driver", running.COMMAND, *options, str(directory)]

    def _ask_to_end(self, directory: Path) -> None:
        running.tell(running.supervisors(directory), lambda: running.supervisors(directory), signal.SIGTERM)

    @staticmethod
    def _left(directory: Path, wanted: _Wanted | None) -> list[int]:
        """Process ids of what is still there; [0] for a supervisor of another container."""
        if wanted is not None and wanted.child is not None and _runs(wanted.child):
            return [wanted.child.pid]
        supervisors = running.supervisors(directory)
        if supervisors:
            return supervisors
        if Folder(directory).is_supervised():
            return [0]
        # Nobody is left to end these, and nobody will come.
        members = running.members(directory)
        running.tell(members, lambda: running.members(directory), signal.SIGTERM)
        return members

    def _kill(self, daemon_id: str, directory: Path, until: float) -> None:
        def everyone() -> list[int]:
            return [*running.supervisors(directory), *running.members(directory)]

        left = running.kill_all(everyone, max(0.0, until - time.monotonic()))
        if left:
            raise MpsError(f"MPS daemon {daemon_id}: its processes {left} do not end, also when they are killed")
        if Folder(directory).is_supervised():
            raise MpsError(f"MPS daemon {daemon_id}: its supervisor, which runs in another container, does not end")


def _environment() -> dict[str, str]:
    """Ours, with which a supervisor imports what this process imports, also from a relative path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}


def _runs(child: subprocess.Popen[bytes] | None) -> bool:
    return child is not None and child.poll() is None
