"""Which pod a process of this host belongs to, by its cgroups."""

import logging
import re
from pathlib import Path
from typing import Final

from dra_driver.processes import INITIAL_PID_NAMESPACE

log = logging.getLogger(__name__)

# cgroupfs has the UID as it is, systemd with underscores; what is around it differs with kubelet, runtime and QoS.
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?![0-9a-f])")


def pod_uid(cgroups: str) -> str | None:
    """UID of the pod in a ``/proc/<pid>/cgroup``, None for a process of no pod.

    A path may go through several, as where a cluster runs in a pod: the innermost counts.
    """
    for line in cgroups.splitlines():
        if found := _POD.findall(line):
            return str(found[-1]).replace("_", "-")
    return None


class ProcessPods:
    """Pods of processes. proc: where the host's /proc is seen."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def pod_of(self, pid: int) -> str | None:
        """UID of its pod; None also for a process that has ended meanwhile."""
        try:
            return pod_uid((self._proc / str(pid) / "cgroup").read_text("ascii", errors="replace"))
        except OSError:
            return None

    def tell_if_blind(self) -> None:
        """Say in the log that processes of the host are not seen here, if that is so."""
        try:
            namespace = (self._proc / "self/ns/pid").readlink()
        except OSError:
            return
        if str(namespace) != INITIAL_PID_NAMESPACE:
            log.warning(
                "use of GPU memory cannot be watched: this process has a PID namespace of its own and sees no process "
                "of the host (%s); run its pod with hostPID: true",
                namespace,
            )
