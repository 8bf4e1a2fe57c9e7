"""Hosts in a temporary directory, as the driver's doctor sees them: a whole ``/`` of each kind that we meet."""

import json
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

from dra_driver.doctor.host import Host
from tests.driver_tree import AL2023 as DRIVER_AS_ON_AL2023
from tests.driver_tree import VERSION, DriverTree, Layout
from tests.kernel_tree import KernelTree

BUS_IDS = ("0000:01:00.0", "0000:02:00.0")
"""PCI addresses of the GPUs with minor numbers 0 and 1, as in tests.builders."""

KUBELET = "/var/lib/kubelet"
RUNC = "runc"

AL2023 = 'NAME="Amazon Linux"\nVERSION="2023"\nID="amzn"\nPRETTY_NAME="Amazon Linux 2023.8"\n'
BOTTLEROCKET = (
    'NAME=Bottlerocket\nID=bottlerocket\nPRETTY_NAME="Bottlerocket OS 1.66.0"\nVARIANT_ID=aws-k8s-1.36-nvidia\n'
)
UBUNTU = 'NAME="Ubuntu"\nID=ubuntu\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'

CONTAINERD_3 = """\
version = 3
root = "/var/lib/containerd"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "{runtime}"
"""


class NodeTree:
    """A host's ``/``, of a machine that runs nowhere. Device nodes are placeholders.

    layout: where the driver will be installed; its links are there from the start.
    """

    def __init__(self, root: Path, os_release: str = AL2023, layout: Layout = DRIVER_AS_ON_AL2023) -> None:
        self.root = root
        self.layout = layout
        self.driver = DriverTree(
            root, replace(layout, dev_root=layout.driver_root), root / layout.driver_root.lstrip("/")
        )
        self.kernel = KernelTree(root)
        self.add("/etc/os-release", os_release)
        self.add("/proc/sys/kernel/osrelease", "6.12.40\n")
        self.add("/proc/sys/kernel/random/boot_id", "00000000-dead-4000-8000-000000000000\n")
        self.path("/sys/bus").mkdir(parents=True)
        self.kernel.load()

    def path(self, host_path: str) -> Path:
        """Where a path of the host lies, links followed as on the host."""
        return Host(self.root).seen(Path(host_path)) or self._new(Path(host_path))

    def _new(self, host_path: Path) -> Path:
        return self.path(str(host_path.parent)) / host_path.name if host_path.parent != host_path else self.root

    def add(self, host_path: str, text: str = "") -> "NodeTree":
        """Make a file."""
        self.kernel.write(self.path(host_path), text)
        return self

    def gpus(self, count: int = 1) -> "NodeTree":
        """GPUs on the PCI bus, and nothing that knows of them."""
        for address in BUS_IDS[:count]:
            self.kernel.on_bus(address)
        return self

    def load_driver(self, version: str = VERSION, gpus: int = 1) -> "NodeTree":
        """The kernel modules, with the GPUs bound to them."""
        self.kernel.version(version).load("nvidia", "nvidia-uvm", "nvidia-caps")
        for minor, address in enumerate(BUS_IDS[:gpus]):
            self.kernel.gpu(address, minor)
        return self

    def install(self, version: str = VERSION) -> "NodeTree":
        """The driver's files."""
        self.driver.install(version)
        return self

    def nodes(self, *names: str) -> "NodeTree":
        """Device nodes; those of one GPU and the driver if none is named."""
        for name in names or ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0"):
            self.add(f"{self.layout.dev_root}/dev/{name}")
        return self

    def containerd(self, text: str = CONTAINERD_3.format(runtime=RUNC), path: str = "") -> "NodeTree":
        """Containerd's program and configuration."""
        return self.add("/usr/bin/containerd").add(path or "/etc/containerd/config.toml", text)

    def cgroups(self, version: int = 2) -> "NodeTree":
        """Control groups of a version."""
        if version == 1:
            self.path("/sys/fs/cgroup/memory").mkdir(parents=True)
            return self
        return self.add("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n")

    def kubelet(self, root: str = KUBELET) -> "NodeTree":
        """The kubelet's directories."""
        for name in ("plugins_registry", "plugins", "device-plugins"):
            self.path(f"{root}/{name}").mkdir(parents=True)
        self.socket(f"{root}/device-plugins/kubelet.sock")
        return self

    def socket(self, host_path: str) -> "NodeTree":
        """A socket. Its path may be longer than a socket's may, so it is made by its base name."""
        path = self.path(host_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        short = Path(tempfile.gettempdir()) / f"{path.name[-40:]}.{id(self)}"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(short))
        short.replace(path)
        return self

    def device_plugin(self, *held: str, count: int = 1) -> "NodeTree":
        """NVIDIA's device plugin at work, as the kubelet has noted it; held: resources that pods hold."""
        self.kubelet_noted({"nvidia.com/gpu": [f"GPU-{n}" for n in range(count)]}, *held)
        return self.socket(f"{KUBELET}/device-plugins/nvidia-gpu.sock")

    def kubelet_noted(self, registered: dict[str, list[str]], *held: str) -> "NodeTree":
        """The kubelet's checkpoint of device plugins."""
        entries = [{"PodUID": "u", "ContainerName": "c", "ResourceName": name} for name in held]
        data = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 1}
        return self.add(f"{KUBELET}/device-plugins/kubelet_internal_checkpoint", json.dumps(data))

    def this_driver(self) -> "NodeTree":
        """This driver at work."""
        self.add(f"{KUBELET}/plugins/gpu.nvidia.com/state.db", "SQLite format 3")
        return self.socket(f"{KUBELET}/plugins_registry/gpu.nvidia.com-reg.sock")


def healthy(root: Path, layout: Layout = DRIVER_AS_ON_AL2023, os_release: str = AL2023) -> NodeTree:
    """A host of one GPU that lacks nothing."""
    tree = NodeTree(root, os_release, layout).install().nodes().gpus().load_driver()
    tree.containerd().cgroups().kubelet()
    directory = "/usr/bin" if layout.driver_root == "/" else "/usr/local/nvidia/toolkit"
    for name in ("nvidia-cdi-hook", "nvidia-ctk"):
        tree.add(f"{directory}/{name}", "#!/bin/sh\n").path(f"{directory}/{name}").chmod(0o755)
    return tree
