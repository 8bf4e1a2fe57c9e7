"""From command line and environment to ``Settings``. Flag beats environment beats default."""

import argparse
import json
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from dra_driver.cdi.tools import EditsSource, HookMode
from dra_driver.features import CONSUMABLE_SHARES, MPS_SUPPORT
from dra_driver.model.errors import SettingError
from dra_driver.settings.table import TABLE, Setting
from dra_driver.settings.values import MpsLauncher, Settings
from dra_driver.sharing.memory_limits import ShareMemory
from dra_driver_api.names import DRIVER_NAME

_MAX_SHOWN = 200
_MAX_SOCKET_PATH: Final = 107
"""Longest path of a Unix socket on Linux, in bytes: ``sun_path`` less its closing NUL."""


def add_options(
    parser: argparse.ArgumentParser,
    *,
    only: Collection[str] | None = None,
    optional: Mapping[str, str] | None = None,
) -> None:
    """Add the options of all settings, or of the fields in ``only``, in the groups of the table.

    optional: required fields that a command can do without, and what it takes in their place, for the help.
    """
    defaults = optional or {}
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in _chosen(only):
        group = groups.get(setting.group)
        if group is None:
            group = groups[setting.group] = parser.add_argument_group(setting.group)
        group.add_argument(
            *setting.flags,
            dest=setting.field,
            metavar=setting.metavar,
            help=describe(setting, defaults.get(setting.field)),
        )


def describe(setting: Setting, instead: str | None = None) -> str:
    """A setting's help: what it is, then on a line of its own its environment names and default.

    instead: the default to show in place of the setting's own.
    """
    default = instead or setting.shown_default or setting.default
    notes = [f"${' or $'.join(setting.env)}"]
    if default:
        notes.append(f"default: {default}")
    elif setting.required:
        notes.append("required")
    return f"{setting.help}\n({'; '.join(notes)})".replace("%", "%%")


def load(
    options: argparse.Namespace,
    environ: Mapping[str, str] | None = None,
    *,
    only: Collection[str] | None = None,
    optional: Collection[str] = (),
) -> Settings:
    """Read the settings.

    options: the parsed command line. environ: the process's own when None. only: the fields a command offers,
    as given to ``add_options``; the others take their defaults, whatever the environment says. optional:
    fields that this command can do without. Raises SettingError, one line that names setting, value and valid
    values.
    """
    environ = os.environ if environ is None else environ
    chosen = {setting.field for setting in _chosen(only)}
    values: dict[str, Any] = {}
    for setting in TABLE:
        text, env = _find(setting, options, environ) if setting.field in chosen else (setting.default, None)
        if setting.required and not text and setting.field in chosen and setting.field not in optional:
            raise SettingError(f"{setting.flag} is required: {setting.help} (or set {setting.env[0]})")
        values[setting.field] = _parse(setting, text, env)
    if values["state_directory"] is None:
        values["state_directory"] = values["kubelet_plugins_directory"] / DRIVER_NAME
    settings = Settings(**values)
    _check_together(settings)
    if "mps_launcher" in chosen:
        _check_mps(settings)
    return settings


def _chosen(only: Collection[str] | None) -> Iterable[Setting]:
    return TABLE if only is None else [setting for setting in TABLE if setting.field in only]


def _find(setting: Setting, options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """The text of a setting, and the environment variable it came from."""
    given = getattr(options, setting.field, None)
    if given is not None:
        return str(given), None
    for name in setting.env:
        text = environ.get(name)
        if text or (text is not None and setting.empty_env_counts):
            return text, name
    return setting.default, None


def _parse(setting: Setting, text: str, env: str | None) -> Any:
    try:
        return setting.parse(text)
    except (ValueError, SettingError) as error:
        shown = json.dumps(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
        origin = f", from environment variable {env}" if env else ""
        raise SettingError(f"invalid value for {setting.flag}: {shown} ({error}){origin}") from error


def _check_together(settings: Settings) -> None:
    if settings.cdi_edits is EditsSource.NVIDIA_CTK and settings.cdi_hooks is HookMode.NONE:
        raise SettingError(
            "--cdi-edits=nvidia-ctk needs hooks, which --cdi-hooks=none forbids: "
            "set --cdi-hooks to auto or nvidia-cdi-hook, or --cdi-edits to auto or builtin"
        )
    _check_sharing(settings)
    sockets = (
        ("--kubelet-registrar-directory-path", settings.registration_socket),
        ("--kubelet-plugins-directory-path", settings.dra_socket),
    )
    for flag, socket in sockets:
        length = len(os.fsencode(socket))
        if length > _MAX_SOCKET_PATH:
            raise SettingError(
                f"invalid value for {flag}: the socket {socket} would have a path of {length} bytes, "
                f"at most {_MAX_SOCKET_PATH} are allowed"
            )


def _check_sharing(settings: Settings) -> None:
    shares, profile, most = settings.consumable_shares, settings.sharing_profile, settings.max_clients_per_gpu
    if CONSUMABLE_SHARES not in settings.gates:
        remedy = f"add {CONSUMABLE_SHARES}=true to --feature-gates or"
        requires = f"requires feature gate {CONSUMABLE_SHARES} to be enabled: it is"
        if shares.shared:
            raise SettingError(f"--consumable-shares {requires} {shares}, {remedy} set it to disabled")
        if settings.share_memory is not ShareMemory.NONE:
            raise SettingError(f"--share-memory {requires} {settings.share_memory.value}, {remedy} set it to none")
        if profile is not None:
            raise SettingError(f"--sharing-profile {requires} {profile}, {remedy} leave it out")
    if shares.count > most:
        raise SettingError(
            f"--consumable-shares={shares.count} means {shares.count} clients on a GPU, at most {most} are allowed: "
            f"lower it or raise --max-clients-per-gpu={most}"
        )


def _check_mps(settings: Settings) -> None:
    launched = MPS_SUPPORT in settings.gates and settings.mps_launcher is MpsLauncher.DEPLOYMENT
    if launched and not settings.image_name:
        raise SettingError(
            f"feature gate {MPS_SUPPORT} with --mps-launcher=deployment requires --image-name (or IMAGE_NAME), the "
            "image of MPS control daemons, which is the driver's own: set it, or set --mps-launcher=process, or leave "
            "the gate off"
        )
