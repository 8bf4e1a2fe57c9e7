"""The device nodes of GPUs and of the driver, looked at in the dev root at the moment of asking.

A node that is missing is made, if the settings allow it (``node_maker``); what its numbers must be is the kernel's to
say (``kernel_devices``). Nothing is cached: either every node that a container needs is there, or the claim fails.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dra_driver.cdi.kernel_devices import NVIDIA, Capability, KernelDevices, major_of
from dra_driver.cdi.node_maker import COMMON_NODES, Known, NodeMaker, gpu_node
from dra_driver.cdi.spec import DeviceNode
from dra_driver.hostfs import DriverRoots, resolve_inside
from dra_driver.model.devices import Device, MigDevice
from dra_driver.model.errors import CdiError

_BY_PATH: Final = "dri/by-path"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a node, behind its path. mendable: making it anew would help."""

    text: str
    mendable: bool = False


class DeviceNodes:
    """Nodes under the dev root, described by their host paths.

    roots: or a function that finds them, since a driver container brings its own ``dev`` whenever it starts.
    maker: None leaves missing nodes to others. placeholders: a simulated node made without root rights has regular
    files in place of nodes; they are accepted and described with the numbers that the real ones have.
    """

    def __init__(
        self,
        roots: DriverRoots | Callable[[], DriverRoots],
        kernel: KernelDevices | None = None,
        maker: NodeMaker | None = None,
        placeholders: bool = False,
    ) -> None:
        self._find_roots = roots if callable(roots) else lambda: roots
        self._kernel = kernel or KernelDevices()
        self._maker = maker
        self._placeholders = placeholders

    def common(self, driver_version: str) -> tuple[DeviceNode, ...]:
        """nvidiactl and nvidia-uvm, and those of nvidia-uvm-tools and nvidia-modeset that are there.

        Raises CdiError naming the host path of one that is missing or is no such device, also while the kernel
        runs another version of the driver.
        """
        self._check_version(driver_version)
        dev, majors = _Dev(self._find_roots()), self._kernel.majors()
        found = [self._node(dev, known, majors) for known in COMMON_NODES]
        return tuple(node for node in found if node is not None)

    def of(self, device: Device) -> tuple[DeviceNode, ...]:
        """A GPU's own node and its DRM nodes, if any; a MIG device's parent's node and its two capabilities.

        A link of the host's ``/dev/dri/by-path`` that leads to such a node is a node in the container, which takes no
        hook. DRM nodes stand for the whole card, so a MIG device does not get them. Capabilities need not exist on
        the host. Raises CdiError naming the path that is missing.
        """
        gpu = device.physical
        dev = _Dev(self._find_roots())
        node = self._node(dev, gpu_node(gpu.minor, gpu.pci_bus_id), self._kernel.majors())
        assert node is not None  # noqa: S101 - for the type checker: the node of a GPU is required
        if isinstance(device, MigDevice):
            return (node, *self._capabilities(dev, device))
        return (node, *self._drm(dev, gpu.pci_bus_id))

    def troubles(self, gpus: Mapping[str, int]) -> Mapping[str, Trouble]:
        """Host path -> what is wrong with it, of the nodes that claims on these GPUs need. Makes nothing.

        A node that claims can do without must be right all the same where it is there.

        gpus: PCI address -> minor number. Raises CdiError when a node cannot be looked at.
        """
        dev, majors = _Dev(self._find_roots()), self._kernel.majors()
        wanted = [known for known in COMMON_NODES if known.required or dev.state(known.name) is not None]
        wanted.extend(gpu_node(minor, address) for address, minor in gpus.items())
        found = {dev.shown(known.name): self._trouble(dev, known, majors) for known in wanted}
        return {path: trouble for path, trouble in found.items() if trouble is not None}

    def _check_version(self, driver_version: str) -> None:
        running = self._kernel.driver_version()
        if running not in (None, driver_version):
            raise CdiError(
                f"the kernel runs NVIDIA driver {running}, the GPUs were last seen under {driver_version}: "
                "the driver is being replaced; try again when that is done"
            )

    def _node(self, dev: "_Dev", known: Known, majors: Mapping[str, int]) -> DeviceNode | None:
        """The node, made if need be; None for one that is not required and not there."""
        trouble = self._trouble(dev, known, majors)
        why = ""
        if trouble is not None and trouble.mendable and (known.required or major_of(known.module, majors) is not None):
            why = self._make(dev, known)
            majors = self._kernel.majors()
            trouble = self._trouble(dev, known, majors)
        if trouble is None:
            return self._describe(dev, known, majors)
        if not known.required and dev.state(known.name) is None:
            return None
        raise CdiError(f"device node {dev.shown(known.name)} {trouble.text}{why}")

    def _make(self, dev: "_Dev", known: Known) -> str:
        """'' or the rest of the error text: why the node was not made, and the remedy."""
        if self._maker is None:
            return (
                ", and with --device-nodes=require the driver makes none: load the NVIDIA kernel modules and make "
                "it on the host, e.g. with nvidia-modprobe or nvidia-smi, or set --device-nodes=create"
            )
        why = self._maker.make(known, dev.roots, lambda: self._trouble(dev, known, self._kernel.majors()) is None)
        return f", and the driver cannot make it: {why}" if why else ""

    def _trouble(self, dev: "_Dev", known: Known, majors: Mapping[str, int]) -> Trouble | None:
        """What is wrong with a node as it is; None if nothing is."""
        found = dev.state(known.name)
        if found is None:
            return Trouble("is missing", mendable=True)
        if self._placeholders and stat.S_ISREG(found.st_mode):
            return None
        if not stat.S_ISCHR(found.st_mode):
            kind = _FILE_KINDS.get(stat.S_IFMT(found.st_mode), "something else")
            return Trouble(f"is {kind}, must be a character device: move it away")
        return self._wrong_numbers(known, found, majors)

    def _wrong_numbers(self, known: Known, found: os.stat_result, majors: Mapping[str, int]) -> Trouble | None:
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        if minor != known.minor or known.major not in (None, major):
            wanted = f"{'*' if known.major is None else known.major}:{known.minor}"
            return Trouble(
                f"is character device {major}:{minor}, must be {wanted}: another device was put in its place"
            )
        # The kernel's table counts where it knows the driver: some sandboxes show none of its devices there.
        if known.major is not None or major_of(NVIDIA, majors) is None:
            return None
        current = major_of(known.module, majors)
        if current is None:
            return Trouble(f"is there, but the kernel module {known.module} is not loaded", mendable=True)
        if current != major:
            text = (
                f"is character device {major}:{minor}, must be {current}:{minor} since {known.module} was loaded anew"
            )
            return Trouble(text, mendable=True)
        return None

    def _describe(self, dev: "_Dev", known: Known, majors: Mapping[str, int]) -> DeviceNode:
        found = dev.state(known.name)
        if found is not None and stat.S_ISCHR(found.st_mode):
            return dev.node(known.name, found)
        major = known.major if known.major is not None else major_of(known.module, majors)
        if found is None or major is None:
            raise CdiError(f"device node {dev.shown(known.name)} vanished while it was looked at")
        return dev.numbered(known.name, major, known.minor)

    def _capabilities(self, dev: "_Dev", mig: MigDevice) -> tuple[DeviceNode, ...]:
        minor, instance = mig.parent.minor, mig.gpu_instance_id
        found: tuple[Capability, ...] = (
            self._kernel.capability(minor, instance),
            self._kernel.capability(minor, instance, mig.compute_instance_id),
        )
        return tuple(dev.numbered(f"nvidia-caps/nvidia-cap{c.minor}", c.major, c.minor, c.mode) for c in found)

    def _drm(self, dev: "_Dev", pci_bus_id: str) -> Iterator[DeviceNode]:
        """Those that the dev root has. Raises CdiError for one that is another device."""
        for drm in self._kernel.drm(pci_bus_id):
            name = f"dri/{drm.name}"
            found = dev.state(name)
            if found is None:
                continue
            if not stat.S_ISCHR(found.st_mode) or found.st_rdev != os.makedev(drm.major, drm.minor):
                raise CdiError(
                    f"device node {dev.shown(name)} is not character device {drm.major}:{drm.minor}, "
                    f"which GPU {pci_bus_id} has: another device was put in its place"
                )
            node = dev.node(name, found)
            yield node
            link = f"{_BY_PATH}/pci-{pci_bus_id}{drm.link_end}"
            if dev.leads_to(link, drm.name):
                yield replace(node, path=f"/dev/{link}")


class _Dev:
    """``/dev`` of the dev root, as seen here and as the host has it. Names are relative to it."""

    def __init__(self, roots: DriverRoots) -> None:
        self.roots = roots
        # Joined once: a claim asks for many names.
        self._seen_dev = str(roots.container_dev_root / "dev")
        self._host_dev = str(roots.dev_root / "dev")

    def state(self, name: str) -> os.stat_result | None:
        """State of a node, None when it is not there. Links stay inside the root. Raises CdiError."""
        try:
            found = os.lstat(self._seen(name))
            if stat.S_ISLNK(found.st_mode):
                target = resolve_inside(self.roots.container_dev_root, f"dev/{name}")
                return None if target is None else target.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CdiError(f"device node {self.shown(name)}: {error.strerror}") from error
        return found

    def leads_to(self, link: str, node: str) -> bool:
        """Whether a link by this name is there and points to a node of this base name."""
        try:
            return Path(os.readlink(self._seen(link))).name == node
        except OSError:
            return False

    def node(self, name: str, found: os.stat_result) -> DeviceNode:
        """A node as it is."""
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return self.numbered(name, major, minor, stat.S_IMODE(found.st_mode), found.st_gid)

    def numbered(self, name: str, major: int, minor: int, file_mode: int = 0o666, gid: int = 0) -> DeviceNode:
        """A node by its numbers."""
        return DeviceNode(
            path=f"/dev/{name}", host_path=self._on_host(name), major=major, minor=minor, file_mode=file_mode, gid=gid
        )

    def shown(self, name: str) -> str:
        """Its path for an error text."""
        host, seen = self._on_host(name), self._seen(name)
        return host if host == seen else f"{host} (seen here as {seen})"

    def _seen(self, name: str) -> str:
        return f"{self._seen_dev}/{name}"

    def _on_host(self, name: str) -> str:
        return f"{self._host_dev}/{name}"


_FILE_KINDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
