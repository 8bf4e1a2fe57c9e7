from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jsonschema
import pytest

from dra_driver.cdi.rules import minimum_version, validate
from tests.unit.cdi.documents import SCHEMA, cdi_document

Change = Callable[[dict[str, Any]], object]


def _set(*path: Any) -> Change:
    *way, last, value = path

    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for step in way:
            at = at[step]
        at[last] = value

    return change


def _drop(*path: Any) -> Change:
    *way, last = path

    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for step in way:
            at = at[step]
        del at[last]

    return change


_DEVICE = ("devices", 0)
_NODE = (*_DEVICE, "containerEdits", "deviceNodes", 0)
_MOUNT = ("containerEdits", "mounts", 0)
_HOOK = ("containerEdits", "hooks", 0)

BROKEN: dict[str, tuple[Change, str]] = {
    "version unknown": (_set("cdiVersion", "0.9.0"), "cdiVersion: found '0.9.0'"),
    "version missing": (_drop("cdiVersion"), "cdiVersion: found None"),
    "kind without class": (_set("kind", "k8s.gpu.nvidia.com"), "kind: found 'k8s.gpu.nvidia.com'"),
    "kind missing": (_drop("kind"), "kind: found None"),
    "vendor starts with digit": (_set("kind", "8k.nvidia.com/claim"), "kind: found '8k.nvidia.com/claim'"),
    "class ends with dash": (_set("kind", "nvidia.com/claim-"), "kind: found 'nvidia.com/claim-'"),
    "no devices": (_set("devices", []), "devices: must be a list with at least one device"),
    "devices missing": (_drop("devices"), "devices: must be a list"),
    "devices a mapping": (_set("devices", {"a": 1}), "devices: must be a list"),
    "device no mapping": (_set("devices", ["gpu-0"]), "devices[0]: must be a mapping"),
    "device name with slash": (_set(*_DEVICE, "name", "a/b"), "devices[0].name: found 'a/b'"),
    "device name starts with dash": (_set(*_DEVICE, "name", "-gpu"), "devices[0].name: found '-gpu'"),
    "device name empty": (_set(*_DEVICE, "name", ""), "devices[0].name: found ''"),
    "device edits empty": (_set(*_DEVICE, "containerEdits", {}), "devices[0].containerEdits: must not be empty"),
    "device edits missing": (_drop(*_DEVICE, "containerEdits"), "devices[0].containerEdits: must not be empty"),
    "device key unknown": (_set(*_DEVICE, "nodes", []), "devices[0]: unknown key 'nodes'"),
    "document key unknown": (_set("vendor", "x"), "document: unknown key 'vendor'"),
    "edits key unknown": (_set("containerEdits", "devices", []), "containerEdits: unknown key 'devices'"),
    "edits no mapping": (_set("containerEdits", []), "containerEdits: must be a mapping, found list"),
    "env without value": (_set("containerEdits", "env", ["A"]), "containerEdits.env[0]: found 'A'"),
    "env without name": (_set("containerEdits", "env", ["=a"]), "containerEdits.env[0]: found '=a'"),
    "env a text": (_set("containerEdits", "env", "A=b"), "containerEdits.env: must be a list, found str"),
    "node path missing": (_drop(*_NODE, "path"), "deviceNodes[0].path: found None"),
    "node path relative": (_set(*_NODE, "path", "dev/nvidia0"), "deviceNodes[0].path: found 'dev/nvidia0'"),
    "node type unknown": (_set(*_NODE, "type", "d"), "deviceNodes[0].type: found 'd'"),
    "node minor negative": (_set(*_NODE, "minor", -1), "deviceNodes[0].minor: found -1"),
    "node major a text": (_set(*_NODE, "major", "195"), "deviceNodes[0].major: found '195'"),
    "node permissions": (_set(*_NODE, "permissions", "rwx"), "deviceNodes[0].permissions: found 'rwx'"),
    "node key unknown": (_set(*_NODE, "mode", 6), "deviceNodes[0]: unknown key 'mode'"),
    "mounts a text": (_set("containerEdits", "mounts", "x"), "containerEdits.mounts: must be a list, found str"),
    "mount host path missing": (_drop(*_MOUNT, "hostPath"), "mounts[0].hostPath: found None"),
    "mount container path empty": (_set(*_MOUNT, "containerPath", ""), "mounts[0].containerPath: found ''"),
    "mount options a text": (_set(*_MOUNT, "options", "ro"), "mounts[0].options: must be a list"),
    "hook name unknown": (_set(*_HOOK, "hookName", "preStart"), "hooks[0].hookName: found 'preStart'"),
    "hook path missing": (_drop(*_HOOK, "path"), "hooks[0].path: found None"),
    "hook env": (_set(*_HOOK, "env", ["DEBUG"]), "hooks[0].env[0]: found 'DEBUG'"),
    "groups no numbers": (_set("containerEdits", "additionalGids", ["video"]), "additionalGids: must be a list"),
}


def _broken(change: Change) -> dict[str, Any]:
    document = deepcopy(cdi_document())
    change(document)
    return document


def test_no_problem_is_found_in_a_document_that_keeps_the_rules() -> None:
    assert validate(cdi_document()) == []


def test_schema_of_the_tests_accepts_a_document_that_keeps_the_rules() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(cdi_document())


@pytest.mark.parametrize(("change", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_problem_names_the_place_when_a_rule_is_broken(change: Change, text: str) -> None:
    assert any(text in problem for problem in validate(_broken(change))), validate(_broken(change))


@pytest.mark.parametrize("change", [change for change, _ in BROKEN.values()], ids=BROKEN.keys())
def test_schema_refuses_what_the_rules_refuse(change: Change) -> None:
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(_broken(change))


def test_device_that_is_there_twice_is_a_problem() -> None:
    document = cdi_document()
    document["devices"] *= 2

    assert [p for p in validate(document) if "is there 2 times" in p]


def test_version_older_than_what_is_used_is_a_problem() -> None:
    document = cdi_document() | {"cdiVersion": "0.4.0"}

    assert validate(document) == ["cdiVersion: found 0.4.0, what the document uses needs at least 0.5.0"]


def _minimal(**edits: Any) -> dict[str, Any]:
    return {"kind": "a.b/c", "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}], "containerEdits": edits}


@pytest.mark.parametrize(
    ("document", "version"),
    [
        pytest.param(_minimal(), "0.3.0", id="env alone"),
        pytest.param(_minimal(mounts=[{"type": "bind"}]), "0.4.0", id="mount type"),
        pytest.param(_minimal(deviceNodes=[{"hostPath": "/dev/x"}]), "0.5.0", id="host path of a node"),
        pytest.param(_minimal() | {"devices": [{"name": "0"}]}, "0.5.0", id="device name with a digit first"),
        pytest.param(_minimal() | {"kind": "a.b/c.d"}, "0.6.0", id="class with a dot"),
        pytest.param(_minimal() | {"annotations": {"a": "b"}}, "0.6.0", id="annotations"),
        pytest.param(_minimal(additionalGids=[44]), "0.7.0", id="groups"),
        pytest.param(_minimal(intelRdt={"closID": "a"}), "0.7.0", id="intel rdt"),
        pytest.param(_minimal(netDevices=[{"name": "eth1"}]), "1.1.0", id="network devices"),
        pytest.param(_minimal(intelRdt={"schemata": []}), "1.1.0", id="intel rdt schemata"),
    ],
)
def test_minimum_version_follows_what_the_document_uses(document: dict[str, Any], version: str) -> None:
    assert minimum_version(document) == version
