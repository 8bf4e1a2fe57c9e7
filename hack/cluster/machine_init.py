"""The first process of a machine: makes its namespaces, then starts processes in them and reaps what ends.

Run as a program by ``machine.Machine``, with the path of a ``machine.json``; standard library only, so that it starts
fast and stays small. It prints its process id as the host sees it, and goes on in the background. When it is killed,
the kernel ends every process of the machine, and all its mounts go with the last of them.
"""

import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_RDONLY = 1
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MS_SHARED = 1 << 20
_START_TIME = 19
_REQUEST_LIMIT = 1 << 20

_CGROUPS = Path("/sys/fs/cgroup")

_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Set the machine up and leave its first process running. Exit code 1, and why, when that fails."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    join_cgroup(spec["cgroup"])
    if spec["network_of"]:
        with open(f"/proc/{spec['network_of']}/ns/net", "rb") as namespace:
            _checked(_libc.setns(namespace.fileno(), _CLONE_NEWNET), "setns")
    _checked(
        _libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWPID | spec["new_network"] * _CLONE_NEWNET), "unshare"
    )
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        _first_process(spec, tell)
    os.close(tell)
    with os.fdopen(told) as pipe:
        said = pipe.read()
    if said != "ready":
        print(said or "the machine's first process ended at once", file=sys.stderr)
        return 1
    print(child)
    return 0


def join_cgroup(group: str) -> None:
    """Move this process into ``group`` of each hierarchy, so that what it starts is below it. Raises OSError."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        number, controllers, _ = line.split(":", 2)
        folder = _hierarchy(number, controllers)
        # A group of the second version that hands controllers to pods may hold no process itself.
        inner = f"{group}/init" if folder == _CGROUPS else group
        for name in inner.split("/"):
            _hand_down(folder)
            folder /= name
            folder.mkdir(exist_ok=True)
            _inherit_cpus(folder)
        (folder / "cgroup.procs").write_text("0", encoding="ascii")


def _hierarchy(number: str, controllers: str) -> Path:
    """Where it is mounted: all of the second version at the root, or one folder for each of the first."""
    if number != "0":
        return _CGROUPS / controllers.removeprefix("name=")
    return _CGROUPS if (_CGROUPS / "cgroup.controllers").exists() else _CGROUPS / "unified"


def _hand_down(folder: Path) -> None:
    """Let groups below have all controllers of a group of the second version; the kubelet asks for them."""
    if not (_CGROUPS / "cgroup.controllers").exists():
        return
    for controller in (folder / "cgroup.controllers").read_text(encoding="ascii").split():
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
        except OSError:
            # Some cannot be handed down here; the kubelet names those that it misses.
            continue


def _inherit_cpus(folder: Path) -> None:
    """A new group of the first cgroup version has no CPUs, and no process can enter it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = folder / name
        if file.exists() and not (folder / "cgroup.controllers").exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text(), encoding="ascii")


def _first_process(spec: dict[str, Any], tell: int) -> None:
    try:
        os.setsid()
        host_proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        _mount_all(Path(spec["directory"]), spec["binds"], spec["shared"])
        socket.sethostname(spec["name"])
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        supervisor = Supervisor(Path(spec["directory"]), host_proc)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.write(tell, b"ready")
    except OSError as error:
        os.write(tell, f"machine {spec['name']}: {error}".encode())
        os._exit(1)
    os.close(tell)
    supervisor.serve()


def _mount_all(directory: Path, binds: dict[str, str], shared: list[str]) -> None:
    """Put the machine's own folders over the host's, but for those that are shared, and its own /proc."""
    _mount("", "/", _MS_REC | _MS_PRIVATE)
    for folder in shared:
        place = str(directory) + folder
        _mount(folder, place, _MS_BIND)
        _mount("", place, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    for target, source in binds.items():
        _mount(str(directory / source), target, _MS_BIND | _MS_REC)
    _mount("proc", "/proc", 0, "proc")
    _mount(str(directory / "boot_id"), "/proc/sys/kernel/random/boot_id", _MS_BIND)
    # What is mounted in a container with Bidirectional propagation must reach the kubelet and other containers.
    _mount("", "/", _MS_REC | _MS_SHARED)


def _mount(source: str, target: str, flags: int, kind: str = "") -> None:
    code = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    _checked(code, f"mount {source or kind} on {target}")


def _checked(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


class Supervisor:
    """Starts processes on request and keeps ``processes.json``: name -> pid on the host, start time, exit code."""

    def __init__(self, directory: Path, host_proc: int) -> None:
        self._host_proc = host_proc
        self._state = directory / "processes.json"
        self._known: dict[str, dict[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket's path may have 108 bytes only; the folder's may be longer.
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        (directory / "init.sock").unlink(missing_ok=True)
        self._listener.bind(f"/proc/self/fd/{folder}/init.sock")
        os.close(folder)
        self._listener.listen()

    def serve(self) -> None:
        """For ever."""
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is woken:
                        woken.recv(1024)
                    else:
                        self._answer()
                self._reap()

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(5.0)
            try:
                request = json.loads(_line(connection))
                answer = self._start(request)
            except (OSError, ValueError, KeyError) as error:
                answer = {"error": str(error)}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                return

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        if name in self._names.values():
            return {"error": f"{name} runs already"}
        known, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(known)
            _become(request, self._host_proc, tell)
        os.close(tell)
        with os.fdopen(known) as pipe:
            # Nothing after the pid: the pipe was closed by a successful execve.
            pid, _, problem = pipe.read().partition("\n")
        if problem or not pid:
            os.waitpid(child, 0)
            return {"error": problem or f"{name} ended before it was started"}
        self._names[child] = name
        self._known[name] = {"pid": int(pid), "started": self._start_time(pid), "code": None}
        self._keep()
        return self._known[name]

    def _start_time(self, pid: str) -> int:
        descriptor = os.open(f"{pid}/stat", os.O_RDONLY, dir_fd=self._host_proc)
        with os.fdopen(descriptor, errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[_START_TIME])

    def _reap(self) -> None:
        ended = False
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if child == 0:
                break
            name = self._names.pop(child, None)
            if name is not None:
                self._known[name]["code"] = os.waitstatus_to_exitcode(status)
                ended = True
        if ended:
            self._keep()

    def _keep(self) -> None:
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps(self._known, indent=1), encoding="utf-8")
        fresh.replace(self._state)


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(data) > _REQUEST_LIMIT:
            raise OSError("the request is not one line")
        data += part
    return data


def _become(request: dict[str, Any], host_proc: int, tell: int) -> None:
    """In the child: say which pid the host sees, then turn into the program."""
    try:
        os.setsid()
        # What Python sets to be ignored would stay ignored.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(request["cwd"])
        os.write(tell, f"{os.readlink('self', dir_fd=host_proc)}\n".encode())
        os.execve(request["argv"][0], request["argv"], request["env"])
    except OSError as error:
        os.write(tell, f"{request['argv'][0]}: {error}".encode())
    os._exit(127)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OSError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
