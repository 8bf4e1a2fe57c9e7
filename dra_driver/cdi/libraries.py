"""Finding the libraries of one driver version under a driver root, and the names a container needs them
under.

Only looks at directories; what becomes of the finds is decided in ``driver_files``.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from dra_driver.hostfs import LIBRARY_DIRECTORIES, resolve_inside

REQUIRED_LIBRARIES: Final = ("libcuda.so", "libnvidia-ml.so")
"""Without these no container can use a GPU; both have the SONAME ``<name>.1``."""

_SUBDIRECTORIES: Final = ("", "vdpau")
_ROOT_DIRECTORY: Final = "usr/lib64"
"""Where libraries that lie in the driver root itself go: no loader looks into ``/``."""


@dataclass(slots=True)
class LibraryScan:
    """What a driver root has of one driver version.

    mounts: container path -> file seen under the root, links resolved. directories: those looked into,
    resolved. found: library names as they are on the host, e.g. ``libcuda.so.580.159.04`` -> container path.
    other_versions: required libraries of another driver version that were met on the way.
    """

    mounts: dict[str, Path] = field(default_factory=dict)
    directories: list[Path] = field(default_factory=list)
    found: dict[str, str] = field(default_factory=dict)
    other_versions: list[str] = field(default_factory=list)


def scan_libraries(root: Path, driver_version: str) -> LibraryScan:
    """All ``*.so.<driver version>`` under ``root``, with the SONAME and linker-name links that lead to them.

    A name found in an earlier search directory wins, so 32-bit twins in ``/usr/lib`` stay out. The container
    path is the search directory, not where links in it lead: on Bottlerocket ``/usr`` is a link into a
    sysroot that no container has. Without hooks nothing makes links inside the container, so each link
    becomes a name of its own.
    """
    scan = LibraryScan()
    for directory in _search_directories():
        resolved = resolve_inside(root, directory)
        if resolved is not None and resolved not in scan.directories and resolved.is_dir():
            scan.directories.append(resolved)
            _scan_directory(scan, root, _Directory(directory, resolved), f".so.{driver_version}")
    return scan


@dataclass(frozen=True, slots=True)
class _Directory:
    """A search directory, relative to the root as searched, and where it really is."""

    name: str
    resolved: Path

    def container_path(self, file: str) -> str:
        return str(PurePosixPath("/", self.name or _ROOT_DIRECTORY, file))


def _search_directories() -> Iterator[str]:
    for below in _SUBDIRECTORIES:
        for directory in LIBRARY_DIRECTORIES:
            if directory or not below:
                yield f"{directory}/{below}".rstrip("/")


def _scan_directory(scan: LibraryScan, root: Path, directory: _Directory, suffix: str) -> None:
    links: dict[str, str] = {}
    here: dict[str, Path] = {}
    for entry in _shared_objects(directory.resolved):
        if entry.name.endswith(suffix):
            file = resolve_inside(root, (directory.resolved / entry.name).relative_to(root))
            if file is not None and file.is_file() and entry.name not in scan.found:
                here[entry.name] = file
                scan.found[entry.name] = directory.container_path(entry.name)
        elif entry.is_symlink():
            links[entry.name] = os.path.basename(os.readlink(entry.path))
        elif entry.name.startswith(tuple(f"{name}." for name in REQUIRED_LIBRARIES)):
            scan.other_versions.append(entry.name)
    for name, file in {**here, **_aliases(root, directory, here, links), **_sonames(here, suffix)}.items():
        scan.mounts.setdefault(directory.container_path(name), file)


def _shared_objects(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            found = [e for e in entries if ".so" in e.name and e.name.isascii() and e.name.isprintable()]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def _aliases(root: Path, directory: _Directory, files: Mapping[str, Path], links: Mapping[str, str]) -> dict[str, Path]:
    """Links of the directory that end at one of ``files``, link name -> file.

    Link texts are compared first, because a library directory holds thousands of links to other libraries and
    following each of them takes longer than the rest of the scan.
    """
    likely = _reaching(set(files), links)
    targets = set(files.values())
    aliases = {}
    for name in sorted(likely):
        file = resolve_inside(root, (directory.resolved / name).relative_to(root))
        if file is not None and file in targets:
            aliases[name] = file
    return aliases


def _reaching(names: Iterable[str], links: Mapping[str, str]) -> set[str]:
    """Links whose chain of base names leads to one of ``names``."""
    reached, wave = set(), set(names)
    while wave:
        wave = {link for link, target in links.items() if target in wave and link not in reached}
        reached |= wave
    return reached


def _sonames(files: Mapping[str, Path], suffix: str) -> dict[str, Path]:
    """The SONAMEs of the required libraries, which a root that never saw ldconfig may lack as links."""
    present = {name: files.get(name.removesuffix(".so") + suffix) for name in REQUIRED_LIBRARIES}
    return {f"{name}.1": file for name, file in present.items() if file is not None}
