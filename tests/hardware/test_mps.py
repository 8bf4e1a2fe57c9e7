"""NVIDIA's MPS daemons on a real card, as the driver runs them: ``pytest -m hardware tests/hardware``, as root.

Nothing is set on the card: it stays in compute mode DEFAULT, in which MPS works as well.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver import hostfs
from dra_driver.devices.nvml import NvmlSource
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import MpsError
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps import running
from dra_driver.mps.daemons import Daemons
from dra_driver.mps.folders import Folder
from dra_driver.mps.process import ProcessLauncher
from dra_driver.mps.tool import MpsTool

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on this machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root"),
    pytest.mark.timeout(300),
]

ID = "c0ffee00-0000-4000-8000-000000000001-abcde"
USER = 1000
SECONDS = 60.0
OUT_OF_MEMORY = 2

CLIENT = r"""
import ctypes, json, os, subprocess, sys
from pathlib import Path
from dra_driver.mps.mounts import own_view

library, folder, root, user = sys.argv[1:]
if folder:
    # What a container sees: the pipe directory at a path of its own, and the daemon's memory as /dev/shm.
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(own_view(Path(folder), Path(root)) / "pipe")
else:
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
os.setgroups([]), os.setgid(int(user)), os.setuid(int(user))
cuda = ctypes.CDLL(library)

def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        print(json.dumps({"failed": name, "code": code}), flush=True)
        sys.exit(1)

device, context, sms = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuDeviceGetAttribute", ctypes.byref(sms), 16, device)

def allocate(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(mib << 20))

print(json.dumps({"pid": os.getpid(), "sms": sms.value, "small": allocate(1000), "large": allocate(3000)}), flush=True)
for line in sys.stdin:
    if line.startswith("control "):
        done = subprocess.run([os.environ["CONTROL"]], input=line[8:], capture_output=True, text=True)
        print(json.dumps([done.returncode, done.stdout + done.stderr]), flush=True)
    else:
        print(json.dumps(cuda.cuCtxSynchronize()), flush=True)
"""


class Client:
    """A CUDA program. ask: a line to it, and what it answers."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.told = self._read()

    def ask(self, line: str = "synchronize") -> object:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Card:
    """A card in mode DEFAULT, its driver's programs, and a daemon for it."""

    def __init__(self, base: Path, root: Path, uuid: str) -> None:
        self.root, self.uuid = root, uuid
        self.tool = MpsTool(root)
        self.folder = Folder(base / "mps" / ID)
        self.launcher = ProcessLauncher(root)
        self.daemons = Daemons(base / "mps", self.tool, self.launcher)

    def daemon(self, **settings) -> MpsDaemon:
        return MpsDaemon(id=ID, devices=(self.uuid,), **settings)

    def served(self, **settings) -> None:
        self.daemons.start(self.daemon(**settings))
        self.daemons.wait(ID, SECONDS)

    @contextlib.contextmanager
    def client(self, user: int = USER, served: bool = True) -> Iterator[Client]:
        programs = self.tool.programs()
        arguments = [str(programs.library), str(self.folder.path) if served else "", str(self.root), str(user)]
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, *arguments],
            env=os.environ
            | {"PYTHONPATH": paths, "LD_LIBRARY_PATH": str(programs.library.parent), "CONTROL": str(programs.control)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Client(process)
            finally:
                process.kill()

    def processes(self) -> list[int]:
        return [*running.supervisors(self.folder.path), *running.members(self.folder.path)]


def mps_programs() -> set[str]:
    """Process ids of all MPS programs of the machine, whoever's they are, but for those that are only to be reaped."""
    return {stat.parent.name for stat in Path("/proc").glob("[0-9]*/stat") if runs_mps(stat)}


def runs_mps(stat: Path) -> bool:
    try:
        program, _, fields = stat.read_text().partition("(")[2].rpartition(")")
    except OSError:
        return False
    return program.startswith("nvidia-cuda-mps") and fields.split()[0] != "Z"


def driver_root() -> Path:
    control = Path(shutil.which("nvidia-cuda-mps-control") or "/")
    for root in (Path("/"), control.parent.parent, Path("/usr/local/nvidia")):
        with contextlib.suppress(MpsError):
            MpsTool(root).programs()
            return root
    pytest.skip("no MPS programs on this machine")


@pytest.fixture
def card() -> Iterator[Card]:
    source = NvmlSource()
    fit = [gpu for gpu in source.scan().gpus if gpu.compute_mode is ComputeMode.DEFAULT and not gpu.mig_enabled]
    if not fit:
        pytest.skip("no card in compute mode DEFAULT and without MIG")
    others = mps_programs()
    base = Path(tempfile.mkdtemp(prefix="mps-", dir="/var/tmp"))
    made = Card(base, driver_root(), fit[0].uuid)
    try:
        yield made
        made.daemons.stop(ID, SECONDS)
        assert made.processes() == []
        assert mps_programs() <= others
        assert not made.folder.path.exists()
        assert str(base) not in Path("/proc/self/mountinfo").read_text()
        assert source.compute_mode(made.uuid) is ComputeMode.DEFAULT
    finally:
        running.kill_all(made.processes)
        made.launcher.close()
        with contextlib.suppress(MpsError):
            made.daemons.stop(ID, SECONDS)
        shutil.rmtree(base)
        source.close()


def test_one_server_serves_two_clients_with_their_share_and_limit(card: Card) -> None:
    with card.client(served=False) as alone:
        whole = alone.told
        assert (whole["small"], whole["large"]) == (0, 0)
    card.served(thread_percentage=25, memory_limits=((card.uuid, "2048M"),))
    with card.client() as one, card.client() as other:
        for client in (one, other):
            assert whole["sms"] * 0.2 <= client.told["sms"] <= whole["sms"] * 0.26
            assert (client.told["small"], client.told["large"]) == (0, OUT_OF_MEMORY)
            assert client.ask() == 0
        code, servers = one.ask("control get_server_list")
        assert (code, len(servers.split())) == (0, 1)
        # Found by the environment that it has from the daemon.
        assert int(servers) in card.processes()
        clients = one.ask(f"control get_client_list {servers.strip()}")[1].split()
        assert {str(one.told["pid"]), str(other.told["pid"])} <= set(clients)


def test_user_who_is_not_root_may_ask_and_not_quit(card: Card) -> None:
    card.served(thread_percentage=25)
    with card.client() as client:
        assert client.ask("control get_default_active_thread_percentage") == [0, "25.0\n"]
        assert "Not enough privilege" in client.ask("control quit")[1]
        client.ask("control set_default_active_thread_percentage 90")
        assert client.ask("control get_default_active_thread_percentage") == [0, "25.0\n"]
        assert card.daemons.serves(ID)


@pytest.mark.parametrize("limit", ["100M", "1024M", "1500M", "2047M", "3G", "20000M"])
def test_daemon_shows_a_limit_as_the_driver_understands_it(card: Card, limit: str) -> None:
    card.served(memory_limits=((card.uuid, limit),))


@pytest.mark.parametrize("percentage", [0, 1, 33, 100])
def test_daemon_shows_a_percentage_as_the_driver_understands_it(card: Card, percentage: int) -> None:
    card.served(thread_percentage=percentage)


def test_users_share_one_server_where_the_daemon_is_for_several(card: Card) -> None:
    card.served(multi_user=True)
    with card.client(0) as root, card.client(USER) as other:
        assert len(root.ask("control get_server_list")[1].split()) == 1
        assert (root.ask(), other.ask()) == (0, 0)


def test_stop_with_a_client_ends_everything(card: Card) -> None:
    card.served()
    with card.client() as client:
        assert client.told["small"] == 0
        card.daemons.stop(ID, SECONDS)
        assert card.processes() == []
    with card.client(served=False) as after:
        assert after.told["small"] == 0


def test_killed_supervisor_harms_no_client_and_the_next_takes_the_daemon_over(card: Card) -> None:
    card.served(thread_percentage=25)
    with card.client() as client:
        daemon = running.control_daemon(card.folder.path)
        for pid in running.supervisors(card.folder.path):
            os.kill(pid, signal.SIGKILL)
        gone = time.monotonic() + SECONDS
        while card.daemons.serves(ID):
            assert time.monotonic() < gone
        card.daemons.wait(ID, SECONDS)
        assert running.control_daemon(card.folder.path) == daemon
        assert client.ask() == 0


def test_killed_daemon_comes_back_and_serves_new_clients(card: Card) -> None:
    card.served(thread_percentage=25)
    with card.client() as client:
        assert client.told["small"] == 0
        daemon = running.control_daemon(card.folder.path)
        assert daemon is not None
        os.kill(daemon, signal.SIGKILL)
        gone = time.monotonic() + SECONDS
        while running.control_daemon(card.folder.path) in (None, daemon):
            assert time.monotonic() < gone
    card.daemons.wait(ID, SECONDS)
    with card.client() as client:
        assert client.told["small"] == 0


def test_programs_are_those_under_the_driver_root(card: Card) -> None:
    card.daemons.check()
    assert card.tool.programs().control == hostfs.find_binary(card.root, "nvidia-cuda-mps-control")
