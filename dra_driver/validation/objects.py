"""Which objects of a document are looked at, and what in each; ``requests`` and ``configs`` do the rest."""

from collections.abc import Iterator
from typing import Any

from dra_driver.features import Gates, closest
from dra_driver.validation.configs import check_configs, check_parameters
from dra_driver.validation.documents import Document
from dra_driver.validation.findings import Findings, Path
from dra_driver.validation.requests import MAX_ENTRIES, read_requests
from dra_driver_api.names import CONFIG_API_VERSION, RESOURCE_API_GROUP

_VERSIONS = ("v1", "v1beta2", "v1beta1")
_CLAIM, _TEMPLATE, _CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"
_KINDS = (_CLAIM, _TEMPLATE, _CLASS)
_CONFIG_KINDS = ("GpuConfig", "MigDeviceConfig")
_OTHER_CONFIG_KINDS = ("ComputeDomain", "ComputeDomainClique")
_DEVICE_KEYS = ("requests", "constraints", "config")


def check_document(document: Document, gates: Gates | None = None) -> Findings:
    """Everything found in one document. gates: those of the driver when they are known."""
    findings = Findings(document.line)
    for path, line in document.duplicates:  # YAML tools resolve them in different ways
        findings.error(path, f'the key "{path[-1]}" is written twice', line)
    for path, found in _objects(document.data, ()):
        _check_object(path, found, findings, gates)
    return findings


def _objects(data: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The objects of a document: itself, or the items of a List, however deep."""
    if isinstance(data, dict) and str(data.get("kind", "")).endswith("List") and isinstance(data.get("items"), list):
        for index, item in enumerate(data["items"]):
            yield from _objects(item, (*path, "items", index))
    else:
        yield path, data


def _check_object(path: Path, found: Any, findings: Findings, gates: Gates | None) -> None:
    if not isinstance(found, dict):
        findings.error(path, f"want a Kubernetes object, found {_shown(found)}")
        return
    api_version, kind = str(found.get("apiVersion") or ""), str(found.get("kind") or "")
    group, _, version = api_version.rpartition("/")
    if kind in _CONFIG_KINDS or (api_version == CONFIG_API_VERSION and kind not in _OTHER_CONFIG_KINDS):
        check_parameters(path, found, findings, gates)
    elif kind in _KINDS:
        if group != RESOURCE_API_GROUP or version not in _VERSIONS:
            findings.error((*path, "apiVersion"), f'"{api_version}" has no {kind}, want {_wanted_versions()}')
        else:
            _check_claim(path, found, version, findings, gates)
    elif group == RESOURCE_API_GROUP and (near := closest(kind, _KINDS)) and kind != "ResourceSlice":
        findings.error((*path, "kind"), f'unknown kind "{kind}", did you mean {near}?')
    else:
        findings.note(path, f"{kind or 'an object without kind'} ignored: not a kind that is checked here")


def _check_claim(path: Path, found: dict[str, Any], version: str, findings: Findings, gates: Gates | None) -> None:
    """A claim, a template or a class whose apiVersion is known to be right."""
    kind = found["kind"]
    where, owner = _owner_of_configs(path, found, findings)
    if owner is None:
        return
    if kind == _CLASS:
        check_configs(config_entries(owner, where, findings), None, findings, gates)
        return
    for key in map(str, owner):
        if key not in _DEVICE_KEYS:
            near = closest(key, _DEVICE_KEYS)
            findings.error((*where, key), f"unknown field{f', did you mean {near}?' if near else ''}")
    requests = read_requests((*where, "requests"), owner.get("requests"), version, findings)
    entries = config_entries(owner, where, findings)
    check_configs(entries, requests, findings, gates, from_template=kind == _TEMPLATE)


def _owner_of_configs(path: Path, found: dict[str, Any], findings: Findings) -> tuple[Path, dict[str, Any] | None]:
    """The object that has ``config``: ``spec`` of a class, ``spec.devices`` of a claim, deeper in a template."""
    kind = found["kind"]
    where: Path = (*path, "spec")
    spec = _mapping(found.get("spec"), where, findings)
    if spec is None or kind == _CLASS:
        return where, spec
    if kind == _CLAIM and "spec" in spec:
        findings.error((*where, "spec"), "only a ResourceClaimTemplate has spec.spec, a ResourceClaim has spec")
        return where, None
    if kind == _TEMPLATE:
        if "devices" in spec:
            findings.error((*where, "devices"), "in a ResourceClaimTemplate it belongs in spec.spec")
            return where, None
        where = (*where, "spec")
        spec = _mapping(spec.get("spec"), where, findings)
        if spec is None:
            return where, None
    where = (*where, "devices")
    return where, _mapping(spec.get("devices"), where, findings)


def config_entries(owner: dict[str, Any], path: Path, findings: Findings) -> Iterator[tuple[Path, Any]]:
    """Each entry of ``config`` with its path, as many as the API allows. owner: what has them."""
    entries = owner.get("config")
    if entries is None:
        return
    at: Path = (*path, "config")
    if not isinstance(entries, list):
        findings.error(at, f"want a list, found {_shown(entries)}")
        return
    if len(entries) > MAX_ENTRIES:
        findings.error(at, f"{len(entries)} entries, at most {MAX_ENTRIES} are allowed")
    yield from (((*at, index), entry) for index, entry in enumerate(entries[:MAX_ENTRIES]))


def _mapping(value: Any, path: Path, findings: Findings) -> dict[str, Any] | None:
    if isinstance(value, dict):
        return value
    findings.error(path, "is missing" if value is None else f"want an object, found {_shown(value)}")
    return None


def _wanted_versions() -> str:
    return " or ".join(f"{RESOURCE_API_GROUP}/{version}" for version in _VERSIONS)


def _shown(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"{value!r:.60}"
