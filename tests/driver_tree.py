"""Driver installations in a temporary directory, laid out as on the hosts that the driver meets in the field.

Files have a line of text, device nodes are regular files (placeholders) unless the tests make real ones.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from dra_driver.hostfs import DriverRoots

VERSION = "580.159.04"

SONAMES = {
    "libEGL_nvidia": "0",
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvcuvid": "1",
    "libnvidia-allocator": "1",
    "libnvidia-cfg": "1",
    "libnvidia-encode": "1",
    "libnvidia-ml": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-opencl": "1",
    "libnvidia-opticalflow": "1",
    "libnvidia-ptxjitcompiler": "1",
    "libnvoptix": "1",
}
"""Libraries of an R580 driver that are loaded by SONAME, and its number."""

UNVERSIONED = ("libnvidia-eglcore", "libnvidia-gpucomp", "libnvidia-nvvm70", "libnvidia-tls")
"""Libraries that are loaded by their full name; the host has at most a linker name for them."""

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

    links: link -> target, made before the files.
    """

    driver_root: str = "/"
    dev_root: str = "/"
    libraries: str
    binaries: str
    firmware: str
    links: dict[str, str] = field(default_factory=dict)
    old_libraries: str | None = None


_SYSROOT = "x86_64-bottlerocket-linux-gnu/sys-root/usr"

AL2023 = Layout(
    libraries="usr/lib64",
    binaries="usr/bin",
    firmware="usr/lib/firmware",
    links={"lib64": "usr/lib64", "lib": "usr/lib", "bin": "usr/bin", "sbin": "usr/sbin"},
)
"""EKS AL2023: RPMs on the host, merged /usr."""

BOTTLEROCKET = Layout(
    libraries="usr/lib",
    binaries="usr/bin",
    firmware="usr/lib/firmware",
    links={"usr": f"/{_SYSROOT}", "lib": "usr/lib", "bin": "usr/bin", "lib64": "usr/lib"},
    old_libraries="usr/lib/nvidia/tesla",
)
"""Bottlerocket 1.63 and later: /usr is a link into the sysroot, the old library directory has links."""

BOTTLEROCKET_OLD = Layout(
    libraries="usr/lib/nvidia/tesla", binaries="usr/libexec/nvidia/tesla/bin", firmware="usr/lib/firmware"
)
"""Bottlerocket before 1.63."""

GPU_OPERATOR = Layout(
    driver_root="/run/nvidia/driver",
    dev_root="/run/nvidia/driver",
    libraries="usr/lib/x86_64-linux-gnu",
    binaries="usr/bin",
    firmware="lib/firmware",
)
"""The GPU Operator's driver container, mounted with its own /dev."""

USR_LOCAL_NVIDIA = Layout(driver_root="/usr/local/nvidia", libraries="lib64", binaries="bin", firmware="firmware")
"""A host with the driver in a directory of its own."""

USR_LOCAL = Layout(driver_root="/usr/local", libraries="lib", binaries="bin", firmware="lib/firmware")
"""A read-only host whose driver comes as an extension below /usr/local."""

LAYOUTS = {
    "al2023": AL2023,
    "bottlerocket": BOTTLEROCKET,
    "bottlerocket-old": BOTTLEROCKET_OLD,
    "gpu-operator": GPU_OPERATOR,
    "usr-local-nvidia": USR_LOCAL_NVIDIA,
    "usr-local": USR_LOCAL,
}


class DriverTree:
    """A driver root and a dev root under ``base``, as a container sees them."""

    def __init__(self, base: Path, layout: Layout) -> None:
        self.layout = layout
        self.root = base / "driver-root"
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
        here = self.root
        for part in Path(relative).parts:
            here /= part
            if here.is_symlink() and os.path.isabs(target := os.readlink(here)):
                here = self.root / target.lstrip("/")
        return here

    def add(self, relative: str, text: str = "driver\n") -> Path:
        """Make a file under the driver root."""
        path = self.path(relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def install(self, version: str = VERSION) -> None:
        """Libraries with their links, programs and firmware of a driver version."""
        libraries = self.layout.libraries
        for name in (*SONAMES, *UNVERSIONED):
            self.add(f"{libraries}/{name}.so.{version}")
        for name, number in SONAMES.items():
            self.link(f"{libraries}/{name}.so.{number}", f"{name}.so.{version}")
            self.link(f"{libraries}/{name}.so", f"{name}.so.{number}")
        self.link(f"{libraries}/libGLX_indirect.so.0", f"libEGL_nvidia.so.{version}")
        for name in BINARIES:
            self.add(f"{self.layout.binaries}/{name}").chmod(0o755)
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
            self.add(f"{self.layout.firmware}/nvidia/{version}/{name}")
        if self.layout.old_libraries:
            self._link_old_libraries(version, self.layout.old_libraries)

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
        """Placeholders for the common nodes and those of ``gpus`` GPUs."""
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
