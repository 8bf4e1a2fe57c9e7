"""What a container gets of a driver besides libraries: programs, firmware, configuration, X.Org modules, sockets.

Only looks. Each find is a container's path -> the file as seen here, links resolved inside the root.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dra_driver.hostfs import BINARY_DIRECTORIES, LIBRARY_DIRECTORIES, find_binary, find_file, resolve_inside

BINARIES: Final = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-xconfig",
)
IPC_PATHS: Final = ("nvidia-fabricmanager/socket", "nvidia-persistenced/socket")
MPS_DIRECTORY: Final = "tmp/nvidia-mps"

_RUN_DIRECTORIES: Final = ("run", "var/run")
_FIRMWARE: Final = ("gsp*.bin", "ucode*.bin")
_CONFIG_DIRECTORIES: Final = ("etc", "usr/local/share", "usr/share", "share")
"""The last is that of a root with a layout of its own, such as ``/usr/local/nvidia``."""

_SHARED_CONFIGS: Final = (
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "glvnd/egl_vendor.d/10_nvidia.json",
    "nvidia/nvoptix.bin",
)
_SYSTEM_CONFIGS: Final = (
    "OpenCL/vendors/nvidia.icd",
    f"vulkan/icd.d/nvidia_icd.{os.uname().machine}.json",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_MODULE_DIRECTORIES: Final = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)
_MODULE_ROOTS: Final = (*filter(None, LIBRARY_DIRECTORIES), "usr/X11R6/lib", "usr/X11R6/lib64")


def binaries(root: Path) -> dict[str, Path]:
    """The driver's programs, in ``/usr/bin``: a directory that every PATH has, wherever the host keeps them."""
    found = {name: find_binary(root, name) for name in BINARIES}
    return {f"/usr/bin/{name}": path for name, path in found.items() if path is not None}


def firmware(root: Path, driver_version: str) -> dict[str, Path]:
    """Firmware of this version, in ``/lib/firmware``; the first directory that has a file wins."""
    found: dict[str, Path] = {}
    for directory in _firmware_directories(driver_version):
        place = resolve_inside(root, directory)
        for path in sorted(match for name in _FIRMWARE for match in place.glob(name)) if place is not None else ():
            file = resolve_inside(root, path.relative_to(root))
            if file is not None and file.is_file():
                found.setdefault(f"/lib/firmware/nvidia/{driver_version}/{path.name}", file)
    return found


def configs(root: Path) -> dict[str, Path]:
    """Configuration of EGL, Vulkan, OpenCL and X.Org, where the loaders of any image look for it.

    The host's own place does not matter. Vulkan's may also lie right in the root, as on GKE.
    """
    found = {f"/usr/share/{name}": find_file(root, _CONFIG_DIRECTORIES, name) for name in _SHARED_CONFIGS}
    for name in _SYSTEM_CONFIGS:
        found[f"/etc/{name}"] = find_file(root, (*_CONFIG_DIRECTORIES, ""), name)
    return {container_path: file for container_path, file in found.items() if file is not None}


def xorg_modules(root: Path, driver_version: str) -> dict[str, Path]:
    """Modules of the X server, at their host's places, as its configuration may name them."""
    found: dict[str, Path] = {}
    for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{driver_version}"):
        for directory in _module_directories():
            file = find_file(root, (directory,), name)
            if file is not None:
                found[f"/{directory}/{name}"] = file
                break
    return found


def sockets(root: Path) -> dict[str, Path]:
    """What programs in containers talk to the host's daemons through."""
    places = {f"/run/{name}": [f"{run}/{name}" for run in _RUN_DIRECTORIES] for name in IPC_PATHS}
    places[f"/{MPS_DIRECTORY}"] = [MPS_DIRECTORY]
    found = {path: [resolve_inside(root, candidate) for candidate in listed] for path, listed in places.items()}
    first = {path: next((seen for seen in listed if seen is not None), None) for path, listed in found.items()}
    return {path: seen for path, seen in first.items() if seen is not None}


def places(driver_version: str) -> Iterator[str]:
    """Where all of this is looked for, relative to the root: what changes when a file comes or goes."""
    yield from BINARY_DIRECTORIES
    yield from _firmware_directories(driver_version)
    for directory in _CONFIG_DIRECTORIES:
        yield from sorted({os.path.dirname(f"{directory}/{name}") for name in (*_SHARED_CONFIGS, *_SYSTEM_CONFIGS)})
    yield from sorted({os.path.dirname(name) for name in _SYSTEM_CONFIGS})
    yield from _module_directories()
    yield from (f"{run}/{name}" for run in _RUN_DIRECTORIES for name in IPC_PATHS)
    yield MPS_DIRECTORY


def module_links(modules: Mapping[str, Path]) -> dict[str, str]:
    """Links that X.Org loads modules by: link -> what it points to."""
    named = [path for path in modules if os.path.basename(path).startswith("libglxserver_nvidia.so.")]
    return {f"{os.path.dirname(path)}/libglxserver_nvidia.so": os.path.basename(path) for path in named}


def _firmware_directories(driver_version: str) -> Iterator[str]:
    release = os.uname().release
    own = (f"lib/firmware/updates/{release}", "lib/firmware/updates", f"lib/firmware/{release}")
    for directory in (*own, "lib/firmware", "usr/lib/firmware", "firmware"):
        yield f"{directory}/nvidia/{driver_version}"


def _module_directories() -> list[str]:
    return [f"{root}/{directory}" for root in _MODULE_ROOTS for directory in _MODULE_DIRECTORIES]
