"""The control groups that a cluster's processes are in: who is there, and their removal. Both versions of cgroups."""

import os
import time
from pathlib import Path
from typing import Final

from hack.cluster.errors import ClusterError, NotReady
from hack.cluster.processes import LOOK_S, Process, kill_all, start_time

_ROOT: Final = Path("/sys/fs/cgroup")
_END_S: Final = 30.0
_TRIES: Final = 100


def processes(group: str) -> list[Process]:
    """Processes in a group, as ``dra-cluster-1/node-1``, and below it."""
    pids = {pid for folder in _folders(group) for pid in _members(folder)}
    found = [(pid, start_time(pid)) for pid in sorted(pids)]
    return [Process(pid, started) for pid, started in found if started is not None]


def kill(group: str) -> None:
    """SIGKILL for all of them, until none is left. Raises NotReady."""
    for _ in range(_TRIES):
        found = processes(group)
        if not found:
            return
        kill_all(found, _END_S)
    raise NotReady(f"processes of cgroup {group} keep coming back")


def remove(group: str) -> None:
    """Remove a group without processes, and those below it, from all hierarchies. Raises ClusterError."""
    for folder in _folders(group):
        _remove(folder)


def _folders(group: str) -> list[Path]:
    """In all hierarchies, the innermost first."""
    roots = [_ROOT / group, *_ROOT.glob(f"*/{group}")]
    return [Path(folder) for root in roots if root.is_dir() for folder, _, _ in os.walk(root, topdown=False)]


def _members(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split() if pid != "0"]
    except OSError:
        return []


def _remove(folder: Path) -> None:
    for _ in range(_TRIES):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            # The kernel lets go of a group a moment after its last process.
            time.sleep(LOOK_S)
    raise ClusterError(f"cgroup {folder} cannot be removed, processes: {_members(folder) or 'none'}")
