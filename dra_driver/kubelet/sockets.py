"""A gRPC server on a unix socket: clear what an earlier process left, listen, notice that the file is gone.

Knows nothing of the services it carries. Failures are StateError, or SettingError for an impossible path.
"""

import contextlib
import logging
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from dra_driver.hostfs import identity
from dra_driver.model.errors import SettingError, StateError

log = logging.getLogger(__name__)

MAX_PATH_BYTES: Final = 107
"""Linux: sun_path of struct sockaddr_un has 108 bytes, the last one is the terminating zero."""

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The limit that the kubelet's gRPC library has by default; a batch of 1,000 claims takes 150 KiB."""

_HIDDEN_BYTES: Final = 3
_HIDDEN: Final = re.compile(rf"\.[0-9a-f]{{{2 * _HIDDEN_BYTES}}}")
_LISTEN_SECONDS: Final = 0.05
"""From binding a socket to listening on it, generously."""

_HANDSHAKE_MS: Final = 10_000
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
)

_KINDS: Final = (
    (stat.S_ISREG, "a regular file"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
)


def target(path: Path) -> str:
    """gRPC's name for a unix socket; gRPC reads it as a URI, so odd characters are escaped."""
    return f"unix:{quote(os.fsencode(path), safe='/')}"


def check_length(path: Path) -> None:
    """Raises SettingError when a unix socket cannot have this path."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise SettingError(
            f"socket path {path} has {length} bytes, the limit is {MAX_PATH_BYTES}: "
            "use a shorter kubelet plugins or registrar directory"
        )


def clear_stale(path: Path) -> None:
    """Remove a socket that nobody serves any more.

    Raises StateError when another process serves it, when something else is there or when it cannot be told.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StateError(f"socket {path} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
        raise StateError(f"{path} is {kind}, want a socket or nothing at that path: move it away")
    if is_served(path):
        raise StateError(f"another instance is serving {path}: stop it first, or give each instance its pod UID")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"stale socket {path} cannot be removed: {error.strerror}") from error
    log.info("removed stale socket %s", path)


def sweep_stale(directory: Path, name: re.Pattern[str]) -> None:
    """Remove sockets whose whole name matches and that refuse connections. Never raises: what cannot be told stays.

    A pod that is killed leaves its sockets behind, and the next pod has other names. One that is killed while it starts
    leaves them hidden.
    """
    try:
        found = [path for path in directory.iterdir() if name.fullmatch(path.name) or _HIDDEN.fullmatch(path.name)]
    except OSError as error:
        log.debug("%s cannot be searched for stale sockets: %s", directory, error.strerror)
        return
    unserved = [(path, before) for path in found if _is_unserved(path) and (before := identity(path))]
    if unserved:
        # Looked at twice: another instance may listen in a moment, or have put its own in place meanwhile.
        time.sleep(_LISTEN_SECONDS)
    for path, before in unserved:
        if not _is_unserved(path) or identity(path) != before:
            continue
        try:
            path.unlink(missing_ok=True)
            log.info("removed stale socket %s, which nobody serves", path)
        except OSError as error:
            log.warning("stale socket %s cannot be removed: %s", path, error)


def _is_unserved(path: Path) -> bool:
    """Whether it is a socket, and nobody serves it for sure."""
    try:
        return stat.S_ISSOCK(path.lstat().st_mode) and not is_served(path)
    except FileNotFoundError:
        return False
    except (OSError, StateError) as error:
        log.warning("whether socket %s is stale cannot be told: %s", path, error)
        return False


def is_served(path: Path) -> bool:
    """Whether somebody listens at a socket. Never waits. Raises StateError when it cannot be told."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except BlockingIOError:
        # Somebody listens and is too busy to accept.
        return True
    except OSError as error:
        raise StateError(f"socket {path} cannot be probed: {error.strerror or error}") from error
    return True


class _Listening:
    """One gRPC server and the file it listens on."""

    def __init__(self, path: Path, add_services: Callable[[grpc.Server], None], workers: int) -> None:
        self._path = path
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix=f"grpc-{path.name}")
        self._server = grpc.server(self._executor, options=_OPTIONS)
        # Bound under a hidden name, which the kubelet skips, then renamed: nobody sees the socket before it
        # answers or with a wider mode, and gRPC, which removes the name it bound, spares a successor's file.
        hidden = path.with_name(f".{secrets.token_hex(_HIDDEN_BYTES)}")
        try:
            add_services(self._server)
            self._server.add_insecure_port(target(hidden))
            hidden.chmod(0o600)
            self._server.start()
            self._identity = identity(hidden)
            hidden.rename(path)
        except (RuntimeError, OSError) as error:
            self._server.stop(None)
            self._executor.shutdown(wait=False)
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            reason = f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else str(error)
            raise StateError(f"cannot listen on {path}: {reason}") from error

    def in_place(self) -> bool:
        return identity(self._path) == self._identity

    def remove_file(self) -> None:
        """Remove the file unless it is somebody else's by now."""
        if self.in_place():
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def stop(self, grace: float) -> None:
        self._server.stop(grace).wait()
        self._executor.shutdown(wait=False)


class SocketServer:
    """A gRPC server on a unix socket of mode 0600 that can be listened on anew when its file is lost."""

    def __init__(self, path: Path, add_services: Callable[[grpc.Server], None], workers: int) -> None:
        """``workers``: calls handled at the same time; more wait. Raises SettingError for a path too long."""
        check_length(path)
        self.path = path
        self._add_services = add_services
        self._workers = workers
        self._listening: _Listening | None = None

    def start(self, *, retire_seconds: float = 30.0) -> None:
        """Listen; calls that came over an earlier, lost file have ``retire_seconds`` to end.

        The directory must exist. Raises StateError.
        """
        if self._listening is None or not self._listening.in_place():
            clear_stale(self.path)
        old, self._listening = self._listening, _Listening(self.path, self._add_services, self._workers)
        if old is not None:
            threading.Thread(
                target=old.stop, args=(retire_seconds,), name=f"retire-{self.path.name}", daemon=True
            ).start()

    def in_place(self) -> bool:
        """Whether the file at the path is the socket that is listened on."""
        return self._listening is not None and self._listening.in_place()

    def remove_file(self) -> None:
        """Make the socket impossible to find; open connections stay."""
        if self._listening is not None:
            self._listening.remove_file()

    def stop(self, grace: float) -> None:
        """Refuse new calls, give running ones ``grace`` seconds, remove the file. Idempotent."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.stop(grace)
            listening.remove_file()
