"""A claim's CDI spec as frozen values, and its text. Pure: no file is looked at here.

The common edits of a node are large (every driver library) and the same for all claims, so their text is made
once for each ``Edits`` value and put behind the claim's own few lines.
"""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import yaml

from dra_driver.cdi.rules import edits_problems, is_device_name, validate
from dra_driver.model.errors import CdiError
from dra_driver_api import names

__all__ = [
    "VOID",
    "ClaimSpec",
    "DeviceEdits",
    "DeviceNode",
    "Edits",
    "Env",
    "Hook",
    "Mount",
    "build_spec",
    "render",
    "validate",
]

_WORLD_READ_WRITE: Final = 0o006
_SHOWN_PROBLEMS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device: ``path`` in the container, ``host_path`` on the host. ``gid`` 0 is left out."""

    path: str
    host_path: str
    major: int
    minor: int
    file_mode: int = 0o666
    gid: int = 0

    def document(self) -> dict[str, Any]:
        """As CDI writes it. The type is given, so a runtime needs no look at the host's node."""
        return {
            "path": self.path,
            "hostPath": self.host_path,
            "type": "c",
            "major": self.major,
            "minor": self.minor,
            "fileMode": self.file_mode,
            "permissions": "rwm",
            **({"gid": self.gid} if self.gid else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of one host file, directory or socket."""

    host_path: str
    container_path: str
    options: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """As CDI writes it."""
        return {
            "hostPath": self.host_path,
            "containerPath": self.container_path,
            "options": list(self.options),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that the runtime calls while it makes the container.

    stage: when, as CDI names it, e.g. ``createContainer``. args: all of them, the program's name first.
    """

    stage: str
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As CDI writes it."""
        return {
            "hookName": self.stage,
            "path": self.path,
            "args": list(self.args),
            **({"env": list(self.env)} if self.env else {}),
        }


@dataclass(frozen=True, slots=True)
class Env:
    """An environment variable of the container."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


VOID: Final = Env("NVIDIA_VISIBLE_DEVICES", "void")
"""Tells NVIDIA's own runtime to stay out, or an image that asks for ``all`` would see GPUs it has no claim
for.
"""


@dataclass(frozen=True, kw_only=True)
class Edits:
    """What changes in a container. The text and the check of it are made once for each value."""

    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[Env, ...] = ()
    hooks: tuple[Hook, ...] = ()

    @cached_property
    def additional_gids(self) -> tuple[int, ...]:
        """Groups without which an unprivileged process could not open the nodes."""
        closed = {n.gid for n in self.device_nodes if n.file_mode & _WORLD_READ_WRITE != _WORLD_READ_WRITE}
        return tuple(sorted(closed - {0}))

    def document(self) -> dict[str, Any]:
        """As CDI writes it; empty lists are left out."""
        whole = {
            "env": [str(variable) for variable in self.env],
            "deviceNodes": [node.document() for node in self.device_nodes],
            "mounts": [mount.document() for mount in self.mounts],
            "hooks": [hook.document() for hook in self.hooks],
            "additionalGids": list(self.additional_gids),
        }
        return {key: value for key, value in whole.items() if value}

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Broken CDI rules."""
        return tuple(edits_problems(self.document(), "containerEdits"))

    @cached_property
    def block(self) -> str:
        """The YAML lines of a top-level ``containerEdits``."""
        return _yaml({"containerEdits": self.document()})

    @cached_property
    def device_block(self) -> str:
        """The same lines, inside an entry of ``devices``."""
        return textwrap.indent(self.block, "  ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEdits:
    """What one device brings; ``name`` as in ResourceSlices, e.g. ``gpu-0``."""

    name: str
    edits: Edits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """A whole and checked spec; devices sorted by name, each once. Made by ``build_spec``."""

    claim_uid: str
    devices: tuple[DeviceEdits, ...]
    common: Edits

    @property
    def version(self) -> str:
        """The oldest CDI version that has all that the spec uses: host paths of nodes 0.5.0, groups 0.7.0."""
        all_edits = (self.common, *(device.edits for device in self.devices))
        return "0.7.0" if any(edits.additional_gids for edits in all_edits) else "0.5.0"

    @property
    def device_ids(self) -> tuple[str, ...]:
        """The fully qualified CDI ids the file defines, in its order."""
        return tuple(names.cdi_device_id(self.claim_uid, device.name) for device in self.devices)

    @property
    def text(self) -> str:
        """The file's content."""
        return render(self)

    def document(self) -> dict[str, Any]:
        """The whole spec as CDI's JSON shape."""
        devices = [
            {
                "name": names.cdi_device_name(self.claim_uid, device.name),
                "containerEdits": device.edits.document(),
            }
            for device in self.devices
        ]
        return {
            "cdiVersion": self.version,
            "kind": names.CDI_KIND,
            "devices": devices,
            "containerEdits": self.common.document(),
        }


def build_spec(claim_uid: str, devices: Iterable[DeviceEdits], common: Edits) -> ClaimSpec:
    """Put a claim's spec together; a device named twice with the same edits is there once.

    Raises CdiError, naming the place in the document, for anything empty, partial or not allowed by CDI: a
    claim without devices, a device without a node, common edits without nodes, libraries or
    ``NVIDIA_VISIBLE_DEVICES=void``, a claim UID or device name that CDI cannot carry.
    """
    by_name: dict[str, DeviceEdits] = {}
    for device in devices:
        _check_device(claim_uid, device)
        if by_name.setdefault(device.name, device) != device:
            raise _error(claim_uid, f"devices[{device.name}]", "is there twice, with different containerEdits")
    if not by_name:
        raise _error(claim_uid, "devices", "is empty, must have at least one device")
    _check_common(claim_uid, common)
    return ClaimSpec(claim_uid=claim_uid, devices=tuple(by_name[name] for name in sorted(by_name)), common=common)


def render(spec: ClaimSpec) -> str:
    """The spec as one YAML document, equal in content to a plain dump of ``spec.document()``.

    Quotes alone make a device name safe: ``build_spec`` lets no character pass that has a meaning in them.
    """
    head = f"cdiVersion: {spec.version}\nkind: {names.CDI_KIND}\ndevices:\n"
    devices = (
        f'- name: "{names.cdi_device_name(spec.claim_uid, device.name)}"\n{device.edits.device_block}'
        for device in spec.devices
    )
    return "".join((head, *devices, spec.common.block))


def _check_device(claim_uid: str, device: DeviceEdits) -> None:
    where = f"devices[{device.name}]"
    if not is_device_name(names.cdi_device_name(claim_uid, device.name)):
        raise _error(claim_uid, f"{where}.name", "must be letters, digits, _ - . : with a letter or digit at the ends")
    if not device.edits.device_nodes:
        raise _error(claim_uid, f"{where}.containerEdits.deviceNodes", "is empty, must have the GPU's /dev node")
    _refuse_problems(claim_uid, where + ".", device.edits)


def _check_common(claim_uid: str, common: Edits) -> None:
    for key, entries in (("deviceNodes", common.device_nodes), ("mounts", common.mounts)):
        if not entries:
            raise _error(claim_uid, f"containerEdits.{key}", "is empty, must have the driver's files")
    if VOID not in common.env:
        raise _error(claim_uid, "containerEdits.env", f"lacks {VOID}")
    _refuse_problems(claim_uid, "", common)


def _refuse_problems(claim_uid: str, prefix: str, edits: Edits) -> None:
    if edits.problems:
        shown = [prefix + problem for problem in edits.problems[:_SHOWN_PROBLEMS]]
        raise CdiError(f"CDI spec of claim {claim_uid}: {'; '.join(shown)}")


def _error(claim_uid: str, place: str, what: str) -> CdiError:
    return CdiError(f"CDI spec of claim {claim_uid}: {place} {what}")


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """libyaml's emitter where there is one, and never an anchor: not every reader takes them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _yaml(document: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=4096)
    return text
