"""A simulated node whose MPS programs are the stand-ins, its daemons, and clients of them."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.devices import scenario
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps import running
from dra_driver.mps.description import Description
from dra_driver.mps.folders import Folder
from dra_driver.mps.mounts import KernelMounts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, namespaces and other users need root")

ID = "c0ffee00-0000-4000-8000-000000000001-abcde"
SECONDS = 20.0
"""For what comes at once on an idle machine."""

UUIDS = ("GPU-00000000-0000-4000-8000-00000000000a", "GPU-00000000-0000-4000-8000-00000000000b")
NOBODY = 65534


def daemon(**changes: Any) -> MpsDaemon:
    return MpsDaemon(**{"id": ID, "devices": UUIDS} | changes)


_OTHER_USER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
connection = socket.socket(socket.AF_UNIX)
connection.connect("control")
connection.sendall(sys.argv[2].encode() + b"\\n")
print(connection.makefile().read(), end="")
"""


class Node:
    """root: its driver tree. folder: that of the daemon with ID, once there is one."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "driver"
        self.mps = base / "mps"
        self.folder = Folder(self.mps / ID)
        self.behave()

    def behave(self, **ways: Any) -> None:
        """From now on a daemon that is started does so."""
        text = yaml.safe_dump(
            {
                "driver": {"version": "580.159.04"},
                "gpus": [
                    {
                        "count": 2,
                        "productName": "NVIDIA H200",
                        "architecture": "Hopper",
                        "cudaComputeCapability": "9.0",
                        "uuid": list(UUIDS),
                    }
                ],
                "mps": ways,
            }
        )
        SimulatedNode("mps", scenario.parse(text, "test")).materialise(self.root)

    def describe(self, wanted: MpsDaemon | None = None, mounted: bool = False) -> None:
        """A folder as the driver makes it, before a launcher is asked."""
        self.folder.make()
        if mounted:
            KernelMounts().mount(self.folder.shm)
        self.folder.describe(Description(wanted or daemon(), "process", mounted))

    @contextlib.contextmanager
    def supervisor(self, *flags: str) -> Iterator[subprocess.Popen[str]]:
        """``dra-driver mps-daemon`` on the folder; told to end at the end."""
        command = [sys.executable, "-m", "dra_driver", "mps-daemon", "--driver-root", str(self.root)]
        with subprocess.Popen(
            [*command, *flags, str(self.folder.path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    def control(self, line: str) -> tuple[int, str]:
        """Exit code and output of a command to the daemon."""
        done = subprocess.run(
            [self.root / "usr/bin/nvidia-cuda-mps-control"],
            input=f"{line}\n",
            env={"CUDA_MPS_PIPE_DIRECTORY": str(self.folder.pipe)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout

    def command_of(self, user: int, line: str) -> str:
        """What another user is answered, who need not be able to run our programs."""
        done = subprocess.run(
            [sys.executable, "-c", _OTHER_USER, str(user), line],
            cwd=self.folder.pipe,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        return done.stdout

    @contextlib.contextmanager
    def client(self) -> Iterator[socket.socket]:
        """A client that is being served."""
        with socket.socket(socket.AF_UNIX) as connection:
            connect(connection, self.folder.pipe)
            connection.settimeout(SECONDS)
            connection.sendall(b"client\n")
            assert connection.recv(100) == b"served\n"
            yield connection

    def processes(self) -> list[int]:
        """Supervisors, control daemon and servers of the folder."""
        return [*running.supervisors(self.folder.path), *running.members(self.folder.path)]

    def clean(self) -> None:
        """End what a test that failed has left."""
        running.kill_all(self.processes, SECONDS)
        if os.geteuid() == 0:
            KernelMounts().unmount(self.folder.shm)


def connect(connection: socket.socket, pipe: Path) -> None:
    descriptor = os.open(pipe, os.O_RDONLY | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/control")
    finally:
        os.close(descriptor)


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, what or "it did not come to be so"
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def on_disk() -> Iterator[Path]:
    """A directory that does not lie in /dev/shm, and whose name is not long."""
    base = Path(tempfile.mkdtemp(prefix="mps-", dir="/var/tmp"))
    try:
        yield base
    finally:
        shutil.rmtree(base)
