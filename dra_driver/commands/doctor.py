"""``dra-driver doctor``: what is amiss on a node, and what to do about it. Reads only."""

import argparse
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver import settings
from dra_driver.cdi.tools import Tools
from dra_driver.commands.output import plural, write, write_json
from dra_driver.doctor.examination import Subject, examine
from dra_driver.doctor.findings import Finding, Status
from dra_driver.doctor.host import Host
from dra_driver.features import MPS_SUPPORT
from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import DriverError, SettingError
from dra_driver.settings import DeviceNodesMode, Settings
from dra_driver.settings.roots import roots_in
from dra_driver.settings.tools import tools

_DESCRIPTION = """\
Examine a node: the NVIDIA driver and its device nodes, NVML, the container toolkit, the container
runtime's CDI directories, cgroups, the kubelet's directories, and who else offers this node's GPUs.
Each line is ok, a warning (works, but less well, or nobody can tell) or a problem (claims will fail),
with what to do. It only reads, needs no GPU, and tells more when run as root.

Run it on the node, in the driver's Pod (it then knows the driver's settings), or on a folder:
  kubectl exec -n NAMESPACE POD -- dra-driver doctor
  kubectl debug node/NODE -it --profile=sysadmin --image=IMAGE -- dra-driver doctor --root /host"""

_EPILOG = """\
examples:
  dra-driver doctor
  dra-driver doctor --nvidia-driver-root /run/nvidia/driver --cdi-root /var/run/cdi
  dra-driver doctor --root /host -o json | jq '.findings[] | select(.status != "ok")'

Exit codes: 0 no problems (there may be warnings), 1 problems or output that cannot be written, 2 wrong usage."""

PROBLEMS = 1

_SETTINGS = frozenset(
    {
        "driver_root",
        "container_driver_root",
        "dev_root",
        "container_dev_root",
        "device_nodes",
        "alt_proc_devices_path",
        "cdi_root",
        "cdi_edits",
        "cdi_hook_path",
        "cdi_hooks",
        "ctk_path",
        "gates",
        "kubelet_registrar_directory",
        "kubelet_plugins_directory",
        "simulated_node",
    }
)
_WIDTH = max(len(status.value) for status in Status)
_CHECK_WIDTH = 16


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the folder, the format, and the settings that say where things are."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--root", metavar="FOLDER", help="where the host's / is seen; default: /, or as the driver sees it"
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    settings.add_options(parser, only=_SETTINGS)


def run(options: argparse.Namespace) -> int:
    """Print the findings; 0 or 1. Raises SettingError for a folder or scenario that is none, DriverError where nothing
    can be written.
    """
    read = settings.load(options, only=_SETTINGS)
    subject = _subject(read, options.root)
    findings = _examine(subject)
    counts = Counter(finding.status for finding in findings)
    try:
        if options.output == "json":
            write_json(_as_json(findings, counts, options.root or "/"))
        else:
            for finding in findings:
                write(_line(finding))
            write(f"{plural(counts[Status.PROBLEM], 'problem')}, {plural(counts[Status.WARNING], 'warning')}")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget_output()
        raise DriverError(f"standard output cannot be written: {error.strerror}") from error
    return PROBLEMS if counts[Status.PROBLEM] else 0


def _forget_output() -> None:
    """What is still to be written would fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _examine(subject: Subject) -> list[Finding]:
    if not subject.host.is_this_machine:
        return examine(subject, None)
    from dra_driver.doctor.probes import LiveProbes  # NVML's bindings, which a folder does not need

    probes = LiveProbes(subject.roots.container_driver_root)
    try:
        return examine(subject, probes)
    finally:
        probes.close()


def _subject(read: Settings, root: str | None) -> Subject:
    if read.simulated_node:
        from dra_driver.devices.simulated import SimulatedNode  # the scenario models, which real nodes do not need

        SimulatedNode.load(read.simulated_node)
    if root is None:
        roots = settings.roots(read)
        host, toolkit = _own_host(read, roots), tools(read)
    else:
        folder = Path(root)
        if not root or not folder.is_dir():
            raise SettingError(
                f"--root: found {root or repr(root)}, must be a folder that holds a host's /, e.g. /host"
            )
        host = Host(folder.absolute())
        roots, toolkit = roots_in(folder.absolute(), read), _tools_of(host, folder.absolute(), read)
    return Subject(
        host=host,
        roots=roots,
        cdi_root=read.cdi_root,
        registry=read.kubelet_registrar_directory,
        plugins=read.kubelet_plugins_directory,
        tools=toolkit,
        makes_nodes=read.device_nodes is DeviceNodesMode.CREATE,
        mps=MPS_SUPPORT in read.gates,
        devices_file=read.alt_proc_devices_path,
        simulated=read.simulated_node,
    )


def _own_host(read: Settings, roots: DriverRoots) -> Host:
    """In a container only what is mounted is the host's: with the driver root ``/`` that is all of it."""
    if roots.container_driver_root == roots.driver_root:
        return Host()
    here = (
        Path("/proc"),
        Path("/sys"),
        Path("/dev"),
        read.cdi_root,
        read.kubelet_registrar_directory,
        read.kubelet_plugins_directory,
    )
    return Host(roots.container_driver_root if roots.driver_root == Path("/") else None, here)


def _tools_of(host: Host, folder: Path, read: Settings) -> Tools:
    """The driver's image is not part of a folder, but the hook program that the driver copied out of it is. On the
    running machine this process may be in that image itself.
    """
    found = tools(read)
    copies = host.seen(read.plugin_directory) or folder / str(read.plugin_directory).lstrip("/")
    return replace(found, own=(copies, *(found.own if host.is_this_machine else ())))


def _line(finding: Finding) -> str:
    status = finding.status.value.ljust(_WIDTH)
    line = f"{status} {finding.check.ljust(_CHECK_WIDTH)} {_printable(finding.message)}"
    if not finding.remedy:
        return line
    return f"{line}\n{' ' * (_WIDTH + 1)}{'->'.rjust(_CHECK_WIDTH)} {_printable(finding.remedy)}"


def _printable(text: str) -> str:
    """Names of files may have anything in them: bytes that are no text, and what a terminal obeys."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _as_json(findings: list[Finding], counts: Counter[Status], root: str) -> dict[str, Any]:
    return {
        "ok": not counts[Status.PROBLEM],
        "root": root,
        "problems": counts[Status.PROBLEM],
        "warnings": counts[Status.WARNING],
        "findings": [
            {
                "check": finding.check,
                "status": finding.status.value,
                "message": finding.message,
                "remedy": finding.remedy or None,
                "facts": dict(finding.facts),
            }
            for finding in findings
        ],
    }
