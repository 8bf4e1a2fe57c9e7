"""The folder of one daemon: what lies in it, and what it tells. The layout is known here only.

pipe, log, shm: what the daemon uses. daemon.json: its description. lock: held by the supervisor. ready: it serves, with
its settings made. failure: why it did not the last time. stopping: it is to end, and not to be started again.
"""

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver import hostfs
from dra_driver.model.errors import MpsError
from dra_driver.mps.description import Description, checked_id, decode

_MODES: Final = {"pipe": 0o755, "log": 0o700, "shm": 0o1777}
_DESCRIPTION: Final = "daemon.json"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a daemon does not serve. final: to wait for another try is no use."""

    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """A daemon's folder by its path; whether it exists is asked of the disk each time."""

    path: Path

    @classmethod
    def of(cls, root: Path, daemon_id: str) -> "Folder":
        """The folder below ``mps``. Raises MpsError for what is no id, such as a path."""
        return cls(root / checked_id(daemon_id))

    @property
    def pipe(self) -> Path:
        """Sockets and pipes of the daemon."""
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        """What the daemon writes down."""
        return self.path / "log"

    @property
    def shm(self) -> Path:
        """Where its memory is mounted."""
        return self.path / "shm"

    @property
    def lock(self) -> Path:
        """The file that a running supervisor has locked."""
        return self.path / "lock"

    def make(self) -> None:
        """Make it, or what is missing of it. Raises OSError."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        for name, mode in _MODES.items():
            folder = self.path / name
            folder.mkdir(exist_ok=True)
            # Whatever the umask is, or a kill came before: clients of any user come to the sockets.
            folder.chmod(mode)

    def clear_pipe(self) -> None:
        """Take away what an earlier daemon left there, and what containers put there. Raises OSError."""
        for entry in self.pipe.iterdir():
            _remove(entry)

    def describe(self, description: Description) -> None:
        """Write daemon.json, the last part of a folder that is whole. Raises OSError, MpsError."""
        hostfs.write_atomically(self.path / _DESCRIPTION, description.encode(), mode=0o600)

    def description(self) -> Description | None:
        """What daemon.json says, None without one. Raises MpsError when it cannot be read."""
        try:
            text = (self.path / _DESCRIPTION).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise MpsError(f"MPS daemon {self.path.name}: {self.path / _DESCRIPTION}: {error.strerror}") from error
        return decode(text, self.path.name)

    def is_supervised(self) -> bool:
        """Whether a supervisor runs, in whatever container. Never raises."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not hostfs.try_lock(descriptor, shared=True)
        finally:
            os.close(descriptor)

    def serves(self) -> bool:
        """Whether the daemon serves, with its settings made. Never raises."""
        # A supervisor that was killed leaves the file, never the lock.
        return (self.path / "ready").exists() and not self.is_stopping() and self.is_supervised()

    def session(self) -> str:
        """Which run of the daemon serves now, '' when none does. Never raises."""
        try:
            text = (self.path / "ready").read_text()
        except (OSError, ValueError):
            return ""
        return text if self.serves() else ""

    def set_ready(self, session: str | None) -> None:
        """Say that it serves, and which run of it does; None that it does no more. Raises OSError."""
        if session is None:
            (self.path / "ready").unlink(missing_ok=True)
        else:
            (self.path / "failure").unlink(missing_ok=True)
            hostfs.write_atomically(self.path / "ready", session.encode(), mode=0o600)

    def failure(self) -> Failure | None:
        """Why it did not serve the last time; None when it does, or has not been tried. Never raises."""
        try:
            raw = json.loads((self.path / "failure").read_bytes())
            return Failure(str(raw["text"]), raw["final"] is True)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def note(self, failure: Failure | None) -> None:
        """Write down why it does not serve, or take that away. A folder that is gone is told nothing."""
        with contextlib.suppress(OSError):
            if failure is None:
                (self.path / "failure").unlink(missing_ok=True)
            else:
                raw = {"text": failure.text, "final": failure.final}
                hostfs.write_atomically(self.path / "failure", json.dumps(raw).encode(), mode=0o600)

    def is_stopping(self) -> bool:
        """Whether it is to end."""
        return (self.path / "stopping").exists()

    def set_stopping(self) -> None:
        """Tell the supervisor, and every later one, to end. A folder that is gone tells nobody. Raises OSError."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            hostfs.write_atomically(self.path / "stopping", b"", mode=0o600)

    def remove(self) -> None:
        """Take it away, daemon.json and the wish to end last: what is left by a kill still tells. Raises OSError."""
        last = (_DESCRIPTION, "stopping")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in sorted(
                self.path.iterdir(), key=lambda entry: last.index(entry.name) if entry.name in last else -1
            ):
                _remove(entry)
            self.path.rmdir()


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
