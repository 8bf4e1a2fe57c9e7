"""Checks of the kubelet's directories, and of who else offers this node's GPUs to it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dra_driver.doctor.findings import Finding, ok, problem, warning
from dra_driver.doctor.host import Host
from dra_driver.model.texts import listed
from dra_driver_api.names import DRIVER_NAME

STATE_FILE: Final = "state.db"
"""This driver's own database in its plugin directory."""

OTHER_STATE_FILE: Final = "checkpoint.json"
"""What NVIDIA's driver for the same name keeps there."""

_KUBELET_ROOTS: Final = ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
_REGISTRY: Final = "plugins_registry"
_PLUGINS: Final = "plugins"
_SHOWN: Final = 4
_DEVICE_PLUGINS: Final = "device-plugins"
_CHECKPOINT: Final = "kubelet_internal_checkpoint"
_RESOURCE_PREFIX: Final = "nvidia.com/"
_BOTTLEROCKET_MARKER: Final = "/etc/nvidia-dra-driver-gpu/enabled"
_BOTTLEROCKET_OFF: Final = (
    "settings.kubelet-device-plugins.nvidia.enabled = false and settings.kubelet-dra-drivers.nvidia.enabled = false"
)


def check_directories(host: Host, registry: Path, plugins: Path) -> Iterator[Finding]:
    """Whether the directories that the settings name are the kubelet's."""
    unseen = [str(path) for path in (registry, plugins) if not host.sees(path)]
    if unseen:
        yield warning("kubelet", f"{' and '.join(unseen)} cannot be seen from here", "mount them, or run on the node")
        return
    missing = [path for path in (registry, plugins) if not host.is_directory(path)]
    facts = {"registry": str(registry), "plugins": str(plugins), "missing": [str(path) for path in missing]}
    if not missing:
        yield ok("kubelet", f"registers plugins in {registry}, keeps their files in {plugins}", **facts)
        return
    text = f"{' and '.join(map(str, missing))} {'is' if len(missing) == 1 else 'are'} not there"
    if host.unreadable & {*missing, registry.parent, plugins.parent}:
        yield warning("kubelet", f"{text}, or may not be seen by this user", "run as root", **facts)
        return
    others = [root for root in _KUBELET_ROOTS if host.is_directory(Path(root, _REGISTRY))]
    if others:
        flags = (
            f"--kubelet-registrar-directory-path={others[0]}/{_REGISTRY}",
            f"--kubelet-plugins-directory-path={others[0]}/{_PLUGINS}",
        )
        text += f"; this node's kubelet has its root at {others[0]}"
        yield problem("kubelet", text, f"set {' '.join(flags)}", **facts)
    else:
        remedy = (
            "start the kubelet; if it has another --root-dir, name its plugins_registry and plugins in the settings"
        )
        yield problem("kubelet", text, remedy, **facts)


def check_publishers(host: Host, registry: Path, plugins: Path) -> Iterator[Finding]:
    """Who offers this node's GPUs: one at a time may."""
    others = [*_device_plugin(host, plugins), *_bottlerocket_driver(host), *_other_dra_driver(host, registry, plugins)]
    yield from others
    watched = (_kubelet_root(plugins) / _DEVICE_PLUGINS, registry, plugins, Path(_BOTTLEROCKET_MARKER))
    closed = sorted(str(path) for path in host.unreadable if any(map(path.is_relative_to, watched)))
    if not others and closed:
        text = f"whether anybody offers GPUs here cannot be seen: this user may not read {listed(closed, _SHOWN)}"
        yield warning("publishers", text, "run as root", registrations=_registrations(host, registry))
    elif not others:
        sockets = _registrations(host, registry)
        who = f"this driver alone is registered ({sockets[0]})" if sockets else "nobody offers GPUs here at present"
        yield ok("publishers", who, registrations=sockets)


def _device_plugin(host: Host, plugins: Path) -> Iterator[Finding]:
    """NVIDIA's device plugin, by its socket and by what the kubelet has noted."""
    directory = _kubelet_root(plugins) / _DEVICE_PLUGINS
    if not host.sees(directory):
        text = f"{directory} cannot be seen from here, so a device plugin goes unnoticed"
        yield warning("publishers", text, "run on the node, or with --root where the host's / is mounted")
        return
    sockets = [str(directory / name) for name in host.sockets(directory) if "nvidia" in name.lower()]
    resources, holders = _noted(host, directory / _CHECKPOINT)
    if not sockets and not resources:
        if holders:
            text = f"the device plugin has left, but pods still hold {', '.join(sorted(holders))}"
            yield warning("publishers", text, "drain the node before claims are made on its GPUs", resources=[])
        return
    offered = ", ".join(f"{name}: {count}" for name, count in sorted(resources.items())) or "resources not known here"
    remedy = (
        f"Bottlerocket: {_BOTTLEROCKET_OFF}"
        if _is_bottlerocket(host)
        else "keep its DaemonSet off this node (node affinity; with the GPU Operator the label "
        "nvidia.com/gpu.deploy.device-plugin=false)"
    )
    yield problem(
        "publishers",
        f"a device plugin offers the same GPUs ({offered}; {', '.join(sockets) or 'no socket seen'})",
        f"{remedy}, and drain the node first",
        sockets=sockets,
        resources=resources,
    )


def _noted(host: Host, path: Path) -> tuple[dict[str, int], set[str]]:
    """Registered resources of NVIDIA's with their number of devices, and those that pods hold."""
    try:
        data = json.loads(host.read(path) or "{}").get("Data") or {}
        registered = {name: len(ids or ()) for name, ids in (data.get("RegisteredDevices") or {}).items()}
        held = {entry["ResourceName"] for entry in data.get("PodDeviceEntries") or ()}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return {}, set()
    return (
        {name: count for name, count in registered.items() if name.startswith(_RESOURCE_PREFIX) and count},
        {name for name in held if str(name).startswith(_RESOURCE_PREFIX)},
    )


def _bottlerocket_driver(host: Host) -> Iterator[Finding]:
    if (host.read(Path(_BOTTLEROCKET_MARKER)) or "").strip():
        yield problem(
            "publishers",
            f"Bottlerocket's built-in DRA driver is switched on ({_BOTTLEROCKET_MARKER})",
            f"set {_BOTTLEROCKET_OFF}, so that this driver alone publishes {DRIVER_NAME}",
        )


def _other_dra_driver(host: Host, registry: Path, plugins: Path) -> Iterator[Finding]:
    """Another driver of our name, by its files, and registrations that are more than one driver has."""
    sockets = _registrations(host, registry)
    files = host.names(plugins / DRIVER_NAME)
    facts: dict[str, Any] = {"registrations": sockets}
    if OTHER_STATE_FILE in files and STATE_FILE not in files:
        where = plugins / DRIVER_NAME / OTHER_STATE_FILE
        if sockets:
            text = f"another driver is registered as {DRIVER_NAME} ({sockets[0]}, with {where})"
            yield problem(
                "publishers", text, "remove NVIDIA's DRA driver from this node; drain the node first", **facts
            )
        else:
            text = f"NVIDIA's DRA driver has been here ({where})"
            yield warning("publishers", text, "see that no pod still holds a claim that it prepared", **facts)
    elif sockets and STATE_FILE not in files and not host.unreadable & {plugins, plugins / DRIVER_NAME}:
        text = f"something is registered as {DRIVER_NAME} ({sockets[0]}), and this driver has no records here"
        yield problem("publishers", text, f"find out what else serves {DRIVER_NAME} on this node, and stop it", **facts)
    elif len(sockets) > 1:
        text = f"{len(sockets)} sockets register {DRIVER_NAME}: {', '.join(sockets)}"
        remedy = "nothing during an update of this driver; else remove what is not this driver's"
        yield warning("publishers", text, remedy, **facts)


def _registrations(host: Host, registry: Path) -> list[str]:
    return [str(registry / name) for name in host.sockets(registry) if name.startswith(DRIVER_NAME)]


def _kubelet_root(plugins: Path) -> Path:
    return plugins.parent if plugins.name == _PLUGINS else Path(_KUBELET_ROOTS[0])


def _is_bottlerocket(host: Host) -> bool:
    return "\nID=bottlerocket" in f"\n{host.read(Path('/etc/os-release')) or ''}"
