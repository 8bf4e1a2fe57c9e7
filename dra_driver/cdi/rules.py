"""The rules a CDI document must keep to be loaded by a container runtime. Pure: a mapping in, problems out.

A runtime that finds one broken rule drops the whole file, and every pod that names a device in it fails. The
rules are those of the CDI specification 0.3.0 to 1.1.0 as the runtimes' shared library enforces them, with
one of our own: paths are absolute.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

CDI_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""The versions of the specification that runtimes accept, oldest first."""

NODE_TYPES: Final = ("", "b", "c", "p", "u")
HOOK_NAMES: Final = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)

_KIND_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"[rwm]*|none")

_DOCUMENT_KEYS = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
_DEVICE_KEYS = {"name", "annotations", "containerEdits"}
_NODE_KEYS = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
_MOUNT_KEYS = {"hostPath", "containerPath", "options", "type"}
_HOOK_KEYS = {"hookName", "path", "args", "env", "timeout"}
_PLAIN_EDIT_KEYS = {"env", "additionalGids", "intelRdt", "netDevices"}

Problems = Iterator[str]
Check = Callable[[Mapping[str, Any], str], Problems]


def validate(document: Mapping[str, Any]) -> list[str]:
    """All broken rules of a CDI document, each as ``<where>: <what>``; an empty list means it can be
    loaded.
    """
    return [*_document_problems(document)]


def is_device_name(name: str) -> bool:
    """Whether a CDI device may have this name."""
    return _DEVICE_NAME.fullmatch(name) is not None


def edits_problems(edits: object, where: str) -> Problems:
    """Broken rules inside one ``containerEdits`` block."""
    if not isinstance(edits, Mapping):
        yield f"{where}: must be a mapping, found {_kind(edits)}"
        return
    yield from _unknown_keys(edits, {*_LISTS, *_PLAIN_EDIT_KEYS}, where)
    yield from _env_problems(edits.get("env", []), f"{where}.env")
    gids = edits.get("additionalGids", [])
    if not isinstance(gids, list) or not all(_is_count(gid) for gid in gids):
        yield f"{where}.additionalGids: must be a list of group ids"
    for key, check in _LISTS.items():
        yield from _list_problems(edits.get(key, []), check, f"{where}.{key}")


def _list_problems(entries: object, check: Check, where: str) -> Problems:
    if not isinstance(entries, list):
        yield f"{where}: must be a list, found {_kind(entries)}"
        return
    for index, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            yield from check(entry, f"{where}[{index}]")
        else:
            yield f"{where}[{index}]: must be a mapping, found {_kind(entry)}"


def _document_problems(document: Mapping[str, Any]) -> Problems:
    yield from _unknown_keys(document, _DOCUMENT_KEYS, "document")
    version, kind = document.get("cdiVersion"), document.get("kind")
    if version not in CDI_VERSIONS:
        yield f"cdiVersion: found {version!r}, must be one of {', '.join(CDI_VERSIONS)}"
    elif CDI_VERSIONS.index(version) < CDI_VERSIONS.index(needed := minimum_version(document)):
        yield f"cdiVersion: found {version}, what the document uses needs at least {needed}"
    yield from _kind_problems(kind)
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        yield f"devices: must be a list with at least one device, found {devices!r}"
    else:
        yield from _list_problems(devices, _device_problems, "devices")
        yield from _names_twice(devices)
    yield from edits_problems(document.get("containerEdits", {}), "containerEdits")


def _kind_problems(kind: object) -> Problems:
    vendor, slash, device_class = kind.partition("/") if isinstance(kind, str) else ("", "", "")
    if not slash or not _KIND_PART.fullmatch(vendor) or not _KIND_PART.fullmatch(device_class):
        yield f"kind: found {kind!r}, must be <vendor>/<class>, letters first, letters or digits last"


def _device_problems(device: Mapping[str, Any], where: str) -> Problems:
    yield from _unknown_keys(device, _DEVICE_KEYS, where)
    name, edits = device.get("name"), device.get("containerEdits")
    if not isinstance(name, str) or not is_device_name(name):
        yield f"{where}.name: found {name!r}, must start and end with a letter or digit, inner also _ - . :"
    if not isinstance(edits, Mapping) or not any(edits.values()):
        yield f"{where}.containerEdits: must not be empty"
    else:
        yield from edits_problems(edits, f"{where}.containerEdits")


def _names_twice(devices: list[Any]) -> Problems:
    names = Counter(str(device.get("name")) for device in devices if isinstance(device, Mapping))
    for name, times in names.items():
        if times > 1:
            yield f"devices: {name} is there {times} times"


def _node_problems(node: Mapping[str, Any], where: str) -> Problems:
    yield from _unknown_keys(node, _NODE_KEYS, where)
    yield from _path_problems(node, ("path",), where)
    if "hostPath" in node:
        yield from _path_problems(node, ("hostPath",), where)
    if node.get("type", "") not in NODE_TYPES:
        yield f"{where}.type: found {node['type']!r}, must be one of b, c, p, u"
    for key in ("major", "minor", "fileMode", "uid", "gid"):
        if key in node and not _is_count(node[key]):
            yield f"{where}.{key}: found {node[key]!r}, must be a number that is not negative"
    permissions = node.get("permissions", "")
    if not isinstance(permissions, str) or not _PERMISSIONS.fullmatch(permissions):
        yield f"{where}.permissions: found {permissions!r}, must be letters of rwm, or none"


def _mount_problems(mount: Mapping[str, Any], where: str) -> Problems:
    yield from _unknown_keys(mount, _MOUNT_KEYS, where)
    yield from _path_problems(mount, ("hostPath", "containerPath"), where)
    options = mount.get("options", [])
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        yield f"{where}.options: must be a list of words"


def _hook_problems(hook: Mapping[str, Any], where: str) -> Problems:
    yield from _unknown_keys(hook, _HOOK_KEYS, where)
    yield from _path_problems(hook, ("path",), where)
    if hook.get("hookName") not in HOOK_NAMES:
        yield f"{where}.hookName: found {hook.get('hookName')!r}, must be one of {', '.join(HOOK_NAMES)}"
    yield from _env_problems(hook.get("env", []), f"{where}.env")


_LISTS: Final[Mapping[str, Check]] = {
    "deviceNodes": _node_problems,
    "mounts": _mount_problems,
    "hooks": _hook_problems,
}


def _env_problems(env: object, where: str) -> Problems:
    if not isinstance(env, list):
        yield f"{where}: must be a list, found {_kind(env)}"
        return
    for index, entry in enumerate(env):
        if not isinstance(entry, str) or entry.find("=") < 1:
            yield f"{where}[{index}]: found {entry!r}, must be NAME=VALUE"


def _path_problems(owner: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Problems:
    for key in keys:
        path = owner.get(key)
        if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
            yield f"{where}.{key}: found {path!r}, must be an absolute path"


def _unknown_keys(owner: Mapping[str, Any], known: set[str], where: str) -> Problems:
    for key in owner:
        if key not in known:
            yield f"{where}: unknown key {key!r}, must be one of {', '.join(sorted(known))}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _kind(value: object) -> str:
    return type(value).__name__


def minimum_version(document: Mapping[str, Any]) -> str:
    """The oldest version of the specification that has everything the document uses."""
    devices = [d for d in document.get("devices") or [] if isinstance(d, Mapping)]
    blocks = [document.get("containerEdits"), *(device.get("containerEdits") for device in devices)]
    edits = [block for block in blocks if isinstance(block, Mapping)]
    rdt = [block["intelRdt"] for block in edits if isinstance(block.get("intelRdt"), Mapping)]
    if any(block.get("netDevices") for block in edits) or any(
        "schemata" in r or r.get("enableMonitoring") for r in rdt
    ):
        return "1.1.0"
    if rdt or any(block.get("additionalGids") for block in edits):
        return "0.7.0"
    if any(owner.get("annotations") for owner in [document, *devices]) or "." in _class_of(document):
        return "0.6.0"
    return _minimum_of_early_features(devices, edits)


def _minimum_of_early_features(devices: list[Mapping[str, Any]], edits: list[Mapping[str, Any]]) -> str:
    if any(str(device.get("name"))[:1] in "0123456789" for device in devices) or _used(
        edits, "deviceNodes", "hostPath"
    ):
        return "0.5.0"
    return "0.4.0" if _used(edits, "mounts", "type") else "0.3.0"


def _used(edits: list[Mapping[str, Any]], entries: str, key: str) -> bool:
    listed = [entry for block in edits if isinstance(block.get(entries), list) for entry in block[entries]]
    return any(isinstance(entry, Mapping) and entry.get(key) for entry in listed)


def _class_of(document: Mapping[str, Any]) -> str:
    return str(document.get("kind")).partition("/")[2]
