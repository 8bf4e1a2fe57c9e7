"""A node: a machine with containerd and a kubelet, and what can happen to it."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster import control_plane, images, node_files
from hack.cluster.certificates import Authority
from hack.cluster.commands import run
from hack.cluster.control_plane import Files
from hack.cluster.errors import ClusterError, NotReady
from hack.cluster.machine import PATH, Machine
from hack.cluster.network import Addresses
from hack.cluster.processes import LOOK_S

KUBELET: Final = "kubelet"
CONTAINERD: Final = "containerd"

_SOCKET_S: Final = 30.0
_STOP_S: Final = 30.0
_PLUGINS: Final = "/var/lib/kubelet/plugins"


@dataclass(frozen=True, slots=True)
class Shared:
    """What all nodes of a cluster have in common. control_plane: the machine whose network they are in."""

    control_plane: Machine
    programs: Path
    files: Files
    addresses: Addresses


class Node:
    """One node of the cluster. Its files are at the usual paths for what runs on it, below ``directory`` for others."""

    def __init__(self, number: int, machine: Machine, shared: Shared) -> None:
        """number: from 1."""
        self.number = number
        self.machine = machine
        self.name = machine.name
        self.address = shared.addresses.node(number)
        self._shared = shared

    @property
    def cdi_directory(self) -> Path:
        """Where the host sees the node's /var/run/cdi."""
        return self.machine.path("/run/cdi")

    @property
    def plugins_directory(self) -> Path:
        """Where the host sees the node's /var/lib/kubelet/plugins."""
        return self.machine.path(_PLUGINS)

    def boot(self) -> None:
        """Boot its machine, in the network of the control plane."""
        self.machine.boot(self._shared.control_plane.init.pid)

    def write_files(self, authority: Authority, gates: Mapping[str, bool], snapshotter: str) -> None:
        """Certificates and configuration; the machine has been booted once."""
        user, groups = f"system:node:{self.name}", ("system:nodes",)
        authority.server(self.name, [self.name], [self.address]).keep(self._shared.files.pki, self.name)
        control_plane.write_kubeconfig(
            self._kubeconfig, self._shared.addresses, authority, user, authority.client(user, groups)
        )
        runc = shutil.which("runc", path=PATH)
        if runc is None:
            raise ClusterError("runc is missing: install Debian's runc")
        kubelet = node_files.kubelet(self._shared.files, self.name, self.address, f"/{self.machine.cgroup}", gates)
        network = node_files.cni(self._shared.addresses.pods(self.number))
        self._write("/etc/containerd/config.toml", node_files.containerd(snapshotter, runc))
        self._write("/etc/kubernetes/kubelet.json", json.dumps(kubelet, indent=1))
        self._write("/etc/cni/net.d/10-pods.conflist", json.dumps(network, indent=1))
        for directory in node_files.CDI_DIRECTORIES:
            self.machine.path(directory.removeprefix("/var")).mkdir(exist_ok=True)

    def start_containerd(self) -> None:
        """Start it and wait for its socket. Raises ClusterError."""
        socket = self.machine.path(node_files.RUNTIME_SOCKET)
        socket.unlink(missing_ok=True)
        path = f"{self._shared.programs}:{PATH}"
        self.machine.start(
            CONTAINERD,
            [str(self._shared.programs / CONTAINERD), "--config=/etc/containerd/config.toml"],
            {"PATH": path},
        )
        deadline = time.monotonic() + _SOCKET_S
        while not socket.exists():
            self.machine.check(CONTAINERD)
            if time.monotonic() > deadline:
                raise NotReady(f"containerd on {self.name} made no socket within {_SOCKET_S:g} s")
            time.sleep(LOOK_S)

    def import_images(self, archive: Path, snapshotter: str) -> None:
        """Let pods of this node run the images of an archive (``docker save`` or OCI layout as tar)."""
        ctr = [str(self._shared.programs / "ctr"), "--address", node_files.RUNTIME_SOCKET, "--namespace", "k8s.io"]
        options = ["images", "import", "--local", "--snapshotter", snapshotter]
        self.machine.run([*ctr, *options, str(archive.absolute())], 300.0)

    def start_kubelet(self) -> None:
        """Start it."""
        self.machine.start(
            KUBELET,
            [
                str(self._shared.programs / KUBELET),
                "--config=/etc/kubernetes/kubelet.json",
                f"--kubeconfig={self._kubeconfig}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                "--v=2",
            ],
        )

    def stop_kubelet(self, number: int = signal.SIGTERM) -> None:
        """End the kubelet; containers run on."""
        self.machine.end(KUBELET, number, _STOP_S)

    def restart_kubelet(self, number: int = signal.SIGTERM) -> None:
        """End the kubelet with this signal and start it again."""
        self.stop_kubelet(number)
        self.start_kubelet()

    def restart_containerd(self, number: int = signal.SIGTERM) -> None:
        """End containerd with this signal and start it again; containers run on."""
        self.machine.end(CONTAINERD, number, _STOP_S)
        self.start_containerd()

    def reboot(self) -> None:
        """Power cut and a new boot: every process and mount of the node is gone, /run is empty, the boot id is new.

        containerd and the kubelet are started again, a driver that ran as host process is not.
        """
        self.machine.halt()
        self.boot()
        self._renew_simulated_boot()
        self.start_containerd()
        self.start_kubelet()

    def _renew_simulated_boot(self) -> None:
        """A simulated node has a boot id of its own, if there is such a file, as tests cannot change the real one."""
        for file in self.plugins_directory.glob("*/simulated-node/var/state/boot_id"):
            file.write_text(f"{self.machine.boot_id}\n", encoding="ascii")

    @property
    def _kubeconfig(self) -> Path:
        return self.machine.directory / "kubelet.kubeconfig"

    def _write(self, inside: str, text: str) -> None:
        path = self.machine.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def snapshotter(directory: Path) -> str:
    """``overlayfs`` where the kernel can lay one over this directory, else ``native``, which copies every layer."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        for folder in ("lower", "upper", "work", "merged"):
            os.mkdir(f"{name}/{folder}")
        options = f"lowerdir={name}/lower,upperdir={name}/upper,workdir={name}/work"
        try:
            run(["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, f"{name}/merged"], 20.0)
        except ClusterError:
            return "native"
    return "overlayfs"


def images_archive(directory: Path) -> Path:
    """Make the images that every node has: ``images.BUSYBOX`` and the pause image. Raises ClusterError."""
    archive = directory / "images.tar"
    archive.write_bytes(images.archive(images.busybox_layer(), images.IMAGES))
    return archive
