"""Runs the bench on the first node of a cluster of hack/cluster: in its mounts, network and processes, as a driver is.

There it uses the cluster's API server as administrator, and the drivers that it starts have a service account.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.bench.errors import BenchError
from hack.cluster import driver as drivers
from hack.cluster.cluster import Cluster
from hack.cluster.errors import ClusterError

_OPTION: Final = "--cluster"


def run(directory: Path, arguments: Sequence[str]) -> int:
    """The bench's exit code. arguments: those of this bench, ``--cluster`` among them. Raises BenchError."""
    try:
        cluster = Cluster.attach(directory.absolute())
        node = cluster.nodes[0]
        kubeconfig = drivers.write_kubeconfig(cluster.api, cluster.files, node)
        where = node.machine.inside()
    except ClusterError as error:
        raise BenchError(str(error)) from error
    given = [f"--kubeconfig={cluster.files.kubeconfig}", f"--driver-kubeconfig={kubeconfig}", f"--node={node.name}"]
    command = [*where, sys.executable, "-m", "hack.bench", *without(arguments), *given]
    # A process group of its own: Ctrl-C would end nsenter at once, and not wait until the bench has put away.
    with subprocess.Popen(command, env={**os.environ, **drivers.environment()}, process_group=0) as outer:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: _terminate_children(outer.pid))
        return outer.wait()


def _terminate_children(pid: int) -> None:
    """nsenter forks into the node's processes and passes no signal on."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)


def without(arguments: Sequence[str]) -> list[str]:
    """Arguments but for ``--cluster``."""
    left: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == _OPTION:
            next(words, None)
        elif not word.startswith(f"{_OPTION}="):
            left.append(word)
    return left
