"""The one way from a claim's opaque parameters to a config object, or to an error that a person can act on.

Users' parameters are decoded strictly; what was stored earlier, perhaps by a newer version, leniently.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dra_driver_api.config import models
from dra_driver_api.config.errors import DECODING, VALIDATING, ConfigError, dotted, shorten, shown
from dra_driver_api.config.models import GpuConfig, MigDeviceConfig
from dra_driver_api.config.parsing import parse
from dra_driver_api.names import CONFIG_API_VERSION


class Mode(Enum):
    """STRICT: unknown and repeated keys are errors. LENIENT: they are dropped, the last of two counts."""

    STRICT = "strict"
    LENIENT = "lenient"


_KINDS: Final[Mapping[str, type[GpuConfig] | type[MigDeviceConfig]]] = {
    "GpuConfig": GpuConfig,
    "MigDeviceConfig": MigDeviceConfig,
}
_FOREIGN_KINDS: Final = (
    "VfioDeviceConfig",
    "ComputeDomainChannelConfig",
    "ComputeDomainDaemonConfig",
    "ComputeDomain",
    "ComputeDomainClique",
)
"""Kinds of the same API group that say nothing about a GPU or a MIG device."""

_VARIANTS: Final[Mapping[tuple[str, str], type[BaseModel]]] = {
    ("GpuConfig", "TimeSlicing"): models.TimeSlicing,
    ("GpuConfig", "MPS"): models.Mps,
    ("MigDeviceConfig", "TimeSlicing"): models.MigTimeSlicing,
    ("MigDeviceConfig", "MPS"): models.Mps,
}
_BLOCKS: Final[Mapping[str, type[BaseModel]]] = {
    "timeSlicingConfig": models.TimeSlicingConfig,
    "mpsConfig": models.MpsConfig,
}
_WANTED: Final = {
    "int_type": "an integer",
    "bool_type": "true or false",
    "string_type": "a string",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_REPLICAS: Final = "the number of sharers comes from consumable shares, not from TimeSlicing"
_FLAT: Final = "configs have no metadata and no spec"


def decode(raw: Mapping[str, Any] | str | bytes | None, mode: Mode = Mode.STRICT) -> GpuConfig | MigDeviceConfig:
    """The config in ``opaque.parameters`` (JSON text, or the object that it stands for).

    Raises ConfigError, and nothing else, whatever the input. Rules of ``resource.nvidia.com/v1beta1``; a
    block of the strategy that was not chosen is refused here, where the NVIDIA driver does so in prepare.
    """
    found = parse(raw, refuse_repeated_keys=mode is Mode.STRICT)
    kind = _kind(found)
    extra: Any = "forbid" if mode is Mode.STRICT else "ignore"
    try:
        return _KINDS[kind].model_validate(found, extra=extra, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
    raise _problem(kind, details)


def _kind(found: Mapping[str, Any]) -> str:
    """The kind, one of _KINDS, of an object whose apiVersion is ours."""
    version, kind = found.get("apiVersion"), found.get("kind")
    valid = f"valid: apiVersion {CONFIG_API_VERSION} with kind {' or '.join(_KINDS)}"
    for key, value in (("apiVersion", version), ("kind", kind)):
        if value is None or value == "":
            nearest = _nearest(key, found)
            instead = f' (found "{nearest}")' if nearest and nearest != key else ""
            raise ConfigError(f'{DECODING}field "{key}" is missing{instead}, {valid}', (key,))
        if not isinstance(value, str):
            raise ConfigError(f"{DECODING}{key}: want a string, found {shown(value)}, {valid}", (key,))
    if version != CONFIG_API_VERSION:
        raise ConfigError(f"{DECODING}unknown apiVersion {shown(version)}, {valid}", ("apiVersion",))
    if kind in _FOREIGN_KINDS:
        raise ConfigError(
            f"runtime object is not a recognized configuration: kind {shown(kind)}, valid kinds: {', '.join(_KINDS)}",
            ("kind",),
        )
    if kind not in _KINDS:
        raise ConfigError(f"{DECODING}unknown kind {shown(kind)}{_near(str(kind), _KINDS)}, {valid}", ("kind",))
    return str(kind)


def _problem(kind: str, details: Sequence[ErrorDetails]) -> ConfigError:
    """The error to show of all that were found: unknown keys first, as they explain the others."""
    detail = min(details, key=lambda one: one["type"] != "extra_forbidden")
    path = _path(detail)
    if detail["type"] == "extra_forbidden":
        hint = _hint(kind, path, _siblings(kind, detail))
        return ConfigError(f'{DECODING}strict decoding error: unknown field "{dotted(path)}"{hint}', path)
    context = detail.get("ctx", {})
    if detail["type"] == "config_rule":
        return ConfigError(f"{VALIDATING}{context['message']} (at {dotted(path)})", path)
    if detail["type"] == "config_shape":
        return ConfigError(f"{DECODING}{dotted(path)}: {context['message']}", path)
    wanted = _WANTED.get(detail["type"])
    text = f"want {wanted}, found {shown(detail['input'])}" if wanted else detail["msg"]
    return ConfigError(f"{DECODING}{dotted(path)}: {text}", path)


def _path(detail: ErrorDetails) -> tuple[str, ...]:
    """JSON path of an error; pydantic's location also has the strategy, as the name of the union's arm."""
    keys = tuple(str(part) for part in detail["loc"])
    if keys[:1] == ("sharing",):
        keys = (keys[0], *keys[2:])
    key = detail.get("ctx", {}).get("key")
    return (*keys, key) if key else keys


def _siblings(kind: str, detail: ErrorDetails) -> list[str]:
    """The keys known at the place of an unknown one."""
    parents = [str(part) for part in detail["loc"][:-1]]
    if not parents:
        model: type[BaseModel] = _KINDS[kind]
    elif len(parents) == 2:
        model = _VARIANTS[kind, parents[1]]
    else:
        model = _BLOCKS[parents[-1]]
    return [info.alias or name for name, info in model.model_fields.items()]


def _hint(kind: str, path: Sequence[str], known: list[str]) -> str:
    """What to write in place of the unknown key at the end of ``path``."""
    key = path[-1]
    if key.lower() == "replicas":
        return f": {_REPLICAS}"
    if len(path) == 1 and key in ("metadata", "spec"):
        return f": {_FLAT}, known fields: {', '.join(known)}"
    if kind == "MigDeviceConfig" and key in ("timeSlicingConfig", "interval"):
        return f": a MIG device has no time-slice interval, known fields: {', '.join(known)}"
    return f"{_near(key, known) or _elsewhere(key)}, known fields: {', '.join(known)}"


def _nearest(key: str, known: Iterable[str]) -> str:
    """The known key that looks most like ``key``, '' when none does."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(shorten(key).lower(), by_lower, n=1)
    return shorten(by_lower[close[0]]) if close else ""


def _near(key: str, known: Iterable[str]) -> str:
    """The key that was perhaps meant, in parentheses; '' when none is near."""
    nearest = _nearest(key, known)
    return f' (did you mean "{nearest}"?)' if nearest else ""


def _elsewhere(key: str) -> str:
    """Where a known key belongs that was put at another depth."""
    if key in ("strategy", *_BLOCKS):
        return ' (it belongs in "sharing")'
    for block, model in _BLOCKS.items():
        if any(info.alias == key for info in model.model_fields.values()):
            return f' (it belongs in "sharing.{block}")'
    return ""
