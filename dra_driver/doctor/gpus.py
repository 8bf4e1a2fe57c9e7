"""Checks of the GPUs themselves, by asking NVML: what it lists, persistence mode, memory limits."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from dra_driver.cdi.hook_program import LIMITS, subcommands
from dra_driver.cdi.host_programs import HostProgram
from dra_driver.cdi.tools import HOOK
from dra_driver.devices.memory_limits import why_driver_cannot
from dra_driver.doctor.driver import Driver
from dra_driver.doctor.findings import Finding, ok, problem, warning
from dra_driver.model.devices import Gpu, Inventory
from dra_driver.model.errors import ControlError, DriverNotReady
from dra_driver.model.texts import listed

_NEWER_DRIVER: Final = "a driver of branch R615 or later has them"
_NEWER_TOOLKIT: Final = "NVIDIA's container toolkit 1.20.1 or later has it"
_SHOWN: Final = 4


class Probes(Protocol):
    """What is asked of the running machine. Each call has a time limit."""

    def inventory(self) -> Inventory:
        """The GPUs as NVML lists them. Raises DriverNotReady."""

    def check_memory_limits(self, gpu_uuid: str) -> None:
        """Read the limits of a cgroup. Raises ControlError, ControlUnsupported where they are not known."""

    def help_text(self, program: HostProgram) -> str:
        """What a program prints for ``--help``, '' when it cannot be run."""

    def version_text(self, program: Path) -> str:
        """What a program prints for ``--version``, '' when it cannot be run."""


def ask(driver: Driver, probes: Probes | None) -> tuple[Inventory | None, list[Finding]]:
    """The inventory if NVML gives one, and what is to be said of that. probes: None when nothing can be asked.

    NVML itself loads kernel modules and makes device nodes that are missing, so it is asked only when the driver runs.
    """
    if driver.has_no_gpu or driver.installed is None:
        return None, []
    if probes is None:
        return None, [
            warning(
                "nvml",
                "not asked, since this is not the running machine's root: NVML, persistence mode, memory limits and "
                "versions of programs are unknown",
                "run it on the node for these",
            )
        ]
    if driver.kernel.driver_version() is None:
        return None, [warning("nvml", "not asked, since the driver is not loaded", "see driver")]
    try:
        inventory = probes.inventory()
    except DriverNotReady as error:
        return None, [problem("nvml", str(error), "nvidia-smi on the host must work first; dmesg shows XIDs")]
    return inventory, [_listed(inventory, driver)]


def _listed(inventory: Inventory, driver: Driver) -> Finding:
    products = Counter(gpu.product_name for gpu in inventory.gpus)
    text = ", ".join(f"{count} x {name}" for name, count in sorted(products.items())) or "no GPU"
    facts = {
        "driverVersion": inventory.driver.driver_version,
        "gpus": [gpu.uuid for gpu in inventory.gpus],
        "devices": list(inventory.devices),
    }
    message = f"driver {inventory.driver.driver_version}, {text}"
    if migs := len(inventory.mig_devices):
        message += f", {migs} MIG devices"
    missing = sorted(set(driver.gpus or ()) - {gpu.pci_bus_id for gpu in inventory.gpus})
    if missing:
        return problem(
            "nvml",
            f"{message}; not listed, though on the PCI bus: {listed(missing, _SHOWN)}",
            "see dmesg for XID 79 (fallen off the bus) or a failed start of the card; it may need a reset or a reboot",
            **facts,
        )
    if not inventory.devices:
        return warning(
            "nvml",
            f"{message}; every GPU is in MIG mode and has no MIG device, so nothing is on offer",
            "make MIG devices (nvidia-smi mig -cgi ... -C), or switch MIG mode off",
            **facts,
        )
    return ok("nvml", message, **facts)


def check_persistence(inventory: Inventory) -> Iterator[Finding]:
    """Persistence mode, which keeps a card's settings while nobody has it open."""
    if not inventory.gpus:
        return
    facts = {"persistence": {gpu.uuid: gpu.persistence for gpu in inventory.gpus}}
    off = [gpu.uuid for gpu in inventory.gpus if gpu.persistence is False]
    unknown = [gpu.uuid for gpu in inventory.gpus if gpu.persistence is None]
    if off:
        yield warning(
            "persistence",
            f"off for {listed(off, _SHOWN)}: such a card forgets compute mode and time slice when its last user closes "
            "it, so what a claim has set is lost if this driver restarts before the pod's first CUDA call; whoever is "
            "first waits for its start",
            "run nvidia-persistenced on the host, or nvidia-smi -pm 1",
            **facts,
        )
    elif unknown:
        yield warning(
            "persistence", f"not told for {listed(unknown, _SHOWN)}", "see Persistence Mode in nvidia-smi -q", **facts
        )
    else:
        yield ok("persistence", "on: cards keep compute mode and time slice while nobody uses them", **facts)


def check_memory_limits(
    gpus: Sequence[Gpu], probes: Probes, cgroup_version: int | None, hook: HostProgram | str
) -> Iterator[Finding]:
    """Whether the driver publishes ``memoryLimits`` as enforced here, found as it finds it.

    hook: what finishes containers, or why nothing that could be asked does.
    """
    whole = [gpu for gpu in gpus if not gpu.mig_enabled]
    if not whole:
        return
    answers: dict[str, list[str]] = {}
    for gpu in whole:
        try:
            if why := why_driver_cannot(probes, gpu.uuid):
                answers.setdefault(why.replace(f"GPU {gpu.uuid}: ", ""), []).append(gpu.uuid)
        except (ControlError, DriverNotReady) as error:
            yield warning("memory-limits", f"cannot be probed: {error}", "run as root on the node", supported=None)
            return
    missing = [(f"{why}: {listed(uuids, _SHOWN)}", _NEWER_DRIVER) for why, uuids in answers.items()]
    missing += _of_host(probes, cgroup_version, hook)
    if not missing:
        yield ok("memory-limits", "enforced: driver, cgroups and nvidia-cdi-hook all have them", supported=True)
        return
    remedies = "; ".join(dict.fromkeys(remedy for _, remedy in missing))
    yield warning(
        "memory-limits",
        f"observed, not enforced: {'; '.join(reason for reason, _ in missing)}. Pods that share a GPU are told when "
        "they use too much, and not kept from each other's memory",
        f"{remedies}. Until then use MIG where pods must not take each other's memory",
        supported=False,
    )


def _of_host(probes: Probes, cgroup_version: int | None, hook: HostProgram | str) -> list[tuple[str, str]]:
    """(what is missing besides the driver, its remedy)."""
    missing = []
    if cgroup_version != 2:
        found = "of version 1" if cgroup_version == 1 else "not known to be of version 2"
        missing.append((f"cgroups are {found}", "boot the node with the unified cgroup hierarchy"))
    if isinstance(hook, str):
        missing.append((hook, f"have containers finished by {HOOK}"))
    elif LIMITS not in subcommands(probes.help_text(hook)):
        missing.append((f"{hook.host_path} has no hook {LIMITS}", _NEWER_TOOLKIT))
    return missing


def version_in(text: str) -> tuple[int, ...] | None:
    """The first version number in what a program prints."""
    found = re.search(r"\bv?(\d+)\.(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def dotted(version: tuple[int, ...]) -> str:
    """``1.20.2``."""
    return ".".join(map(str, version))
