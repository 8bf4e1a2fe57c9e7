"""Finding the libraries of one driver version under a driver root, and the names a container needs them under.

Only looks; where in a container they go is decided in ``layout``.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from dra_driver.cdi.elf import NotALibrary, soname
from dra_driver.hostfs import LIBRARY_DIRECTORIES, resolve_inside

REQUIRED_LIBRARIES: Final = ("libcuda.so", "libnvidia-ml.so")
"""Without these no container can use a GPU."""

_SUBDIRECTORIES: Final = ("", "vdpau")
_ROOT_DIRECTORY: Final = "usr/lib64"
"""Where libraries that lie in the driver root itself go: no loader looks into ``/``."""

_OWN_VERSION: Final = re.compile(
    r"(libnvidia-egl-(?:gbm|wayland2?|xcb|xlib))\.so\.([0-9]+(?:\.[0-9]+)+)|(libnvidia-nvvm70)\.so\.([0-9]+)"
)
"""Libraries that come with the driver and count their versions for themselves."""

ALWAYS: Final[Mapping[str, tuple[str, str]]] = {
    "libcuda": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-ml": ("libnvidia-ml.so", "libnvidia-ml.so.1"),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    "libGLX_nvidia": ("libGLX_indirect.so.0", ""),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so", ""),
}
"""Library -> a name that programs load it by though it is no SONAME, and what a link of that name points to, '' being
the file itself. A host may lack them: they are made by installers, not by ldconfig.
"""


@dataclass(frozen=True, slots=True)
class Library:
    """One library of the driver.

    name: its file's on the host, e.g. ``libcuda.so.580.159.04``. directory: the search directory it was found in, as a
    container's path; below: its subdirectory there, mostly ''. file: as seen here, links resolved. soname: equal to
    ``name`` for a library that is only loaded by its full name. links: further names, SONAME first -> what a link of
    that name points to.
    """

    name: str
    directory: str
    below: str
    file: Path
    soname: str
    links: Mapping[str, str]

    @property
    def stem(self) -> str:
        """The name without version, e.g. ``libcuda``."""
        return self.name.partition(".so.")[0]

    @property
    def folder(self) -> str:
        """The container's directory it goes to with all its names, ``directory`` and ``below`` together."""
        return str(PurePosixPath(self.directory, self.below))


@dataclass(slots=True)
class LibraryScan:
    """What a driver root has of one driver version, each library once.

    directories: those looked into, resolved. other_versions: required libraries of another driver version that were met
    on the way. refused: file name -> why it is no library for this machine; refused_files: the same as seen here.
    """

    libraries: list[Library] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    other_versions: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    refused_files: list[Path] = field(default_factory=list)

    def get(self, name: str) -> Library | None:
        """The library whose file has this name."""
        return next((library for library in self.libraries if library.name == name), None)


def scan_libraries(root: Path, driver_version: str) -> LibraryScan:
    """All ``*.so.<driver version>`` under ``root``, and what comes with the driver under versions of its own.

    A name found in an earlier search directory wins; libraries for 32-bit programs are left out. The container's
    directory is the search directory, not where links in it lead: on Bottlerocket ``/usr`` is a link into a sysroot
    that no container has.
    """
    scan = LibraryScan()
    for name, below in _search_directories():
        resolved = resolve_inside(root, f"{name}/{below}")
        if resolved is not None and resolved not in scan.directories and resolved.is_dir():
            scan.directories.append(resolved)
            directory = _Directory(root, resolved, f"/{name or _ROOT_DIRECTORY}", below)
            _scan_directory(scan, directory, f".so.{driver_version}")
    return scan


@dataclass(frozen=True, slots=True)
class _Directory:
    """A search directory: where it is seen, and what containers call it."""

    root: Path
    resolved: Path
    name: str
    below: str

    def follow(self, name: str) -> Path | None:
        """The file that an entry leads to."""
        entry = self.resolved / name
        file = resolve_inside(self.root, entry.relative_to(self.root)) if entry.is_symlink() else entry
        return file if file is not None and file.is_file() else None


def _search_directories() -> Iterator[tuple[str, str]]:
    for below in _SUBDIRECTORIES:
        for directory in LIBRARY_DIRECTORIES:
            if directory or not below:
                yield directory, below


def _scan_directory(scan: LibraryScan, directory: _Directory, suffix: str) -> None:
    links: dict[str, str] = {}
    wanted: list[str] = []
    for entry in _shared_objects(directory.resolved):
        if entry.name.endswith(suffix) or (_OWN_VERSION.fullmatch(entry.name) and not entry.is_symlink()):
            wanted.append(entry.name)
        elif entry.is_symlink():
            with suppress(OSError):  # gone since
                links[entry.name] = os.path.basename(os.readlink(entry.path))
        elif entry.name.startswith(tuple(f"{name}." for name in REQUIRED_LIBRARIES)):
            scan.other_versions.append(entry.name)
    known = {library.name for library in scan.libraries}
    found: dict[str, tuple[Path, str]] = {}
    for name in wanted:
        file = directory.follow(name)
        if file is not None and name not in known:
            try:
                found[name] = file, soname(file) or name
            except (NotALibrary, OSError) as error:
                scan.refused.setdefault(name, str(error))
                scan.refused_files.append(file)
    aliases = _aliases(directory, {name: file for name, (file, _) in found.items()}, links)
    for name in _one_of_each(found, aliases, scan.libraries):
        file, own = found[name]
        names = _links(name, own, sorted(alias for alias, target in aliases.items() if target == file))
        scan.libraries.append(Library(name, directory.name, directory.below, file, own, names))


def _shared_objects(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            found = [e for e in entries if ".so" in e.name and e.name.isascii() and e.name.isprintable()]
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def _aliases(directory: _Directory, files: Mapping[str, Path], links: Mapping[str, str]) -> dict[str, Path]:
    """Links of the directory that end at one of ``files``, link name -> file.

    Link texts are compared first, because a library directory holds thousands of links to other libraries and
    following each of them takes longer than the rest of the scan.
    """
    targets = set(files.values())
    followed = {name: directory.follow(name) for name in sorted(_reaching(set(files), links))}
    return {name: file for name, file in followed.items() if file is not None and file in targets}


def _reaching(names: Iterable[str], links: Mapping[str, str]) -> set[str]:
    """Links whose chain of base names leads to one of ``names``."""
    reached, wave = set(), set(names)
    while wave:
        wave = {link for link, target in links.items() if target in wave and link not in reached}
        reached |= wave
    return reached


def _one_of_each(
    found: Mapping[str, tuple[Path, str]], aliases: Mapping[str, Path], before: Iterable[Library]
) -> Iterator[str]:
    """Of libraries with versions of their own the one that is in use: what the SONAME leads to, else the newest."""
    best: dict[str, tuple[bool, tuple[int, ...], str]] = {}
    for name, (file, own) in found.items():
        match = _OWN_VERSION.fullmatch(name)
        if match is None:
            yield name
            continue
        stem, number = match[1] or match[3], match[2] or match[4]
        version = tuple(int(part) for part in number.split("."))
        best[stem] = max(best.get(stem, (False, (), "")), (aliases.get(own) == file, version, name))
    earlier = {library.stem for library in before}
    yield from (name for stem, (_, _, name) in sorted(best.items()) if stem not in earlier)


def _links(name: str, own: str, aliases: Iterable[str]) -> dict[str, str]:
    """Every other name of a library and what it points to: the linker's name to the SONAME, that to the file."""
    links = {own: name} if own != name else {}
    stem = name.partition(".so.")[0]
    for alias in aliases:
        if alias not in (own, name):
            links[alias] = own if alias == f"{stem}.so" else name
    if stem in ALWAYS:
        alias, target = ALWAYS[stem]
        links[alias] = target or name
    return links
