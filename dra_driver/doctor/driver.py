"""Checks of the NVIDIA driver on the host: where it is installed, which version runs, its device nodes."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.kernel_devices import NVIDIA, NVIDIA_UVM, KernelDevices, major_of
from dra_driver.cdi.libraries import scan_libraries
from dra_driver.devices import sysfs
from dra_driver.doctor.findings import Finding, ok, problem, remedy_for, warning
from dra_driver.doctor.host import Host
from dra_driver.hostfs import LIBRARY_DIRECTORIES, DriverRoots, find_binary, find_file, resolve_inside
from dra_driver.model.errors import CdiError
from dra_driver.model.texts import listed

KNOWN_ROOTS: Final = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia")
"""Where the hosts that we know have the driver: packages, a driver container, GKE, a folder of its own."""

NVML_LIBRARY: Final = "libnvidia-ml"
CUDA_LIBRARY: Final = "libcuda"

_LIBRARY = re.compile(rf"({NVML_LIBRARY}|{CUDA_LIBRARY})\.so\.([0-9]+(?:\.[0-9]+)+)")
_MODPROBE: Final = "nvidia-modprobe"
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Installation:
    """A driver under a root. versions: library -> versions that claims can use, sorted. broken: file -> why none can.

    unreadable: host paths of what may be more of it, which this process may not read.
    """

    root: Path
    seen: Path
    versions: Mapping[str, tuple[str, ...]]
    broken: Mapping[str, str]
    unreadable: tuple[Path, ...]

    @property
    def is_there(self) -> bool:
        """Whether anything of a driver was met."""
        return bool(self.versions or self.broken)

    @property
    def text(self) -> str:
        """Version and root, and what is wrong with files."""
        found = sorted({version for versions in self.versions.values() for version in versions})
        broken = "".join(f"; {name}: {why}" for name, why in sorted(self.broken.items()))
        return f"{' and '.join(found) or 'the driver'} under {self.root}{f' ({broken[2:]})' if broken else ''}"


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What was found. configured: the driver root that the settings say; installed: the driver there; unreadable: where
    more of it may be, which this process may not read; elsewhere: other roots that have one. dev: the host's path of
    the dev root's ``dev``, which may be something else than a directory. gpus: PCI addresses of the machine's GPUs,
    None when nothing shows them.
    """

    configured: Path
    installed: Installation | None
    unreadable: tuple[Path, ...]
    elsewhere: tuple[Installation, ...]
    dev: Path
    dev_is_wrong: bool
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
            elsewhere.append(installation(host, root, seen))
    proc, sys = host.seen(Path("/proc")), host.seen(Path("/sys"))
    nowhere = Path("/nonexistent")
    configured = installation(host, roots.driver_root, roots.container_driver_root)
    return Driver(
        configured=roots.driver_root,
        installed=configured if configured.is_there else None,
        unreadable=configured.unreadable,
        elsewhere=tuple(found for found in elsewhere if found.versions),
        dev=roots.dev_root / "dev",
        dev_is_wrong=_is_no_directory(roots.container_dev_root),
        kernel=KernelDevices(proc or nowhere, sys or nowhere, devices_file),
        gpus=None if sys is None else sysfs.nvidia_gpus(sys),
    )


def installation(host: Host, root: Path, seen: Path) -> Installation:
    """What a root has of the driver's main libraries, judged as claims will be."""
    before = set(host.unreadable)
    files: dict[str, tuple[str, str]] = {}
    for directory in LIBRARY_DIRECTORIES:
        for found in filter(None, map(_LIBRARY.fullmatch, _names(host, root, seen, directory))):
            files[found[0]] = found[1], found[2]
    scans = {version: scan_libraries(seen, version) for _, version in files.values()}
    versions: dict[str, set[str]] = {}
    broken = {}
    for name, (library, version) in files.items():
        if scans[version].get(name) is not None:
            versions.setdefault(library, set()).add(version)
            continue
        file = find_file(seen, LIBRARY_DIRECTORIES, name)
        if file is not None and not os.access(file, os.R_OK, effective_ids=True):
            host.unreadable.add(root / file.relative_to(seen))
        broken[name] = scans[version].refused.get(name, "no file, or a link to none under this root")
    return Installation(
        root,
        seen,
        {name: tuple(sorted(found)) for name, found in versions.items()},
        broken,
        tuple(sorted(host.unreadable - before)),
    )


def _names(host: Host, root: Path, seen: Path, directory: str) -> list[str]:
    place = resolve_inside(seen, directory)
    if place is None:
        host.note_if_forbidden(seen, directory, root / directory)
        return []
    try:
        return os.listdir(place)
    except PermissionError:
        host.unreadable.add(root / directory)
    except OSError:
        pass
    return []


def _is_no_directory(dev_root: Path) -> bool:
    dev = resolve_inside(dev_root, "dev")
    return dev is not None and not dev.is_dir()


def check_driver(driver: Driver) -> Iterator[Finding]:
    """Whether a whole driver is where the settings say, and is the one that the kernel runs."""
    running = driver.kernel.driver_version()
    facts = {
        "driverRoot": str(driver.configured),
        "libraries": {} if driver.installed is None else {k: list(v) for k, v in driver.installed.versions.items()},
        "broken": {} if driver.installed is None else dict(driver.installed.broken),
        "kernelModule": running,
        "elsewhere": [str(found.root) for found in driver.elsewhere],
    }
    if driver.installed is None:
        yield _not_installed(driver, facts)
        return
    lacking = [name for name in (NVML_LIBRARY, CUDA_LIBRARY) if name not in driver.installed.versions]
    if lacking and driver.unreadable:
        yield _not_readable(driver, facts)
    elif lacking:
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


def _not_readable(driver: Driver, facts: Mapping[str, object]) -> Finding:
    paths = listed([*map(str, driver.unreadable)], _SHOWN)
    text = f"no whole driver seen under {driver.configured}, but this user may not read {paths}"
    return warning("driver", text, "run as root", **facts)


def _not_installed(driver: Driver, facts: Mapping[str, object]) -> Finding:
    if driver.unreadable and not driver.has_no_gpu:
        return _not_readable(driver, facts)
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
    if driver.dev_is_wrong:
        yield problem("device-nodes", f"{driver.dev} is no directory", "move it away, or name another dev root")
        return
    gpus = driver.kernel.gpus()
    try:
        troubles = nodes.troubles(gpus)
    except CdiError as error:
        yield problem("device-nodes", str(error), remedy_for(error, "mend or move away what is named"))
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
