"""The stand-in nvidia-cuda-mps-control and -server: programs of their own, with real sockets, files and privileges.

``stand_in`` copies this text into the driver tree of a simulated node. What it prints, and that exit codes say
nothing, is as driver 580 has it. A client is a connection to ``control`` that sends ``client`` and stays; it is served
when it is told ``served``.
"""

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Ways(TypedDict):
        """A scenario's ``Mps``."""

        delay_ms: int
        dies_at_start: bool
        dies_after_ms: int
        never_answers: bool
        refuses: list[str]
        ignores_quit: bool


PERCENTAGE = "default_active_thread_percentage"
LIMIT = "default_device_pinned_mem_limit"
DAY_S = 86400.0
LOOK_S = 0.05
SOCKETS = (("control", 0o666), ("control_privileged", 0o755))


class Ended(Exception):
    """The program is over. code: the exit code."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def main(ways: "Ways") -> None:
    """Carry out the command line and end the process."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - as the real one
    code = 0
    try:
        if os.path.basename(sys.argv[0]) == "nvidia-cuda-mps-server":
            time.sleep(DAY_S)
        elif not sys.argv[1:]:
            command(pipe)
        elif set(sys.argv[1:]) <= {"-f", "-M"} and "-f" in sys.argv:
            Daemon(pipe, ways, "-M" in sys.argv).serve()
        else:
            raise Ended(1, "Only -f, and -M with it, work here.")
    except Ended as ended:
        code = ended.code
        print(ended, end="\n" if str(ended) else "", file=sys.stderr, flush=True)  # noqa: T201
    except OSError as error:
        code = 1
        print(f"{sys.argv[0]}: {error}", file=sys.stderr, flush=True)  # noqa: T201
    sys.stdout.flush()
    os._exit(code)


def command(pipe: str) -> None:
    """Send each line of standard input and print what comes back. Raises Ended where no daemon is."""
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                with reachable(pipe, "control") as path:
                    connection.connect(path)
            except OSError as error:
                raise Ended(1, "Cannot find MPS control daemon process") from error
            connection.sendall(line.encode())
            while answer := connection.recv(4096):
                print(answer.decode(), end="", flush=True)  # noqa: T201


@contextlib.contextmanager
def reachable(folder: str, name: str) -> Iterator[str]:
    """A path of a socket that is short enough, wherever the simulated node lies."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class Daemon:
    """The control daemon: one socket for commands and clients, one server for the clients of one user."""

    def __init__(self, pipe: str, ways: "Ways", multi_user: bool) -> None:
        self.pipe, self.ways, self.multi_user = pipe, ways, multi_user
        self.percentage = 100.0
        self.limits: dict[str, str] = {}
        self.clients: list[tuple[socket.socket, int]] = []
        self.waiting: list[tuple[socket.socket, int]] = []
        self.quitting: list[socket.socket] = []
        self.server = 0
        self.selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve until it is told to quit, or is to die. Raises Ended and OSError."""
        if self.ways["dies_at_start"]:
            raise Ended(1, "Failed to initialize MPS: the scenario says so")
        began = time.monotonic()
        held = self._alone()
        listeners = [self._listener(name, mode) for name, mode in SOCKETS]
        self._files()
        self._log("Starting control daemon using socket " + f"{self.pipe}/control")
        time.sleep(self.ways["delay_ms"] / 1000)
        while True:
            for key, _ in self.selector.select(LOOK_S):
                key.data(key.fileobj)
            lasted = (time.monotonic() - began) * 1000
            if self.ways["dies_after_ms"] and lasted > self.ways["dies_after_ms"]:
                raise Ended(1, "Fatal error: the scenario says so")
            if self.quitting and not self.clients and not self.waiting:
                self._log("Exit")
                self._end_server()
                for one in (*self.quitting, *listeners):
                    one.close()
                os.close(held)
                raise Ended(0)

    def _alone(self) -> int:
        descriptor = os.open(f"{self.pipe}/control_lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.fchmod(descriptor, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Ended(1, "An instance of this daemon is already running") from error
        return descriptor

    def _listener(self, name: str, mode: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        with reachable(self.pipe, name) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, mode)
        listener.listen(64)
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        return listener

    def _files(self) -> None:
        pid = f"{self.pipe}/nvidia-cuda-mps-control.pid"
        with open(pid, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
        os.chmod(pid, 0o666)  # noqa: S103 - as the real one
        with contextlib.suppress(FileExistsError):
            os.mkfifo(f"{self.pipe}/log")
            os.chmod(f"{self.pipe}/log", 0o777)  # noqa: S103 - as the real one

    def _log(self, text: str) -> None:
        print(f"[{time.strftime('%F %T')} Control {os.getpid()}] {text}", file=sys.stderr, flush=True)  # noqa: T201

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self.selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        try:
            line = connection.recv(4096).decode().strip()
        except OSError:
            line = ""
        if not line or line != "client":
            self.selector.unregister(connection)
        if not line:
            self._gone(connection)
        elif self.ways["never_answers"]:
            self.waiting.append((connection, -1))
        else:
            self._carry_out(connection, line.split(), user_of(connection))

    def _carry_out(self, connection: socket.socket, words: list[str], user: int) -> None:
        if words == ["client"]:
            self.waiting.append((connection, user))
            self._admit()
            return
        if words[0] == "quit" and user == os.getuid():
            # Nothing is answered before the clients have gone.
            self.quitting.append(connection)
            if self.ways["ignores_quit"]:
                self.waiting.append((connection, -1))
            return
        text = self._answer(words, user)
        with contextlib.suppress(OSError):
            connection.sendall(f"{text}\n".encode() if text else b"")
        connection.close()

    def _answer(self, words: list[str], user: int) -> str:
        name, arguments = words[0], words[1:]
        if name == "quit" or (name.startswith("set_") and user != os.getuid()):
            return refusal(name, user)
        if name == f"set_{PERCENTAGE}" and len(arguments) == 1:
            self._set_percentage(arguments[0])
            return str(self.percentage)
        if name == f"set_{LIMIT}" and len(arguments) == 2:
            self._set_limit(*arguments)
            return ""
        answers = {
            f"get_{PERCENTAGE}": str(self.percentage),
            f"get_{LIMIT}": self.limits.get("".join(arguments), ""),
            "get_server_list": str(self.server or ""),
            "get_server_status": "ACTIVE" if arguments == [str(self.server)] else "Server not found",
        }
        return answers.get(name, f'Unknown command "{name}"')

    def _set_percentage(self, text: str) -> None:
        if f"set_{PERCENTAGE}" not in self.ways["refuses"]:
            asked = float(text)
            self.percentage = asked if 0 < asked <= 100 else 100.0

    def _set_limit(self, device: str, amount: str) -> None:
        if device not in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","):
            self._log(f"Invalid device identifier format: {device}")
        elif f"set_{LIMIT}" not in self.ways["refuses"]:
            # What does not fill a unit is cut off where it is shown.
            number, unit = int(amount[:-1]), amount[-1]
            self.limits[device] = f"{number // 1024}G" if unit == "M" and number >= 1024 else amount

    def _gone(self, connection: socket.socket) -> None:
        self.clients = [client for client in self.clients if client[0] is not connection]
        self.waiting = [client for client in self.waiting if client[0] is not connection]
        connection.close()
        self._admit()

    def _admit(self) -> None:
        """Serve who waits: clients of another user only when those of the first have gone, or with -M."""
        for client in list(self.waiting):
            if client[1] < 0 or (self.clients and not self.multi_user and client[1] != self.clients[0][1]):
                continue
            self.waiting.remove(client)
            self.clients.append(client)
            if not self.server:
                self.server = os.posix_spawnp("nvidia-cuda-mps-server", ["nvidia-cuda-mps-server"], os.environ)
                self._log(f"NEW SERVER {self.server}")
            with contextlib.suppress(OSError):
                client[0].sendall(b"served\n")

    def _end_server(self) -> None:
        if self.server:
            os.kill(self.server, signal.SIGTERM)
            os.waitpid(self.server, 0)


def refusal(name: str, user: int) -> str:
    """What a user hears who may only ask."""
    return (
        "Not enough privilege to execute quit command" if name == "quit" else f"Insufficient privileges for UID {user}"
    )


def user_of(connection: socket.socket) -> int:
    """User id of the other side."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(user)
