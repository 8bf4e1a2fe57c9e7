"""Runs NVIDIA's control daemon of one folder: starts it, makes its settings, says that it serves, ends with it.

A process of its own, ``dra-driver mps-daemon DIR``, whoever launches it. When it is killed, the daemon and its clients
go on; the next one takes the daemon over.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dra_driver import hostfs
from dra_driver.model.errors import MpsError
from dra_driver.mps import defaults, mounts, running
from dra_driver.mps.description import Description
from dra_driver.mps.folders import Failure, Folder
from dra_driver.mps.running import Process
from dra_driver.mps.tool import CONTROL, Control, MpsTool, shown_output

log = logging.getLogger(__name__)

OUTPUT: Final = "output"
"""In ``log``: what the daemon prints."""

_LOOK_S: Final = 0.25
_ASK_S: Final = 0.05
_OTHER_S: Final = 2.0
_ANSWER_S: Final = 1.0
_COMMAND_S: Final = 5.0
_QUIT_S: Final = 4.0
_TERM_S: Final = 1.0
_GONE_S: Final = 10.0
"""For servers to let go of a card."""
_TAIL_BYTES: Final = 2048
_TAIL_LINES: Final = 5
_MOST_OUTPUT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Daemon:
    """The control daemon. child: where this supervisor started it itself."""

    process: Process
    child: subprocess.Popen[bytes] | None = None

    @property
    def status(self) -> str:
        """`` with exit code 3`` or the like, as far as it can be known."""
        code = None if self.child is None else self.child.poll()
        if code is None:
            return ""
        return f" with exit code {code}" if code >= 0 else f", killed by signal {signal.Signals(-code).name}"


class Supervisor:
    """One run on one folder. stop: set when a signal asks it to end. patience_s: for the daemon's first answer."""

    def __init__(self, folder: Folder, tool: MpsTool, stop: threading.Event, patience_s: float = 30.0) -> None:
        self.folder = folder
        self.tool = tool
        self._stop = stop
        self._patience_s = patience_s
        self._lock: tuple[int, int] | None = None

    def run(self) -> None:
        """Return when it was told to end, by signal or by the folder. To be called in a process without threads.

        Raises MpsError when the daemon cannot be started, does not take a setting, or ended by itself; the folder then
        tells why.
        """
        with self._alone():
            if self._is_over():
                return
            try:
                self._serve()
            except MpsError as error:
                self._note(error)
                raise
            except OSError as error:
                told = MpsError(f"{self._name}: {error.strerror or error} ({error.filename or self.folder.path})")
                self._note(told)
                raise told from error

    def _note(self, error: MpsError) -> None:
        if self._is_ours():
            self.folder.note(Failure(str(error), isinstance(error, defaults.SettingRefused)))

    @property
    def _name(self) -> str:
        return f"MPS daemon {self.folder.path.name}"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock; a look at it by others takes it for an instant. Raises MpsError."""
        try:
            descriptor = os.open(self.folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MpsError(f"{self._name}: {self.folder.lock}: {error.strerror}") from error
        try:
            held = os.fstat(descriptor)
            self._lock = (held.st_dev, held.st_ino)
            deadline = time.monotonic() + _OTHER_S
            while not hostfs.try_lock(descriptor):
                if time.monotonic() > deadline or self._is_over():
                    raise MpsError(f"{self._name}: another supervisor has {self.folder.lock}")
                time.sleep(_ASK_S)
            yield
        finally:
            os.close(descriptor)

    def _serve(self) -> None:
        self.folder.set_ready(None)
        description = self.folder.description()
        if description is None:
            raise MpsError(f"{self._name}: {self.folder.path} has no daemon.json")
        control = self._control(description)
        daemon = self._taken_over(control) or self._started(control, description)
        answered = False
        try:
            answered = self._answers(daemon, control)
            if answered:
                defaults.make(description.daemon, lambda line: control.ask(line, _COMMAND_S))
                self.folder.set_ready(daemon.process.name)
                log.info("%s serves %s", self._name, ", ".join(description.daemon.devices))
                self._watch(daemon)
        finally:
            if self._is_ours():
                with contextlib.suppress(OSError):
                    self.folder.set_ready(None)
            self._end(daemon, control if answered else None)

    def _control(self, description: Description) -> Control:
        """How its programs are run, in a view of the folders where memory is mounted. Raises MpsError and OSError."""
        programs = self.tool.programs()
        self.tool.link_libraries(self.folder.path / "lib")
        seen = self.folder.path
        if description.mounted:
            if not os.path.ismount(self.folder.shm):
                raise MpsError(
                    f"{self._name}: nothing is mounted at {self.folder.shm}; the driver does so when it starts"
                )
            seen = mounts.own_view(self.folder.path, self.tool.root)
        return Control(programs, seen / "pipe", seen / "log", seen / "lib", self.folder.path)

    def _taken_over(self, control: Control) -> _Daemon | None:
        """The daemon that a killed supervisor left, if it answers; whatever else it left is killed."""
        found = running.control_daemon(self.folder.path)
        if found is not None:
            with contextlib.suppress(MpsError, ProcessLookupError):
                control.ask("get_server_list", _ANSWER_S)
                daemon = _Daemon(Process.of(found))
                log.info("%s is taken over: process %d", self._name, found)
                return daemon
        self._kill_members()
        return None

    def _started(self, control: Control, description: Description) -> _Daemon:
        self.folder.clear_pipe()
        # A file, not a pipe of ours: the daemon goes on when we are killed. Appended to, so that it can be cut.
        path = self.folder.log / OUTPUT
        path.unlink(missing_ok=True)
        with path.open("ab") as output:
            child = subprocess.Popen(
                control.command(description.daemon),
                env=control.environment(description.daemon),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return _Daemon(Process.of(child.pid), child)

    def _answers(self, daemon: _Daemon, control: Control) -> bool:
        """Wait for its first answer; False when it is to end. Raises MpsError when it ends, or time is over."""
        deadline = time.monotonic() + self._patience_s
        while not self._is_over():
            if daemon.process.has_ended(_ASK_S):
                raise self._died(daemon)
            try:
                control.ask("get_server_list", max(_ASK_S, min(_ANSWER_S, deadline - time.monotonic())))
            except MpsError as error:
                last = error
            else:
                return True
            if time.monotonic() > deadline:
                raise MpsError(f"{self._name} does not answer after {self._patience_s:g} s: {last}{self._last_words()}")
        return False

    def _watch(self, daemon: _Daemon) -> None:
        """Return when it is to end. Raises MpsError when the daemon has ended by itself."""
        output = self.folder.log / OUTPUT
        while not self._is_over():
            if daemon.process.has_ended(_LOOK_S):
                if self._is_over():
                    return
                raise self._died(daemon)
            with contextlib.suppress(OSError):
                if output.stat().st_size > _MOST_OUTPUT:
                    os.truncate(output, 0)

    def _is_over(self) -> bool:
        """A signal, the wish in the folder, or a folder that is gone: nobody could end the daemon later."""
        return self._stop.is_set() or self.folder.is_stopping() or not self._is_ours()

    def _is_ours(self) -> bool:
        """Whether the folder is still the one whose lock is held, and not gone or another of its name."""
        return hostfs.identity(self.folder.lock) == self._lock

    def _died(self, daemon: _Daemon) -> MpsError:
        return MpsError(f"{self._name}: {CONTROL} ended by itself{daemon.status}{self._last_words()}")

    def _last_words(self) -> str:
        try:
            text = (self.folder.log / OUTPUT).read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()]
        return f': "{shown_output(" / ".join(lines[-_TAIL_LINES:]))}"' if lines else ""

    def _end(self, daemon: _Daemon, control: Control | None) -> None:
        """Ask it to quit, which waits for its clients, then end it and its servers. Raises MpsError for what stays.

        control: None for a daemon that has answered nothing yet.
        """
        process = daemon.process
        if control is not None and not process.has_ended() and self._is_ours():
            with contextlib.suppress(MpsError):
                control.ask("quit", _QUIT_S)
            process.has_ended(_TERM_S)
        process.signal(signal.SIGTERM)
        process.has_ended(_TERM_S)
        if daemon.child is not None and daemon.child.returncode is None:
            # Not reaped yet, so that its id cannot name another group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.child.wait(_TERM_S)
        process.close()
        if self._is_ours():
            self._kill_members()
        # It leads a session, or did: what of that is still ending has the card.
        left = running.kill_all(lambda: running.of_session(process.pid), _GONE_S)
        if left:
            raise MpsError(f"{self._name}: its processes {left} do not end")
        log.info("%s has ended", self._name)

    def _kill_members(self) -> None:
        left = running.kill_all(lambda: running.members(self.folder.path))
        if left:
            raise MpsError(f"{self._name}: its processes {left} cannot be killed")
