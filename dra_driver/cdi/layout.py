"""Where the driver's files go in a container, with hooks and without. Pure: finds in, edits out.

With ``nvidia-cdi-hook`` each library is mounted once, at its own directory; hooks make the links and the loader's cache
inside the container. Without it nothing runs there, so each library is mounted under every name that programs load it
by, where the loaders of all images look without a cache.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_driver.cdi.hook_program import COMPAT, LDCACHE, NODE_MODIFICATION, PROFILE, SYMLINKS, HookProgram
from dra_driver.cdi.libraries import ALWAYS, Library
from dra_driver.cdi.spec import VOID, Env, Hook, Mount

FILE_OPTIONS: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
IPC_OPTIONS: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

HOOK_FREE_DIRECTORY: Final = "/usr/local/nvidia/lib64"
"""NVIDIA's images, and those made for GKE, have it in their LD_LIBRARY_PATH."""

_MULTIARCH: Final[Mapping[str, str]] = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}

HostPath = Callable[[Path], Path]
"""From a path as seen here to the host's."""

VOID_MOUNT: Final = Mount(
    host_path="/dev/null",
    container_path="/var/run/nvidia-container-devices/void",
    options=("ro", "nosuid", "nodev", "bind"),
)
"""What ``VOID`` is, for a runtime of NVIDIA's that is set up to be told by mounts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finds:
    """What a driver root has of one driver version. Paths as seen here, each mapping from the container's path.

    links: further links that containers need -> what they point to. refused: files that are no libraries, or not yet.
    """

    driver_version: str
    libraries: Sequence[Library]
    files: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, Path] = field(default_factory=dict)
    refused: Sequence[Path] = ()


@dataclass(frozen=True, slots=True)
class FileEdits:
    """The edits of a container that do not depend on device nodes."""

    mounts: tuple[Mount, ...]
    env: tuple[Env, ...]
    hooks: tuple[Hook, ...] = ()


def with_hooks(finds: Finds, program: HookProgram, on_host: HostPath) -> FileEdits:
    """Libraries at their own directories, links and loader cache by hooks, those that the program has."""
    libraries = {f"{library.folder}/{library.name}": library.file for library in finds.libraries}
    links = {f"{each.folder}/{link}": target for each in finds.libraries for link, target in each.links.items()}
    links = {os.path.normpath(link): target for link, target in {**links, **finds.links}.items()}
    folders = sorted({library.folder for library in finds.libraries})
    calls: dict[str, list[str]] = {
        SYMLINKS: [part for link in sorted(links) for part in ("--link", f"{links[link]}::{link}")],
        COMPAT: [f"--host-driver-version={finds.driver_version}"],
        LDCACHE: [part for folder in folders for part in ("--folder", folder)],
        NODE_MODIFICATION: [],
        PROFILE: [],
    }
    hooks = tuple(program.hook(name, arguments) for name, arguments in calls.items() if name in program.subcommands)
    return FileEdits(_mounts({**finds.files, **libraries}, finds.sockets, on_host), _env(_libcuda(finds).folder), hooks)


def hook_free(finds: Finds, on_host: HostPath, machine: str) -> FileEdits:
    """Libraries under all names, in ``HOOK_FREE_DIRECTORY`` and in the directories that loaders look into by default.

    machine: as ``uname -m`` says. LD_LIBRARY_PATH is left alone, as a variable in a CDI spec takes the place of the
    image's. Triton, which compiles kernels for PyTorch, asks the loader's cache for libcuda, and that does not have it.
    """
    libraries: dict[str, Path] = {}
    for library in finds.libraries:
        for directory in (HOOK_FREE_DIRECTORY, *default_directories(machine)):
            everything = directory == HOOK_FREE_DIRECTORY
            for name in _names(library, everything):
                libraries.setdefault(os.path.normpath(f"{directory}/{library.below}/{name}"), library.file)
    targets = {path: os.path.join(os.path.dirname(path), target) for path, target in finds.links.items()}
    linked = {path: finds.files[target] for path, target in targets.items() if target in finds.files}
    mounts = _mounts({**finds.files, **linked, **libraries}, finds.sockets, on_host)
    return FileEdits(mounts, (Env("TRITON_LIBCUDA_PATH", HOOK_FREE_DIRECTORY), *_env(HOOK_FREE_DIRECTORY)))


def default_directories(machine: str) -> tuple[str, ...]:
    """Where the dynamic loaders of images look without cache or environment: Red Hat's family, then Debian's."""
    return ("/usr/lib64", f"/usr/lib/{_MULTIARCH[machine]}" if machine in _MULTIARCH else "/usr/lib")


def _names(library: Library, everything: bool) -> Iterator[str]:
    """The SONAME, and what programs load though it is none; ``everything``: the linker's names as well."""
    yield library.soname
    if everything:
        yield from library.links
    elif library.stem in ALWAYS:
        yield ALWAYS[library.stem][0]


def _mounts(files: Mapping[str, Path], sockets: Mapping[str, Path], on_host: HostPath) -> tuple[Mount, ...]:
    return (*_bound(files, FILE_OPTIONS, on_host), *_bound(sockets, IPC_OPTIONS, on_host), VOID_MOUNT)


def _bound(files: Mapping[str, Path], options: tuple[str, ...], on_host: HostPath) -> Iterable[Mount]:
    for path in sorted(files):
        yield Mount(host_path=str(on_host(files[path])), container_path=path, options=options)


def _libcuda(finds: Finds) -> Library:
    return next(library for library in finds.libraries if library.stem == "libcuda")


def _env(libcuda_directory: str) -> tuple[Env, ...]:
    """The first tells hooks of NVIDIA's toolkit, run by other tools, where libcuda is inside the container."""
    return Env("NVIDIA_CTK_LIBCUDA_DIR", libcuda_directory), VOID
