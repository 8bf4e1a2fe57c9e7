"""Removes a cluster whatever state it is in: also one whose start was cut short, or that an older program started.

Everything is found by the cluster's directory: machines by the process ids kept below it, strays by the cgroup, and
the host's network interface, that are named after it.
"""

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from hack.cluster import cgroups, network
from hack.cluster.commands import run
from hack.cluster.errors import ClusterError
from hack.cluster.processes import Process, kill_all

STATE: Final = "cluster.json"

_END_S: Final = 30.0
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def identity(directory: Path) -> str:
    """Eight hex digits that name what a cluster has outside its directory."""
    return hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()[:8]


def cgroup(directory: Path) -> str:
    """The group, below the root of each hierarchy, that all its processes are in."""
    return f"dra-cluster-{identity(directory)}"


def link(directory: Path) -> str:
    """The network interface on the host."""
    return f"dra-{identity(directory)}"


def remove(directory: Path, keep_logs: bool = False) -> None:
    """End all processes, remove mounts, network, cgroups and files. Idempotent. Raises ClusterError.

    keep_logs: leave ``logs``. A directory that holds no cluster is left alone.
    """
    directory = directory.absolute()
    if directory.exists() and not (directory / STATE).exists() and any(directory.iterdir()):
        raise ClusterError(f"{directory} holds no cluster: found files but no {STATE}; name another directory")
    kill_all(machines(directory), _END_S)
    # What was started before its machine was written down.
    cgroups.kill(cgroup(directory))
    network.disconnect(link(directory))
    for mounted in sorted(mounts_below(directory, Path("/proc/self/mountinfo").read_text("utf-8")), reverse=True):
        _unmount(mounted)
    cgroups.remove(cgroup(directory))
    _remove_files(directory, keep_logs)


def machines(directory: Path) -> list[Process]:
    """First processes of the machines that are running."""
    found = []
    for file in sorted(directory.glob("*/init.json")):
        with suppress(ValueError, KeyError):
            kept = json.loads(file.read_text(encoding="utf-8"))
            found.append(Process(kept["pid"], kept["started"]))
    return [process for process in found if process.alive()]


def processes(directory: Path) -> list[Process]:
    """All processes of the cluster, containers' too."""
    return cgroups.processes(cgroup(directory))


def mounts_below(directory: Path, mountinfo: str) -> list[str]:
    """Mount points at and below a directory, from the text of /proc/PID/mountinfo."""
    points = [_OCTAL.sub(lambda found: chr(int(found[1], 8)), line.split()[4]) for line in mountinfo.splitlines()]
    return [point for point in points if Path(point).is_relative_to(directory)]


def _unmount(point: str) -> None:
    run(["umount", "--lazy", point], _END_S)


def _remove_files(directory: Path, keep_logs: bool) -> None:
    if not directory.exists():
        return
    for entry in list(directory.iterdir()):
        if entry.name == STATE or (keep_logs and entry.name == "logs"):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if keep_logs:
        # No cluster any more, but the next one may remove what is left.
        (directory / STATE).write_text("{}", encoding="utf-8")
        return
    # Last, as it says that all of this may be removed.
    (directory / STATE).unlink(missing_ok=True)
    directory.rmdir()
