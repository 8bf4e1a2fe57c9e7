from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.cdi.hook_program import HOOKS
from dra_driver.cdi.host_programs import HostProgram
from dra_driver.cdi.tools import Tools
from dra_driver.doctor.examination import Subject, examine
from dra_driver.doctor.findings import Finding, Status
from dra_driver.doctor.host import Host
from dra_driver.hostfs import DriverRoots
from dra_driver.model.devices import Inventory
from dra_driver.model.errors import ControlError, ControlUnsupported, DriverNotReady
from tests.builders import make_inventory
from tests.node_tree import KUBELET, NodeTree

Examine = Callable[..., "Findings"]
OLD_DRIVER = ControlUnsupported("nvmlDeviceGetMemoryLimits_v1: Function Not Found")


class Machine:
    """Answers for the machine of a tree. versions: what programs print, by base name.

    limits: the error of who asks for memory limits, None where they are known. hooks: those of nvidia-cdi-hook.
    """

    def __init__(self, inventory: Inventory | None = None, limits: ControlError | None = OLD_DRIVER) -> None:
        self.found = inventory or make_inventory(1)
        self.limits = limits
        self.hooks: tuple[str, ...] = HOOKS
        self.versions = {
            "containerd": "containerd github.com/containerd/containerd/v2 v2.2.4 f7d1c2\n",
            "nvidia-cdi-hook": "NVIDIA CDI Hook version 1.19.1\ncommit: 9c4b\n",
            "nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.19.1\ncommit: 9c4b\n",
        }
        self.silent = ""

    def inventory(self) -> Inventory:
        if self.silent:
            raise DriverNotReady(self.silent)
        return self.found

    def check_memory_limits(self, gpu_uuid: str) -> None:
        if self.limits is not None:
            raise self.limits

    def help_text(self, program: HostProgram) -> str:
        return "COMMANDS:\n" + "".join(f"   {hook}  What it does\n" for hook in self.hooks)

    def version_text(self, program: Path) -> str:
        return self.versions.get(program.name, "")


class Findings(list[Finding]):
    """What an examination found."""

    def of(self, check: str) -> Finding:
        """The one finding of a check."""
        (found,) = [finding for finding in self if finding.check == check]
        return found

    def text(self, check: str) -> str:
        """Message and remedy."""
        return f"{self.of(check).message} -> {self.of(check).remedy}"

    def with_status(self, status: Status) -> dict[str, str]:
        """Check -> message of the findings of a status."""
        return {finding.check: finding.message for finding in self if finding.status is status}

    @property
    def problems(self) -> dict[str, str]:
        return self.with_status(Status.PROBLEM)

    @property
    def warnings(self) -> dict[str, str]:
        return self.with_status(Status.WARNING)


def subject(tree: NodeTree, driver_root: str = "/", dev_root: str = "/") -> Subject:
    """The tree, examined with the settings of the chart."""
    return Subject(
        host=Host(tree.root),
        roots=DriverRoots(
            driver_root=Path(driver_root),
            dev_root=Path(dev_root),
            container_driver_root=tree.root / driver_root.lstrip("/"),
            container_dev_root=tree.root / dev_root.lstrip("/"),
        ),
        cdi_root=Path("/var/run/cdi"),
        registry=Path(KUBELET, "plugins_registry"),
        plugins=Path(KUBELET, "plugins"),
        tools=Tools(shared=Path(KUBELET, "plugins/gpu.nvidia.com"), own=()),
        placeholders=True,
    )


@pytest.fixture
def run() -> Examine:
    """Examine a tree; ``changes`` are to the subject. probes: None as for a folder."""

    def examine_tree(
        tree: NodeTree, probes: Machine | None, driver_root: str = "/", dev_root: str = "/", **changes: object
    ) -> Findings:
        examined = replace(subject(tree, driver_root, dev_root), **changes)  # type: ignore[arg-type]
        return Findings(examine(examined, probes))

    return examine_tree
