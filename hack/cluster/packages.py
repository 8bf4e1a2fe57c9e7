"""The Debian packages that the cluster needs, installed when they are missing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hack.cluster.commands import run
from hack.cluster.errors import ClusterError
from hack.cluster.machine import PATH

_INSTALL_S: Final = 600.0

_NEEDED: Final[dict[str, Callable[[], bool]]] = {
    "runc": lambda: shutil.which("runc", path=PATH) is not None,
    "containernetworking-plugins": lambda: Path("/usr/lib/cni/ptp").exists(),
    "busybox-static": lambda: Path("/bin/busybox").exists(),
    "gcc": lambda: shutil.which("gcc") is not None,
    "libc6-dev": lambda: Path("/usr/include/stdlib.h").exists(),
    "iproute2": lambda: shutil.which("ip", path=PATH) is not None,
    "util-linux": lambda: shutil.which("nsenter", path=PATH) is not None,
}


def missing() -> list[str]:
    """Names of the packages whose files are not there."""
    return [name for name, there in _NEEDED.items() if not there()]


def ensure(say: Callable[[str], None]) -> None:
    """Install what is missing. Raises ClusterError."""
    wanted = missing()
    if not wanted:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"missing: {', '.join(wanted)}; install these packages, as root: apt-get install ...")
    say(f"installing {', '.join(wanted)}")
    for command in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", *wanted]):
        run(["apt-get", *command], _INSTALL_S, env={"DEBIAN_FRONTEND": "noninteractive"})
    if missing():
        raise ClusterError(f"still missing after apt-get install: {', '.join(missing())}")
