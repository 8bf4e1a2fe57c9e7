"""Writes the kustomize base from the chart, for those who install without Helm: ``python -m hack.kustomize``.

The chart is the one source: whoever changes what it renders by default runs this, and a test says so. The base's
kustomization.yaml and namespace.yaml are written by hand.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from hack.cluster import build, versions
from hack.cluster.commands import run

Json = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "manifests/helm/dra-driver-gpu"
DRIVER: Final = ROOT / "manifests/kustomize/base/driver.yaml"
NAME: Final = "dra-driver-gpu"
"""Of the release, and of the namespace: the admission policy names the service account with its namespace."""

_HEADER: Final = """\
# Written by `python -m hack.kustomize` from manifests/helm/dra-driver-gpu: change the chart, or patch in an overlay.
"""
_VALUES: Final = {"gpuResourcesEnabledOverride": True}
_RENDER_S: Final = 60.0
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_CHART: Final = "helm.sh/chart"


def render(values: Json, helm: Path) -> list[Json]:
    """The objects of the chart with these values on top of what the base has. Raises ClusterError."""
    flags = [f"--namespace={NAME}", f"--kube-version={versions.KUBERNETES[0]}", "--values=-"]
    text = run([str(helm), "template", NAME, str(CHART), *flags], _RENDER_S, text=json.dumps({**_VALUES, **values}))
    return [without_helm(document) for document in yaml.safe_load_all(text) if document]


def without_helm(document: Json) -> Json:
    """An object with the labels of one that Helm does not look after. Pure."""
    return {name: _relabelled(value) if isinstance(value, dict) else value for name, value in document.items()}


def written(documents: Iterable[Json]) -> str:
    """Text of driver.yaml. Pure."""
    return _HEADER + yaml.safe_dump_all(documents, sort_keys=False, width=120)


def _relabelled(part: Json) -> Json:
    """The same with the labels changed, at any depth: a pod's are in its template."""
    found = {name: _relabelled(value) if isinstance(value, dict) else value for name, value in part.items()}
    if _MANAGED_BY in found:
        found |= {_MANAGED_BY: "kustomize"}
        found.pop(_CHART, None)
    return found


def main() -> None:
    """Write it."""
    helm = build.have(build.tool_product("helm"), print) / "helm"
    DRIVER.write_text(written(render({}, helm)), encoding="utf-8")
    print(f"wrote {DRIVER}")


if __name__ == "__main__":
    main()
