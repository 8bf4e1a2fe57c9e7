"""Where the scenes play: a cluster of one node, the driver as host process on real or simulated GPUs, images."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver_api import names
from hack.cluster import driver as drivers
from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT, Driver
from hack.cluster.machine import PATH
from hack.cluster.node import Node
from hack.hardware import pod_images
from hack.hardware.manifests import Json
from hack.hardware.pods import Pods

READ_ONLY: Final = ("--gpu-control=observe", "--device-nodes=require")
"""Nothing is set on a card, and no device node or kernel module is asked for."""
GATES: Final = {"TimeSlicingSettings": True}
DEVICE_CLASSES: Final = ROOT / "dra_driver" / "simulator" / "device_classes.yaml"
_DOCTOR_S: Final = 60.0
_MEMORY: Final = re.compile(r"^(Rss|Pss|Anonymous):\s+(\d+) kB$", re.MULTILINE)
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to hand driver files to containers: flags of the driver, and whether they must serve bare images too."""

    name: str
    flags: Sequence[str] = ()
    bare_images: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """scenario: simulated GPUs, '' for real ones. driver_root: of a real NVIDIA driver."""

    scenario: str = ""
    driver_root: Path = Path("/")
    slot_s: float = 2.0

    @property
    def simulated(self) -> bool:
        """Whether device files take the place of cards."""
        return bool(self.scenario)


@dataclass
class Stage:
    """A running cluster and its only node."""

    cluster: Cluster
    setting: Setting
    driver: Driver | None = field(default=None, init=False)

    @property
    def node(self) -> Node:
        """The node."""
        return self.cluster.nodes[0]

    @cached_property
    def pods(self) -> Pods:
        """Pods and claims."""
        return Pods(self.cluster.api)

    def prepare(self) -> None:
        """Device classes, and images on the node. Raises ClusterError, ImageError."""
        self.cluster.apply(DEVICE_CLASSES)
        environment = {"SLOT_S": f"{self.setting.slot_s:g}"}
        if self.setting.simulated:
            environment["GPU_WORK"] = "stand-in"
        images = self.cluster.directory / "pod-images"
        for archive in pod_images.archives(images, environment):
            self.cluster.import_images(archive)

    def make_driver(self, *flags: str) -> Driver:
        """A driver that only reads the cards, not started; the one before is ended. Raises ClusterError."""
        self.end_driver()
        own = [*READ_ONLY, *flags]
        if not self.setting.simulated:
            own.append(f"--nvidia-driver-root={self.setting.driver_root}")
        self.driver = self.cluster.driver(
            self.node, *own, gates=GATES, scenario=self.setting.scenario or None, env=self._environment()
        )
        return self.driver

    def start_driver(self, *flags: str) -> Driver:
        """As ``make_driver``, started, its slices published, registered with the kubelet. Raises ClusterError."""
        made = self.make_driver(*flags)
        made.start()
        self.wait_driver()
        return made

    def wait_driver(self) -> None:
        """Wait until the driver serves. Raises ClusterError."""
        if self.driver is not None:
            self.driver.wait_published()
            self.driver.wait_registered()

    def end_driver(self) -> None:
        """End it, should it run. Raises ClusterError."""
        if self.driver is not None and self.driver.running:
            self.driver.stop()

    def forget_slices(self) -> None:
        """Delete what the driver has published. Raises ClusterError."""
        for each in self.driver.slices() if self.driver else ():
            self.cluster.api.request("DELETE", f"{_SLICES}/{each['metadata']['name']}")

    def devices(self) -> list[Json]:
        """The devices of the node's slices."""
        slices = self.driver.slices() if self.driver else []
        return [device for each in slices for device in each["spec"].get("devices") or ()]

    def card(self, device: str) -> str:
        """What a pod with this device must see: the UUID, or the device file of a simulated card."""
        if self.setting.simulated:
            return device.replace("gpu", "minor")
        attributes = next(each["attributes"] for each in self.devices() if each["name"] == device)
        return str(attributes["uuid"]["string"])

    def clear(self) -> None:
        """Delete what a scene that broke has left, so that the next one finds all cards free.

        Raises ClusterError, HardwareError.
        """
        if self.driver is None or not self.driver.running:
            self.start_driver()
        self.pods.delete_all()

    def memory(self) -> dict[str, float]:
        """Of the driver, in MiB. anonymous: what no file is behind, so what is its own. Raises OSError."""
        if self.driver is None:
            return {}
        text = Path(f"/proc/{self.driver.process.pid}/smaps_rollup").read_text(encoding="ascii")
        found = {name.lower(): int(kib) / 1024 for name, kib in _MEMORY.findall(text)}
        return {name: round(found[name], 1) for name in ("rss", "pss", "anonymous")}

    def told(self, start: str) -> str:
        """The last message of the driver's log that starts so; '' when there is none."""
        lines = self.driver.log.read_text(encoding="utf-8").splitlines() if self.driver else []
        return next((line[line.index(f": {start}") + 2 :] for line in reversed(lines) if f": {start}" in line), "")

    def doctor(self) -> Any:
        """What ``dra-driver doctor`` says of the node, as its JSON; as text where it gave none."""
        flags = [] if self.setting.simulated else [f"--nvidia-driver-root={self.setting.driver_root}"]
        variables = [f"{name}={value}" for name, value in self._environment().items()]
        command = [*self.node.machine.inside(), "/usr/bin/env", *variables, sys.executable, "-m", "dra_driver"]
        command += ["doctor", "--output=json", "--cdi-root=/var/run/cdi", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOCTOR_S, check=False)
        try:
            return json.loads(done.stdout.replace(platform.release(), _kernel()))
        except ValueError:
            return f"exit code {done.returncode}: {done.stderr.strip()[-1000:]}"

    def left_behind(self) -> list[str]:
        """CDI files and records of claims on the node."""
        store = Store.open_read_only(self.node.plugins_directory / names.DRIVER_NAME / STATE_FILE)
        try:
            records = [f"record of {record.claim.name}" for record in store.records()]
        finally:
            store.close()
        return [*records, *(path.name for path in self.node.cdi_directory.glob("k8s.*"))]

    def cdi_text(self) -> str:
        """The one CDI file of a claim on the node, '' when there is not one."""
        found = sorted(self.node.cdi_directory.glob("k8s.*"))
        return found[0].read_text(encoding="utf-8") if len(found) == 1 else ""

    def processes(self, pod: str) -> list[int]:
        """Ids of a pod's processes as the host numbers them, by their cgroup; without the sandbox's."""
        uid = self.pods.get(pod)["metadata"]["uid"]
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                inside = f"pod{uid}" in (entry / "cgroup").read_text(encoding="ascii")
                if inside and b"gpu-work" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return sorted(found)

    def variants(self) -> list[Variant]:
        """The ways to hand over files that can be tried here."""
        # nvidia-ctk asks NVML, and the library of a simulated driver is a text file.
        found = variants(self.cluster.programs)
        return [each for each in found if each.name != "nvidia-ctk" or not self.setting.simulated]

    def machine(self) -> dict[str, str]:
        """Facts that figures depend on."""
        unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        return {
            "kubernetes": self.cluster.plan.kubernetes,
            "kernel": f"Linux {_kernel()}",
            "cores": str(len(os.sched_getaffinity(0))),
            "python": platform.python_version(),
            "cgroups": "v2" if unified else "v1",
        }

    def _environment(self) -> Mapping[str, str]:
        """Of the driver: the checkout's modules first, then what this process has; the pack's tools on PATH."""
        paths = [str(ROOT), str(ROOT / "api"), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
        return {**drivers.environment(), "PYTHONPATH": ":".join(paths), "PATH": f"{self.cluster.programs}:{PATH}"}


def _kernel() -> str:
    """Its version as 6.18; what comes after is whoever built it."""
    return ".".join(platform.release().split(".")[:2])


def variants(programs: Path) -> list[Variant]:
    """All ways that the driver has. programs: the folder with NVIDIA's."""
    hooks = ("--cdi-hooks=nvidia-cdi-hook", f"--nvidia-cdi-hook-path={programs / 'nvidia-cdi-hook'}")
    generator = ("--cdi-edits=nvidia-ctk", f"--nvidia-ctk-path={programs / 'nvidia-ctk'}")
    return [
        Variant("hook-free", ("--cdi-edits=builtin", "--cdi-hooks=none")),
        Variant("hooks", ("--cdi-edits=builtin", *hooks), bare_images=False),
        Variant("nvidia-ctk", (*generator, *hooks), bare_images=False),
    ]
