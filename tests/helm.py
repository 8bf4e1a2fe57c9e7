"""Runs Helm on the project's chart: rendering, and the text of a refusal. No cluster is asked."""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import build

CHART = Path(__file__).resolve().parents[1] / "manifests/helm/dra-driver-gpu"
RELEASE, NAMESPACE = "gpus", "dra-driver-gpu"
CONFIRMED = {"gpuResourcesEnabledOverride": True}
KUBERNETES = "1.36.3"

Json = dict[str, Any]


class Refused(Exception):
    """Helm did not render; the text is what it said."""


def program() -> Path:
    """The helm to run: on PATH, or the one that ``make chart`` has built."""
    found = shutil.which("helm")
    return Path(found) if found else build.cache() / build.tool_product("helm").folder / "helm"


def render(values: Mapping[str, Any] | None = None, **options: str) -> list[Json]:
    """The objects of the chart with these values, the GPU guard confirmed. options: flags such as namespace='x'.

    Raises Refused.
    """
    return documents({**CONFIRMED, **(values or {})}, **options)


def documents(values: Mapping[str, Any], **options: str) -> list[Json]:
    """As ``render``, with nothing confirmed."""
    flags = {"namespace": NAMESPACE, "kube_version": KUBERNETES, **options}
    text = _template(json.dumps(values, sort_keys=True), tuple(sorted(flags.items())))
    return [document for document in yaml.safe_load_all(text) if document]


def notes(values: Mapping[str, Any] | None = None) -> str:
    """What an installation would print at its end."""
    chosen = json.dumps({**CONFIRMED, **(values or {})})
    return _run(chosen, "install", RELEASE, str(CHART), "--dry-run=client", "--namespace", NAMESPACE).partition(
        "NOTES:"
    )[2]


def lint() -> None:
    """Raises Refused when Helm's own checks find an error or a warning."""
    _run(json.dumps(CONFIRMED), "lint", str(CHART), "--strict", "--namespace", NAMESPACE)


def one(objects: list[Json], kind: str, name_part: str = "") -> Json:
    """The only object of a kind, or the only one with this in its name."""
    found = [item for item in objects if item["kind"] == kind and name_part in item["metadata"]["name"]]
    assert len(found) == 1, f"{len(found)} of {kind} {name_part} among {[item['kind'] for item in objects]}"
    return found[0]


def pod(objects: list[Json]) -> Json:
    """Spec of the driver's pods."""
    spec: Json = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(objects: list[Json]) -> Json:
    """The driver's container."""
    (only,) = pod(objects)["containers"]
    return dict(only)


def environment(objects: list[Json]) -> dict[str, str]:
    """The driver's environment variables, with a value made up for what the downward API fills in."""
    made_up = {
        "spec.nodeName": "node-a",
        "spec.serviceAccountName": pod(objects)["serviceAccountName"],
        "metadata.uid": "0f2b6a8e-5d0a-4d35-8a5e-3c0d9f6f2f10",
        "metadata.namespace": one(objects, "DaemonSet")["metadata"]["namespace"],
    }
    return {
        entry["name"]: entry["value"] if "value" in entry else made_up[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container(objects)["env"]
    }


@functools.cache
def _template(values: str, flags: tuple[tuple[str, str], ...]) -> str:
    options = [text for name, value in flags for text in (f"--{name.replace('_', '-')}", value)]
    return _run(values, "template", RELEASE, str(CHART), *options)


def _run(values: str, *arguments: str) -> str:
    done = subprocess.run(
        [program(), *arguments, "--values", "-"], input=values, capture_output=True, text=True, timeout=50, check=False
    )
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout
