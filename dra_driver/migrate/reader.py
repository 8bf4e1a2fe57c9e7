"""Tells what a file or an object of a cluster is, and has it read. Pure."""

import tomllib
from collections.abc import Callable, Iterable
from typing import Any, Final

from dra_driver.migrate import device_plugin, others
from dra_driver.migrate.legacy import CONFIG_LABEL, Json, Legacy, Outcome
from dra_driver.migrate.workloads import workload
from dra_driver.scheduling.shapes import misshapen
from dra_driver.validation.documents import Unreadable, read_documents


def read_text(text: str, where: str, documents: Iterable[Any], legacy: Legacy) -> None:
    """A file: Bottlerocket TOML by its table headers, a script by GKE's flags, else YAML documents.

    documents: of the text as YAML; looked at only where it is that.
    """
    if where.endswith(".toml") or text.lstrip().startswith("[settings"):
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            legacy.say(Outcome.WRONG, where, "TOML", str(error))
            return
        others.bottlerocket(content, where, legacy)
    elif "--accelerator" in text:
        others.gke_flags(text, where, legacy)
    else:
        for document in documents:
            read_object(document, where, legacy)


def read_object(content: Any, where: str, legacy: Legacy) -> None:
    """One document, or one object of a cluster. What says nothing about GPUs is left out without a word."""
    if not isinstance(content, dict):
        legacy.say(Outcome.WRONG, where, str(content)[:60], "no object")
        return
    kind = str(content.get("kind") or "")
    if kind and not kind.endswith("List") and (wrong := misshapen(kind if kind in _KINDS else "", content)):
        legacy.say(Outcome.WRONG, where, f"{kind} {_full_name(content)}".rstrip(), wrong)
    elif kind.endswith("List"):
        typed = {"apiVersion": content.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
        items = content.get("items")
        for item in items if isinstance(items, list) else ():
            read_object({**typed, **item} if isinstance(item, dict) else item, where, legacy)
    elif kind in _KINDS:
        _KINDS[kind](content, where, legacy)
    elif kind:
        if (found := workload(content, where)) is not None:
            if wrong := misshapen("PodSpec", found.pod_spec):
                at = f"{kind} {_full_name(content)}: {'.'.join(found.path)}"
                legacy.say(Outcome.WRONG, where, at, wrong)
            else:
                legacy.workloads.append(found)
    elif (read := next((read for known, read in _FORMATS if known(content)), None)) is not None:
        read(content, where, legacy)
    else:
        keys = ", ".join(map(str, list(content)[:5]))
        legacy.say(Outcome.WRONG, where, f"keys {keys}", "not known: nothing was read from it")


def finish(legacy: Legacy) -> None:
    """Read what had to wait until everything else was read."""
    for content, where in legacy.config_maps:
        _config_map(content, where, legacy)
    legacy.config_maps.clear()


def _config_map(content: Json, where: str, legacy: Legacy) -> None:
    name = _full_name(content)
    configs: dict[str, Json] = {}
    empty: dict[str, Json] = {}
    for key, text in (content.get("data") or {}).items():
        at = f"{where}: ConfigMap {name}, key {key}"
        try:
            found = [document.data for document in read_documents(str(text))]
        except Unreadable as error:
            if "sharing:" in str(text) or "mig-configs" in str(text):
                legacy.say(Outcome.WRONG, at, f"line {error.line}", str(error))
            continue
        for document in found:
            if device_plugin.is_config(document):
                configs[key] = document
            elif document == device_plugin.EMPTY:
                empty[key] = document
            elif isinstance(document, dict) and "mig-configs" in document:
                others.mig_parted(document, at, legacy)
    # What says nothing but a version may be anybody's; beside configs it is one for nodes with whole GPUs.
    configs |= empty if configs else {}
    default = _default(configs, legacy, f"{where}: ConfigMap {name}")
    for key, document in configs.items():
        labels = {} if key == default else {CONFIG_LABEL: key}
        device_plugin.read(document, f"{where}: ConfigMap {name}, key {key}", legacy, key, labels)


def _default(configs: dict[str, Json], legacy: Legacy, where: str) -> str | None:
    """The config of nodes without a label: the one that is named so, or the only one."""
    if legacy.default_config:
        if configs and legacy.default_config not in configs:
            legacy.say(
                Outcome.DECIDE, where, f"default config {legacy.default_config}", f"there are: {', '.join(configs)}"
            )
        return legacy.default_config
    if "default" in configs:
        return "default"
    if len(configs) == 1:
        return next(iter(configs))
    if configs:
        said = f"which of them do nodes without the label {CONFIG_LABEL} have? --default-config says it; none so far"
        legacy.say(Outcome.DECIDE, where, f"configs {', '.join(configs)}", said)
    return None


def _full_name(content: Json) -> str:
    """With its namespace, where it says one."""
    metadata = content.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return "/".join(str(known[key]) for key in ("namespace", "name") if known.get(key))


def _quota(content: Json, where: str, legacy: Legacy) -> None:
    for key, amount in _entries(content, "hard"):
        if "nvidia.com/" in key:
            said = "limit gpu.nvidia.com.deviceclass.resource.k8s.io/devices too, which counts devices of claims"
            legacy.say(Outcome.DECIDE, where, f"ResourceQuota {_full_name(content)}: {key}: {amount}", said)


def _karpenter(content: Json, where: str, legacy: Legacy) -> None:
    if not str(content.get("apiVersion", "")).startswith("karpenter.sh/"):
        return
    for key, amount in _entries(content, "limits"):
        if "nvidia.com/" in key:
            said = "nodes with DRA have no such resource: use limits.nodes"
            legacy.say(
                Outcome.DECIDE, where, f"NodePool {content['metadata'].get('name')}: limits {key}: {amount}", said
            )


def _entries(content: Json, field: str) -> list[tuple[str, Any]]:
    found = (content.get("spec") or {}).get(field)
    return [(str(key), amount) for key, amount in found.items()] if isinstance(found, dict) else []


def _has_accelerators(content: Json) -> bool:
    config = content.get("config")
    return isinstance(config, dict) and "accelerators" in config


def _later(content: Json, where: str, legacy: Legacy) -> None:
    legacy.config_maps.append((content, where))


def _node(content: Json, where: str, legacy: Legacy) -> None:
    legacy.nodes.append(content)


_KINDS: Final[dict[str, Callable[[Json, str, Legacy], None]]] = {
    "ConfigMap": _later,
    "ClusterPolicy": others.cluster_policy,
    "Node": _node,
    "NodePool": _karpenter,
    "ResourceQuota": _quota,
}
_FORMATS: Final[tuple[tuple[Callable[[Json], bool], Callable[[Json, str, Legacy], None]], ...]] = (
    (lambda content: "portal" in content, others.portal),
    (lambda content: "mig-configs" in content, others.mig_parted),
    (_has_accelerators, others.gke_node_pool),
    (device_plugin.is_config, device_plugin.read),
)
"""What has no kind, told by its keys."""
