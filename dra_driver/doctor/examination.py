"""The examination of a node: all checks, in the order in which a person would look."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.tools import Tools
from dra_driver.doctor.driver import Driver, check_device_nodes, check_driver, look
from dra_driver.doctor.findings import Finding, ok, remedy_for, warning
from dra_driver.doctor.gpus import Probes, ask, check_memory_limits, check_persistence
from dra_driver.doctor.host import Host
from dra_driver.doctor.kubelet import check_directories, check_publishers
from dra_driver.doctor.mps import check_mps
from dra_driver.doctor.runtime import cgroup_version, check_cdi_root, check_cgroups, check_runtime
from dra_driver.doctor.toolkit import check_toolkit
from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import CdiError
from dra_driver.model.texts import listed

_SHOWN = 4
_MEND = "see what is in the place of that file: the kernel and the driver do not put it there"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is examined: a host, and this driver's settings for it. Paths are the host's but for ``roots``' seen ones.

    tools: with the directories of the driver's own programs, as far as they are seen here. makes_nodes:
    --device-nodes=create. mps: gate MPSSupport. simulated: the scenario, if the driver serves GPUs of one.
    placeholders: regular files count as device nodes.
    """

    host: Host
    roots: DriverRoots
    cdi_root: Path
    registry: Path
    plugins: Path
    tools: Tools
    makes_nodes: bool = True
    mps: bool = False
    devices_file: Path | None = None
    simulated: str | None = None
    placeholders: bool = False


def examine(subject: Subject, probes: Probes | None) -> list[Finding]:
    """All findings. probes: None when the host is not the running machine, so that nothing can be asked."""
    host = subject.host
    if subject.simulated:
        findings = [
            ok("node", f"the GPUs are simulated ({subject.simulated}): real ones and their driver do not matter")
        ]
    else:
        try:
            findings = _hardware(subject, probes)
        except CdiError as error:
            findings = [warning("driver", f"cannot be examined: {error}", remedy_for(error, _MEND))]
    findings += check_runtime(host, subject.cdi_root, probes)
    findings += check_cdi_root(host, subject.cdi_root)
    findings += check_cgroups(host)
    findings += check_directories(host, subject.registry, subject.plugins)
    findings += check_publishers(host, subject.registry, subject.plugins)
    findings += _rights(host)
    return findings


def _hardware(subject: Subject, probes: Probes | None) -> list[Finding]:
    """GPUs, their driver, and what makes them usable in containers."""
    host = subject.host
    driver = look(host, subject.roots, subject.devices_file)
    nodes = DeviceNodes(subject.roots, driver.kernel, placeholders=subject.placeholders)
    findings = [_node(host, driver), *check_driver(driver)]
    findings += check_device_nodes(driver, nodes, subject.makes_nodes)
    inventory, asked = ask(driver, probes)
    findings += asked
    toolkit, hook = check_toolkit(host, subject.roots, subject.tools, probes)
    if inventory is not None and probes is not None:
        findings += check_persistence(inventory)
        findings += check_memory_limits(inventory.gpus, probes, cgroup_version(host), hook)
    mps = check_mps(subject.roots) if subject.mps and driver.installed else ()
    return [*findings, toolkit, *mps]


def _node(host: Host, driver: Driver) -> Finding:
    """The operating system, and the GPUs that the PCI bus shows."""
    lines = (line.partition("=") for line in (host.read(Path("/etc/os-release")) or "").splitlines())
    release = {key: value.strip().strip('"') for key, _, value in lines}
    name = release.get("PRETTY_NAME") or release.get("ID") or "operating system not known"
    if variant := release.get("VARIANT_ID"):
        name = f"{name} ({variant})"
    kernel = (host.read(Path("/proc/sys/kernel/osrelease")) or "").strip() or "not known"
    facts = {"os": name, "kernel": kernel, "gpusOnBus": None if driver.gpus is None else list(driver.gpus)}
    text = f"{name}, kernel {kernel}"
    if driver.gpus is None:
        return warning("node", f"{text}; the PCI bus cannot be seen", "mount /sys, or run on the node", **facts)
    if not driver.gpus:
        return warning(
            "node",
            f"{text}; no NVIDIA GPU on the PCI bus, so there is nothing to offer",
            "nothing, if this node shall have none",
            **facts,
        )
    return ok("node", f"{text}; {len(driver.gpus)} NVIDIA GPU{'s' if len(driver.gpus) > 1 else ''}", **facts)


def _rights(host: Host) -> Iterator[Finding]:
    """What this process was not allowed to read."""
    if not host.unreadable:
        return
    paths = sorted(map(str, host.unreadable))
    yield warning(
        "rights",
        f"user {os.geteuid()} may not read {listed(paths, _SHOWN)}: what is said of these is incomplete",
        "run as root",
        unreadable=paths,
    )
