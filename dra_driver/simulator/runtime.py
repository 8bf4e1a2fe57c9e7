"""What a container runtime does with CDI device ids: reads the specs in its directories and applies the edits.

Rules: the CDI specification, and the cache of ``tags.cncf.io/container-device-interface``. Nothing is started.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dra_driver.model.errors import DriverError

Json = dict[str, Any]

_KIND = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z][A-Za-z0-9_-]*$")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InjectionError(DriverError):
    """A container cannot be made as the CDI specs say."""

    kind = "runtime"


@dataclass(slots=True)
class Edits:
    """What the specs add to one container."""

    env: dict[str, str] = field(default_factory=dict)
    device_nodes: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    file: Path
    spec: Json
    device: Json


class CdiRegistry:
    """The CDI specs of a node, read afresh for each container."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = tuple(directories)

    def inject(self, ids: Iterable[str]) -> Edits:
        """The edits for a container with these devices, each device once.

        Raises InjectionError for ids that no spec resolves or two specs claim, and for host paths that are
        not there, which would keep a real container from starting.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return Edits()
        known = self._read()
        missing = [name for name in wanted if len(known.get(name, ())) != 1]
        if missing:
            raise InjectionError(f"unresolvable CDI devices {', '.join(missing)}")
        edits, applied = Edits(), set[Path]()
        for found in (known[name][0] for name in wanted):
            if found.file not in applied:
                applied.add(found.file)
                _apply(edits, found.spec.get("containerEdits") or {})
            _apply(edits, found.device.get("containerEdits") or {})
        return edits

    def files(self) -> list[Path]:
        """The spec files that a runtime would read."""
        found = [p for d in self._directories if d.is_dir() for p in d.iterdir()]
        return sorted(p for p in found if p.suffix in (".json", ".yaml") and p.is_file())

    def _read(self) -> dict[str, list[_Found]]:
        """Qualified device names and where they are defined; a file that is not a spec counts as absent."""
        known: dict[str, list[_Found]] = {}
        for file in self.files():
            for name, found in _devices(file):
                known.setdefault(name, []).append(found)
        return known


def _devices(file: Path) -> list[tuple[str, _Found]]:
    try:
        text = file.read_text(encoding="utf-8")
        spec = json.loads(text) if file.suffix == ".json" else yaml.load(text, _Loader)  # noqa: S506 - safe
    except (OSError, ValueError, yaml.YAMLError):
        return []
    if not isinstance(spec, dict) or "cdiVersion" not in spec or not _KIND.match(str(spec.get("kind"))):
        return []
    return [(f"{spec['kind']}={d.get('name')}", _Found(file, spec, d)) for d in spec.get("devices") or []]


def _apply(edits: Edits, added: Json) -> None:
    for entry in added.get("env") or []:
        name, _, value = entry.partition("=")
        edits.env[name] = value
    for node in added.get("deviceNodes") or []:
        _require(node.get("hostPath") or node["path"], "device")
        if node["path"] not in edits.device_nodes:
            edits.device_nodes.append(node["path"])
    for mount in added.get("mounts") or []:
        _require(mount["hostPath"], "mount source")
        if mount["containerPath"] not in edits.mounts:
            edits.mounts.append(mount["containerPath"])
    edits.hooks += [hook["path"] for hook in added.get("hooks") or []]


def _require(path: str, what: str) -> None:
    if not Path(path).exists():
        raise InjectionError(f"CDI {what} {path} does not exist on the host")
