"""Driver installations in a temporary directory, laid out as on the hosts that the driver meets in the field.

Libraries are ELF files that hold nothing but their SONAME, other files have a line of text, device nodes are regular
files (placeholders) unless the tests make real ones.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.kernel_devices import KernelDevices
from dra_driver.cdi.tools import HOOK_FREE, Tools
from dra_driver.devices.elf import shared_object
from dra_driver.hostfs import DriverRoots
from tests.kernel_tree import KernelTree

VERSION = "580.159.04"
MACHINE = os.uname().machine

SONAMES = {
    "libEGL_nvidia": "0",
    "libGLESv1_CM_nvidia": "1",
    "libGLESv2_nvidia": "2",
    "libGLX_nvidia": "0",
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvcuvid": "1",
    "libnvidia-allocator": "1",
    "libnvidia-cfg": "1",
    "libnvidia-encode": "1",
    "libnvidia-fbc": "1",
    "libnvidia-ml": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-opencl": "1",
    "libnvidia-opticalflow": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libnvoptix": "1",
}
"""Libraries of an R580 driver that are loaded by SONAME, and its number."""

UNVERSIONED = (
    "libnvidia-eglcore",
    "libnvidia-glcore",
    "libnvidia-glsi",
    "libnvidia-glvkspirv",
    "libnvidia-gpucomp",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-rtcore",
    "libnvidia-tls",
)
"""Libraries that are loaded by their full name; the host has at most a linker name for them."""

EGL_GBM = "1.1.2"
"""Version of libnvidia-egl-gbm, which comes with the driver and counts for itself."""

BINARIES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a distribution puts the driver. Paths are relative to the driver root, except the roots themselves.

    links: link -> target, made before the files. vdpau: directory of libvdpau_nvidia, '' for none. extras: further
    files.
    """

    driver_root: str = "/"
    dev_root: str = "/"
    libraries: str
    binaries: str
    firmware: str
    links: dict[str, str] = field(default_factory=dict)
    vdpau: str = ""
    extras: tuple[str, ...] = ()
    old_libraries: str | None = None


_SYSROOT = "x86_64-bottlerocket-linux-gnu/sys-root/usr"

AL2023 = Layout(
    libraries="usr/lib64",
    binaries="usr/bin",
    firmware="usr/lib/firmware",
    links={"lib64": "usr/lib64", "lib": "usr/lib", "bin": "usr/bin", "sbin": "usr/sbin"},
    vdpau="usr/lib64/vdpau",
    extras=(
        "etc/OpenCL/vendors/nvidia.icd",
        "usr/sbin/ldconfig",
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
        f"usr/share/vulkan/icd.d/nvidia_icd.{MACHINE}.json",
        "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    ),
)
"""EKS AL2023: RPMs on the host, merged /usr."""

BOTTLEROCKET = Layout(
    libraries="usr/lib",
    binaries="usr/bin",
    firmware="usr/lib/firmware",
    links={"usr": f"/{_SYSROOT}", "lib": "usr/lib", "bin": "usr/bin", "lib64": "usr/lib", "sbin": "usr/sbin"},
    extras=("usr/sbin/ldconfig",),
    old_libraries="usr/lib/nvidia/tesla",
)
"""Bottlerocket 1.63 and later: /usr is a link into the sysroot, the old library directory has links."""

BOTTLEROCKET_OLD = Layout(
    libraries="usr/lib/nvidia/tesla",
    binaries="usr/libexec/nvidia/tesla/bin",
    firmware="usr/lib/firmware",
    extras=("sbin/ldconfig",),
)
"""Bottlerocket before 1.63."""

GPU_OPERATOR = Layout(
    driver_root="/run/nvidia/driver",
    dev_root="/run/nvidia/driver",
    libraries="usr/lib/x86_64-linux-gnu",
    binaries="usr/bin",
    firmware="lib/firmware",
    vdpau="usr/lib/x86_64-linux-gnu/vdpau",
    extras=(
        "etc/OpenCL/vendors/nvidia.icd",
        "etc/vulkan/icd.d/nvidia_icd.json",
        "etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "usr/lib/x86_64-linux-gnu/nvidia/xorg/nvidia_drv.so",
        f"usr/lib/x86_64-linux-gnu/nvidia/xorg/libglxserver_nvidia.so.{VERSION}",
        "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
    ),
)
"""The GPU Operator's driver container (Ubuntu), mounted with its own /dev."""

GKE = Layout(
    driver_root="/home/kubernetes/bin/nvidia",
    libraries="lib64",
    binaries="bin",
    firmware="firmware",
    extras=("vulkan/icd.d/nvidia_icd.json",),
)
"""GKE: a directory of the driver's own, Vulkan's files right in it; device nodes are the host's."""

DEBIAN = Layout(
    libraries="usr/lib/x86_64-linux-gnu/nvidia/current",
    binaries="usr/bin",
    firmware="usr/lib/firmware",
    links={"lib64": "usr/lib64", "lib": "usr/lib", "bin": "usr/bin", "sbin": "usr/sbin"},
    extras=("etc/OpenCL/vendors/nvidia.icd", "usr/sbin/ldconfig", "usr/share/vulkan/icd.d/nvidia_icd.json"),
)
"""Debian's own packages: multiarch, the driver in a directory of its own that alternatives lead to."""

USR_LOCAL_NVIDIA = Layout(
    driver_root="/usr/local/nvidia",
    libraries="lib64",
    binaries="bin",
    firmware="firmware",
    extras=(
        "share/glvnd/egl_vendor.d/10_nvidia.json",
        "share/vulkan/icd.d/nvidia_icd.json",
        "share/vulkan/implicit_layer.d/nvidia_layers.json",
    ),
)
"""A host with the driver in a directory of its own, as an H200 was met."""

USR_LOCAL = Layout(driver_root="/usr/local", libraries="lib", binaries="bin", firmware="lib/firmware")
"""A read-only host whose driver comes as an extension below /usr/local."""

LAYOUTS = {
    "al2023": AL2023,
    "bottlerocket": BOTTLEROCKET,
    "bottlerocket-old": BOTTLEROCKET_OLD,
    "debian": DEBIAN,
    "gke": GKE,
    "gpu-operator": GPU_OPERATOR,
    "usr-local-nvidia": USR_LOCAL_NVIDIA,
    "usr-local": USR_LOCAL,
}


class DriverTree:
    """A driver root and a dev root under ``base``, as a container sees them; or a driver root at ``root``."""

    def __init__(self, base: Path, layout: Layout, root: Path | None = None) -> None:
        self.layout = layout
        self.root = root or base / "driver-root"
        self.dev_root = self.root if layout.dev_root == layout.driver_root else base / "dev-root"
        self.roots = DriverRoots(
            driver_root=Path(layout.driver_root),
            dev_root=Path(layout.dev_root),
            container_driver_root=self.root,
            container_dev_root=self.dev_root,
        )
        (self.dev_root / "dev").mkdir(parents=True)
        self.root.mkdir(exist_ok=True)
        self._make_links()

    def library(self, name: str, version: str = VERSION) -> Path:
        """Path of a library, e.g. ``libcuda``."""
        return self.path(f"{self.layout.libraries}/{name}.so.{version}")

    def node(self, name: str) -> Path:
        """Path of a device node, e.g. ``nvidia0``."""
        return self.dev_root / "dev" / name

    def path(self, relative: str) -> Path:
        """A path under the driver root, its links followed as on the host."""
        if os.path.isabs(relative) or ".." in Path(relative).parts:
            raise ValueError(f"{relative}: must be relative to the driver root and stay in it")
        root = here = str(self.root)
        for part in Path(relative).parts:
            here = f"{here}/{part}"
            if os.path.islink(here) and os.path.isabs(target := os.readlink(here)):
                here = f"{root}/{target.lstrip('/')}"
        return Path(here)

    def add(self, relative: str, text: str = "driver\n") -> Path:
        """Make a file under the driver root."""
        path = self.path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def add_library(self, relative: str, soname: str = "") -> Path:
        """Make a library under the driver root; its SONAME is the file's name unless another is given."""
        path = self.add(relative)
        path.write_bytes(shared_object(soname or path.name))
        return path

    def install(self, version: str = VERSION) -> None:
        """Libraries with their links, programs, firmware and configuration of a driver version."""
        libraries = self.layout.libraries
        for name, number in SONAMES.items():
            self._install_library(libraries, f"{name}.so", version, number)
        for name in UNVERSIONED:
            self.add_library(f"{libraries}/{name}.so.{version}")
        self.add_library(f"{libraries}/libnvidia-nvvm70.so.4")
        self._install_library(libraries, "libnvidia-egl-gbm.so", EGL_GBM, "1")
        self.link(f"{libraries}/libGLX_indirect.so.0", f"libGLX_nvidia.so.{version}")
        if self.layout.vdpau:
            self._install_library(self.layout.vdpau, "libvdpau_nvidia.so", version, "1")
        for name in BINARIES:
            self.add(f"{self.layout.binaries}/{name}").chmod(0o755)
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
            self.add(f"{self.layout.firmware}/nvidia/{version}/{name}")
        for name in self.layout.extras:
            self.add(name)
        if self.layout.old_libraries:
            self._link_old_libraries(version, self.layout.old_libraries)

    def _install_library(self, directory: str, linker_name: str, version: str, number: str) -> None:
        self.add_library(f"{directory}/{linker_name}.{version}", f"{linker_name}.{number}")
        self.link(f"{directory}/{linker_name}.{number}", f"{linker_name}.{version}")
        self.link(f"{directory}/{linker_name}", f"{linker_name}.{number}")

    def link(self, relative: str, target: str) -> None:
        """Make or replace a link under the driver root."""
        path = self.path(str(Path(relative).parent)) / Path(relative).name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def make_nodes(self, *names: str) -> None:
        """Placeholders for device nodes."""
        for name in names:
            self.node(name).touch()

    def with_nodes(self, gpus: int = 1) -> "DriverTree":
        """Placeholders for the common nodes and those of ``gpus`` GPUs, and a /proc that knows of them."""
        KernelTree(self.root).load("nvidia", "nvidia-uvm", "nvidia-caps").list_mig_minors(gpus)
        self.make_nodes("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{minor}" for minor in range(gpus)))
        return self

    def _make_links(self) -> None:
        for link, target in self.layout.links.items():
            self.path(target.lstrip("/")).mkdir(parents=True, exist_ok=True)
            (self.root / link).symlink_to(target)

    def _link_old_libraries(self, version: str, directory: str) -> None:
        for name in ("libcuda", "libnvidia-ml"):
            self.link(f"{directory}/{name}.so.{version}", f"../../{name}.so.{version}")
            self.link(f"{directory}/{name}.so.1", f"../../{name}.so.{version}")


def driver_tree(base: Path, layout: Layout = AL2023, gpus: int = 1) -> DriverTree:
    """A whole installation with placeholder nodes for ``gpus`` GPUs."""
    tree = DriverTree(base, layout).with_nodes(gpus)
    tree.install()
    return tree


def driver_files(roots: DriverRoots, tools: Tools = HOOK_FREE) -> DriverFiles:
    """Files under these roots; device nodes are placeholders, none is made, /proc and /sys are the driver root's."""
    root = roots.container_driver_root
    kernel = KernelDevices(root / "proc", root / "sys")
    return DriverFiles(roots, DeviceNodes(roots, kernel, placeholders=True), tools)
