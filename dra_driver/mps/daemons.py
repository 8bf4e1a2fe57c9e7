"""All MPS control daemons of this node, whoever launches them. Implements ports.MpsDaemons."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dra_driver.model.errors import MpsError, MpsStarting
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.mps.description import Description, is_id
from dra_driver.mps.folders import Folder
from dra_driver.mps.launcher import Launcher
from dra_driver.mps.mounts import KernelMounts, Mounts
from dra_driver.mps.tool import MpsTool

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_ASK_S: Final = 2.0
_AGAIN_S: Final = 10.0
_LEAST_S: Final = 1.0


class Daemons:
    """See ports.MpsDaemons.

    root: folder of the daemons' folders, as this process sees it; host_root: as the host does, where that differs.
    launcher: of new daemons. others: what may have launched those that are there.
    """

    def __init__(
        self,
        root: Path,
        tool: MpsTool,
        launcher: Launcher,
        others: Sequence[Launcher] = (),
        mounts: Mounts | None = None,
        host_root: Path | None = None,
        closing: threading.Event | None = None,
    ) -> None:
        """closing: set when this process ends; whoever waits for a daemon is told so at once."""
        self._root = root.absolute()
        self._host_root = host_root or self._root
        self._tool = tool
        self._launcher = launcher
        self._launchers = (launcher, *others)
        self._mounts = mounts or KernelMounts()
        self._closing = closing or threading.Event()

    def check(self) -> None:
        """See ports.MpsDaemons: the programs and the library that they need."""
        self._tool.programs()

    def folders(self, daemon_id: str) -> MpsFolders:
        """See ports.MpsDaemons. Raises MpsError for what is no id."""
        folder = Folder.of(self._host_root, daemon_id)
        return MpsFolders(pipe=str(folder.pipe), shm=str(folder.shm))

    def start(self, daemon: MpsDaemon) -> None:
        """See ports.MpsDaemons. A daemon of this id that is described otherwise is an error."""
        folder = Folder.of(self._root, daemon.id)
        if folder.is_stopping():
            # A stop that was cut short: what it began cannot serve any more.
            self.stop(daemon.id, _AGAIN_S)
        wanted = Description(daemon, self._launcher.name, self._mounts.mounts)
        found = self._found(folder, wanted)
        if found is not None and folder.serves():
            return
        launcher = self._launcher if found is None else self._of(found)
        failure = folder.failure()
        if failure is not None and failure.final:
            # Of an earlier try: who waits now asks for this one.
            folder.note(None)
        with _told(daemon.id, "its folder cannot be made"):
            folder.make()
            self._mounts.mount(folder.shm)
            if found is None:
                folder.note(None)
                folder.describe(wanted)
        launcher.launch(daemon, folder.path)

    def wait(self, daemon_id: str, timeout_s: float) -> None:
        """See ports.MpsDaemons."""
        folder = Folder.of(self._root, daemon_id)
        now = time.monotonic()
        deadline, ask_at = now + timeout_s, now + _ASK_S
        while not folder.serves():
            now = time.monotonic()
            why = ""
            if now >= min(ask_at, deadline):
                ask_at = now + _ASK_S
                why = self._why_not(daemon_id, folder)
            failure = folder.failure()
            if failure is not None and failure.final:
                raise MpsError(failure.text)
            if now >= deadline:
                # A pod's last words are the same.
                words = ". ".join(filter(None, (why, failure.text if failure and failure.text not in why else "")))
                raise MpsStarting(
                    f"MPS daemon {daemon_id} does not serve after {timeout_s:.3g} s{': ' if words else ''}{words}"
                )
            if self._closing.wait(_LOOK_S):
                raise MpsStarting(f"MPS daemon {daemon_id} does not serve yet, and the driver is stopping")

    def serves(self, daemon_id: str) -> bool:
        """See ports.MpsDaemons."""
        return is_id(daemon_id) and Folder.of(self._root, daemon_id).serves()

    def session(self, daemon_id: str) -> str:
        """See ports.MpsDaemons."""
        return Folder.of(self._root, daemon_id).session() if is_id(daemon_id) else ""

    def stop(self, daemon_id: str, timeout_s: float) -> None:
        """See ports.MpsDaemons. Its supervisor sends ``quit``, as soon as it sees that it is to end."""
        folder = Folder.of(self._root, daemon_id)
        deadline = time.monotonic() + timeout_s
        try:
            folder.set_stopping()
        except OSError as error:
            # A full disk must not keep pods from ending; launchers end it by signal too.
            log.warning("MPS daemon %s: its folder cannot tell it to end: %s", daemon_id, error)
        for launcher in self._that_may_have(folder):
            launcher.end(daemon_id, folder.path, max(_LEAST_S, deadline - time.monotonic()))
        with _told(daemon_id, "its memory cannot be unmounted"):
            self._mounts.unmount(folder.shm)
        with _told(daemon_id, "its folder cannot be removed"):
            folder.remove()

    def present(self) -> Sequence[MpsDaemon]:
        """See ports.MpsDaemons."""
        found = {daemon.id: daemon for launcher in self._launchers for daemon in launcher.present()}
        for name in self._names():
            found[name] = self._described(name) or found.get(name) or MpsDaemon(id=name, devices=())
        return [found[name] for name in sorted(found)]

    def _names(self) -> list[str]:
        try:
            return [entry.name for entry in self._root.iterdir() if is_id(entry.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MpsError(f"MPS daemons: {self._root}: {error.strerror}") from error

    def _described(self, daemon_id: str) -> MpsDaemon | None:
        try:
            found = Folder.of(self._root, daemon_id).description()
        except MpsError as error:
            log.warning("%s", error)
            return None
        return None if found is None else found.daemon

    def _found(self, folder: Folder, wanted: Description) -> Description | None:
        """What is described there; None where nothing is, or what is damaged and of nobody. Raises MpsError."""
        try:
            found = folder.description()
        except MpsError:
            if folder.is_supervised():
                raise
            return None
        if found is not None and found.daemon != wanted.daemon:
            raise MpsError(
                f"MPS daemon {wanted.daemon.id} is there for {_shown(found.daemon)}, and is wanted for "
                f"{_shown(wanted.daemon)}: it must be stopped first"
            )
        return found

    def _of(self, found: Description) -> Launcher:
        """What launched a daemon. Raises MpsError."""
        for launcher in self._launchers:
            if launcher.name == found.launcher:
                return launcher
        known = ", ".join(launcher.name for launcher in self._launchers)
        raise MpsError(
            f"MPS daemon {found.daemon.id}: launched by {found.launcher!r}, which this driver is not ({known})"
        )

    def _that_may_have(self, folder: Folder) -> Sequence[Launcher]:
        try:
            found = folder.description()
        except MpsError:
            found = None
        named = [launcher for launcher in self._launchers if found and launcher.name == found.launcher]
        return named or self._launchers

    def _why_not(self, daemon_id: str, folder: Folder) -> str:
        found = folder.description()
        if found is None:
            raise MpsError(f"MPS daemon {daemon_id}: its folder {folder.path} is gone")
        return self._of(found).why_not_ready(daemon_id, folder.path)


@contextmanager
def _told(daemon_id: str, problem: str) -> Iterator[None]:
    """Raises MpsError for an OSError."""
    try:
        yield
    except OSError as error:
        what = f" ({error.filename})" if error.filename else ""
        raise MpsError(f"MPS daemon {daemon_id}: {problem}: {error.strerror or error}{what}") from error


def _shown(daemon: MpsDaemon) -> str:
    """What makes one daemon differ from another of its id."""
    settings = (
        ("threads", daemon.thread_percentage),
        ("memory", dict(daemon.memory_limits)),
        ("multi-user", daemon.multi_user),
        ("in exclusive mode", list(daemon.gpus)),
    )
    return f"{', '.join(daemon.devices)} with {', '.join(f'{name} {value}' for name, value in settings)}"
