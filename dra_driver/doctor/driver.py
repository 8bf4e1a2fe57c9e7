"""Checks of the NVIDIA driver on the host: where it is installed, which version runs, its device nodes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.kernel_devices import NVIDIA, NVIDIA_UVM, KernelDevices, major_of
from dra_driver.devices import sysfs
from dra_driver.doctor.findings import Finding, ok, problem, warning
from dra_driver.doctor.host import Host
from dra_driver.hostfs import LIBRARY_DIRECTORIES, DriverRoots, find_binary, resolve_inside
from dra_driver.model.errors import CdiError

KNOWN_ROOTS: Final = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia")
"""Where the hosts that we know have the driver: packages, a driver container, GKE, a folder of its own."""

NVML_LIBRARY: Final = "libnvidia-ml"
CUDA_LIBRARY: Final = "libcuda"

_LIBRARY = re.compile(rf"({NVML_LIBRARY}|{CUDA_LIBRARY})\.so\.([0-9]+(?:\.[0-9]+)+)")
_MODPROBE: Final = "nvidia-modprobe"


@dataclass(frozen=True, slots=True)
class Installation:
    """A driver under a root. versions: library -> versions that are there, sorted."""

    root: Path
    seen: Path
    versions: Mapping[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        """Version and root."""
        found = sorted({version for versions in self.versions.values() for version in versions})
        return f"{' and '.join(found)} under {self.root}"


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What was found. configured: the driver root that the settings say; installed: the driver there; elsewhere: other
    roots that have one. gpus: PCI addresses of the machine's GPUs, None when nothing shows them.
    """

    configured: Path
    installed: Installation | None
    elsewhere: tuple[Installation, ...]
    kernel: KernelDevices
    gpus: tuple[str, ...] | None

    @property
    def has_no_gpu(self) -> bool:
        """Whether the machine is known to have none, so that no driver is needed."""
        return self.gpus == ()


def look(host: Host, roots: DriverRoots, devices_file: Path | None) -> Driver:
    """Find the driver. roots: as the settings say and this process sees them."""
    elsewhere = []
    for root in map(Path, KNOWN_ROOTS):
        seen = host.seen(root)
        if root != roots.driver_root and seen is not None:
            elsewhere.append(installation(root, seen))
    proc, sys = host.seen(Path("/proc")), host.seen(Path("/sys"))
    nowhere = Path("/nonexistent")
    return Driver(
        configured=roots.driver_root,
        installed=installation(roots.driver_root, roots.container_driver_root),
        elsewhere=tuple(found for found in elsewhere if found is not None),
        kernel=KernelDevices(proc or nowhere, sys or nowhere, devices_file),
        gpus=None if sys is None else sysfs.nvidia_gpus(sys),
    )


def installation(root: Path, seen: Path) -> Installation | None:
    """The driver under a root, None when neither of its main libraries is there."""
    versions: dict[str, set[str]] = {}
    for directory in LIBRARY_DIRECTORIES:
        place = resolve_inside(seen, directory)
        try:
            names = [] if place is None else [entry.name for entry in place.iterdir()]
        except OSError:
            continue
        for found in filter(None, map(_LIBRARY.fullmatch, names)):
            versions.setdefault(found[1], set()).add(found[2])
    return Installation(root, seen, {name: tuple(sorted(v)) for name, v in versions.items()}) if versions else None


def check_driver(driver: Driver) -> Iterator[Finding]:
    """Whether a whole driver is where the settings say, and is the one that the kernel runs."""
    running = driver.kernel.driver_version()
    facts = {
        "driverRoot": str(driver.configured),
        "libraries": {} if driver.installed is None else {k: list(v) for k, v in driver.installed.versions.items()},
        "kernelModule": running,
        "elsewhere": [str(found.root) for found in driver.elsewhere],
    }
    if driver.installed is None:
        yield _not_installed(driver, facts)
        return
    lacking = [name for name in (NVML_LIBRARY, CUDA_LIBRARY) if name not in driver.installed.versions]
    if lacking:
        yield problem(
            "driver",
            f"{driver.installed.text} lacks {' and '.join(f'{name}.so' for name in lacking)}",
            "install the whole driver, with its compute libraries (packages nvidia-driver-cuda or libnvidia-compute)",
            **facts,
        )
    elif running is None and driver.has_no_gpu:
        yield ok("driver", f"{driver.installed.text}; its kernel module is not loaded, as there is no GPU", **facts)
    elif running is None:
        yield problem(
            "driver",
            f"{driver.installed.text}, but the kernel module nvidia is not loaded",
            "modprobe nvidia on the host; if that fails, dmesg says why (another kernel, secure boot, nouveau)",
            **facts,
        )
    elif any(running not in versions for versions in driver.installed.versions.values()):
        yield problem(
            "driver",
            f"{driver.installed.text}, but the kernel runs {running}",
            "reboot the node, or load the kernel module of the installed version: the driver was upgraded halfway",
            **facts,
        )
    else:
        others = f" (others: {', '.join(found.text for found in driver.elsewhere)})" if driver.elsewhere else ""
        yield ok("driver", f"{running} under {driver.configured}, libraries and kernel module alike{others}", **facts)


def _not_installed(driver: Driver, facts: Mapping[str, object]) -> Finding:
    if driver.elsewhere:
        first = driver.elsewhere[0]
        return problem(
            "driver",
            f"none under {driver.configured}, but {first.text}",
            f"set --nvidia-driver-root={first.root} (chart: nvidiaDriverRoot)",
            **facts,
        )
    if driver.has_no_gpu:
        return ok("driver", "none, and no GPU that would need one", **facts)
    return problem(
        "driver",
        f"no NVIDIA driver under {driver.configured}, nor where it usually is",
        "install it: on EKS an AMI type with NVIDIA in its name, elsewhere the GPU Operator (wait for its driver "
        "container) or the distribution's packages; or name its root with --nvidia-driver-root",
        **facts,
    )


def check_device_nodes(driver: Driver, nodes: DeviceNodes, makes_nodes: bool) -> Iterator[Finding]:
    """Whether the nodes that claims need are there, or will be made. makes_nodes: --device-nodes=create."""
    if driver.installed is None or driver.has_no_gpu:
        return
    gpus = driver.kernel.gpus()
    try:
        troubles = nodes.troubles(gpus)
    except CdiError as error:
        yield problem("device-nodes", str(error), "run as root, or mend the dev root")
        return
    facts = {"gpus": dict(gpus), "wrong": {path: trouble.text for path, trouble in troubles.items()}}
    if not troubles:
        count = f"and {len(gpus)} of GPUs " if gpus else ""
        yield ok("device-nodes", f"nvidiactl, nvidia-uvm {count}are there", **facts)
        return
    text = "; ".join(f"{path} {trouble.text}" for path, trouble in troubles.items())
    by_hand = f"make them on the host, e.g. {_MODPROBE} -c 0 and {_MODPROBE} -u -c 0"
    if not all(trouble.mendable for trouble in troubles.values()):
        yield problem("device-nodes", text, "move away what is in the place of the driver's nodes", **facts)
    elif not makes_nodes:
        yield problem("device-nodes", text, f"{by_hand}, or set --device-nodes=create", **facts)
    elif _can_make(driver):
        yield warning("device-nodes", text, "nothing: the first claim has them made", **facts)
    else:
        yield problem("device-nodes", text, f"load the kernel modules nvidia and nvidia-uvm; {by_hand}", **facts)


def _can_make(driver: Driver) -> bool:
    """Whether the kernel has the numbers, or a program is there that loads what is missing."""
    majors = driver.kernel.majors()
    if all(major_of(module, majors) is not None for module in (NVIDIA, NVIDIA_UVM)):
        return True
    return driver.installed is not None and find_binary(driver.installed.seen, _MODPROBE) is not None
