"""A machine within this one: own mounts, processes and host name, and the network it makes or shares.

Its ``/run``, ``/var`` and ``/etc`` are folders of its own, so that programs find their files at the usual paths and
leave nothing on the host. Killing its first process ends it as a power cut would.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hack.cluster import cgroups, machine_init
from hack.cluster.commands import run
from hack.cluster.errors import ClusterError, NotReady
from hack.cluster.processes import LOOK_S, Process, start_time

BINDS: Final = {"/run": "run", "/var": "var", "/etc": "etc"}
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ETC_COPIED: Final = (
    "group",
    "hosts",
    "ld.so.cache",
    "localtime",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "protocols",
)
_ETC_SHARED: Final = ("alternatives", "ca-certificates", "pki", "ssl")
"""Folders of the host, read only."""

_BOOT_S: Final = 30.0
_HALT_S: Final = 30.0
_ASK_S: Final = 10.0


class Machine:
    """One machine below a directory. Nothing is kept in memory: another process can go on with it."""

    def __init__(self, name: str, directory: Path, logs: Path, cgroup: str) -> None:
        """cgroup: below the root of each hierarchy, as ``dra-cluster-1/node-1``."""
        self.name = name
        self.directory = directory
        self.logs = logs
        self.cgroup = cgroup

    @property
    def init(self) -> Process:
        """The first process. Raises ClusterError when the machine was not booted."""
        try:
            found = json.loads((self.directory / "init.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ClusterError(f"machine {self.name} was not booted") from None
        return Process(found["pid"], found["started"])

    @property
    def running(self) -> bool:
        """Whether it was booted and not halted."""
        return (self.directory / "init.json").exists() and self.init.alive()

    def boot(self, network_of: int | None = None) -> None:
        """Start it, with an empty /run and a new boot id, in the network of a process or one of its own.

        Raises ClusterError.
        """
        self._prepare()
        spec = {
            "name": self.name,
            "directory": str(self.directory),
            "cgroup": self.cgroup,
            "binds": BINDS,
            "shared": [f"/etc/{name}" for name in _ETC_SHARED if Path("/etc", name).is_dir()],
            "network_of": network_of,
            "new_network": network_of is None,
        }
        file = self.directory / "machine.json"
        file.write_text(json.dumps(spec), encoding="utf-8")
        done = run([sys.executable, "-I", "-S", machine_init.__file__, str(file)], _BOOT_S)
        pid = int(done)
        started = start_time(pid)
        if started is None:
            raise ClusterError(f"machine {self.name} ended at once")
        _write_json(self.directory / "init.json", {"pid": pid, "started": started})

    def halt(self) -> None:
        """Power cut: all its processes are killed, its mounts are gone. Idempotent. Raises NotReady."""
        if self.running:
            self.init.signal(signal.SIGKILL)
            self.init.wait_gone(_HALT_S)
        (self.directory / "init.json").unlink(missing_ok=True)
        # Groups of containers that are gone would hold up the next kubelet for seconds each.
        cgroups.remove(self.cgroup)

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str = "/", log: str = ""
    ) -> Process:
        """Start a program in it; its output is added to ``logs/<machine>-<name>.log``. Raises ClusterError."""
        answer = self._ask(
            {
                "name": name,
                "argv": list(argv),
                "env": {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})},
                "cwd": cwd,
                "log": log or str(self.log(name)),
            }
        )
        return Process(answer["pid"], answer["started"])

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.logs / f"{self.name}-{name}.log"

    def processes(self) -> dict[str, Process]:
        """What was started in it since it was booted, by name; some may have ended."""
        return {name: Process(found["pid"], found["started"]) for name, found in self._known().items()}

    def exit_code(self, name: str) -> int | None:
        """How a process ended, negative for a signal; None while it runs. Raises ClusterError."""
        known = self._known()
        if name not in known:
            raise ClusterError(f"machine {self.name} has no process {name!r}, only {', '.join(known) or 'none'}")
        code: int | None = known[name]["code"]
        return code

    def check(self, name: str) -> None:
        """Raises ClusterError with its last lines when a process has ended."""
        code = self.exit_code(name)
        if code is not None:
            raise ClusterError(f"{name} on {self.name} ended with exit code {code}: {tail(self.log(name))}")

    def end(self, name: str, number: int = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Signal a process and wait; its exit code. Raises ClusterError when it does not end in time."""
        process = self.processes().get(name)
        if process is not None:
            process.signal(number)
        deadline = time.monotonic() + seconds
        while (code := self.exit_code(name)) is None:
            if time.monotonic() > deadline:
                raise NotReady(f"{name} on {self.name} did not end within {seconds:g} s of signal {number}")
            time.sleep(LOOK_S)
        return code

    def run(self, argv: Sequence[str], seconds: float = 60.0, text: str | None = None) -> str:
        """Run a program inside and return what it prints. Raises ClusterError."""
        return run([*self.inside(), *argv], seconds, text=text)

    def inside(self) -> list[str]:
        """What to put before a command so that it runs in the machine's mounts, network and processes."""
        return ["nsenter", f"--target={self.init.pid}", "--mount", "--net", "--pid", "--uts", "--wd=/", "--"]

    def path(self, inside: str) -> Path:
        """Where the host sees a file of the machine. Only /run, /var and /etc differ."""
        for target, source in BINDS.items():
            if inside == target or inside.startswith(target + "/"):
                return self.directory / source / inside[len(target) + 1 :]
        return Path(inside)

    @property
    def boot_id(self) -> str:
        """The boot id that its processes read."""
        return (self.directory / "boot_id").read_text(encoding="ascii").strip()

    def _prepare(self) -> None:
        shutil.rmtree(self.directory / "run", ignore_errors=True)
        for name in ("run/lock", "var/lib", "var/log", "var/tmp", "var/cache"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "var/tmp").chmod(0o1777)
        if not (self.directory / "etc").exists():
            _write_etc(self.directory / "etc")
            (self.directory / "var/run").symlink_to("../run")
        (self.directory / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
        (self.directory / "processes.json").unlink(missing_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)

    def _known(self) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = json.loads((self.directory / "processes.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_ASK_S)
                connection.connect(f"/proc/self/fd/{folder}/init.sock")
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile() as file:
                    answer: dict[str, Any] = json.loads(file.readline())
        except (OSError, ValueError) as error:
            raise ClusterError(f"machine {self.name} does not answer: {error}") from error
        finally:
            os.close(folder)
        if "error" in answer:
            raise ClusterError(f"machine {self.name}: {answer['error']}")
        return answer


def tail(log: Path, lines: int = 5) -> str:
    """The end of a log, in one line."""
    try:
        found = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return str(error)
    return " | ".join(found[-lines:]) or "no output"


def _write_etc(folder: Path) -> None:
    """What programs want to find there; all the rest of the host's is left out."""
    for name in _ETC_SHARED:
        (folder / name).mkdir(parents=True)
    for name in _ETC_COPIED:
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), folder)
    (folder / "machine-id").write_text(secrets.token_hex(16) + "\n", encoding="ascii")
    (folder / "resolv.conf").write_text("# No names are resolved in this cluster.\n", encoding="ascii")


def _write_json(path: Path, value: object) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(value), encoding="utf-8")
    fresh.replace(path)
