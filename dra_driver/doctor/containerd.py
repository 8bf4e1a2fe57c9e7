"""What containerd's configuration says of CDI and of its default runtime: main file and imports, of any version."""

import fnmatch
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.doctor.host import Host

FILES: Final = (
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/containerd/config.toml",
)
"""Where distributions have it; those that start a containerd of their own come first."""

PROGRAMS: Final = ("/usr/bin/containerd", "/usr/local/bin/containerd")
DEFAULT_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")

_SECTIONS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
"""The plugin that reads CDI: its name in configuration of version 3, 2 and 1."""

CDI_BY_DEFAULT: Final = 2
"""From this release on CDI is on unless it is switched off; and a plugin's sections of several files are merged, where
before the last one counted alone.
"""


_CONFIG_OF_NEWER: Final = 3
"""Version of a configuration that only such releases read."""

_VERSION: Final = "version"


class BadConfig(Exception):
    """The configuration cannot be read; the text names the file. remedy: what to do."""

    def __init__(self, text: str, remedy: str = "mend the file: containerd reads it when it starts") -> None:
        super().__init__(text)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Containerd:
    """files: read, the main one first. enable_cdi: None where nothing says whether it is on.

    default_runtime: '' where the configuration names none.
    """

    files: tuple[Path, ...]
    enable_cdi: bool | None
    directories: tuple[str, ...]
    default_runtime: str


def read(host: Host, release: tuple[int, ...] | None) -> Containerd | None:
    """The configuration, None when there is no file. release: of containerd, if known. Raises BadConfig."""
    main = next((path for path in map(Path, FILES) if host.is_file(path)), None)
    if main is None:
        return None
    documents = list(_documents(host, main))
    version = documents[0][1].get(_VERSION, 1)
    newer = release[0] >= CDI_BY_DEFAULT if release else version >= _CONFIG_OF_NEWER
    section: dict[str, Any] = {}
    for _, document in documents:
        found = _section(document)
        section = _merged(section, found) if newer or not found else dict(found)
    enabled = section.get("enable_cdi")
    if not isinstance(enabled, bool):
        enabled = True if newer else False if release else None
    directories = section.get("cdi_spec_dirs")
    named = isinstance(directories, list) and directories
    return Containerd(
        files=tuple(path for path, _ in documents),
        enable_cdi=enabled,
        directories=tuple(map(str, directories or ())) if named else DEFAULT_DIRECTORIES,
        default_runtime=str(_mapping(section.get("containerd")).get("default_runtime_name") or ""),
    )


def _documents(host: Host, main: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The main file and what it imports, in the order in which containerd puts one over the other."""
    pending, done = [main], set()
    while pending:
        path = pending.pop(0)
        # The file itself, since links give one file endlessly many paths.
        seen = host.seen(path)
        if seen in done:
            continue
        done.add(seen)
        document = _document(host, path)
        yield path, document
        imports = document.get("imports")
        pending.extend(_imported(host, path, imports if isinstance(imports, list) else []))


def _document(host: Host, path: Path) -> Mapping[str, Any]:
    text = host.read(path)
    if text is None and path in host.unreadable:
        raise BadConfig(f"{path} may not be read by this user", "run as root")
    if text is None:
        raise BadConfig(f"{path} is {'not there' if host.seen(path) is None else 'no file that can be read'}")
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadConfig(f"{path}: {error}") from error
    version = document.get(_VERSION, 1)
    if not isinstance(version, int) or isinstance(version, bool):
        raise BadConfig(f"{path}: {_VERSION}: found {version!r}, must be a number, e.g. {_CONFIG_OF_NEWER}")
    return document


def _imported(host: Host, parent: Path, patterns: list[Any]) -> Iterator[Path]:
    for pattern in patterns:
        path = Path(os.path.normpath(parent.parent / str(pattern)))
        if "*" in str(path):
            yield from _matches(host, path)
        else:
            yield path


def _matches(host: Host, pattern: Path) -> list[Path]:
    """What is there by a pattern, whose stars may stand in folders too."""
    found = [Path("/")]
    for part in pattern.parts[1:]:
        if "*" in part:
            found = [path / name for path in found for name in host.names(path) if fnmatch.fnmatchcase(name, part)]
        else:
            found = [path / part for path in found if host.seen(path / part) is not None]
    return found


def _section(document: Mapping[str, Any]) -> Mapping[str, Any]:
    plugins = _mapping(document.get("plugins"))
    return next((_mapping(plugins[name]) for name in _SECTIONS if name in plugins), {})


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
