"""Values of the chart for each platform: they render, and the driver is told where things are there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import helm

pytestmark = pytest.mark.chart

FOLDER = Path(__file__).resolve().parents[3] / "manifests/platforms"
FILES = sorted(FOLDER.glob("*.yaml"))


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def daemonset(name: str, **options: str) -> dict[str, Any]:
    found: dict[str, Any] = helm.one(helm.render(values(name), **options), "DaemonSet")["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("version", ["1.34.4", "1.36.3", "1.37.2"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_of_a_platform_render_for_each_kubernetes(path: Path, version: str) -> None:
    assert daemonset(path.stem, kube_version=version)["containers"]


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("al2023", "/"),
        ("bottlerocket", "/"),
        ("gpu-operator", "/run/nvidia/driver"),
        ("gke", "/home/kubernetes/bin/nvidia"),
    ],
)
def test_driver_root_of_the_platform_is_mounted(name: str, root: str) -> None:
    volumes = daemonset(name)["volumes"]
    assert root in [volume["hostPath"]["path"].rstrip("/") or "/" for volume in volumes if "hostPath" in volume]


def test_gke_is_left_alone_where_its_device_plugin_is_on() -> None:
    spec = daemonset("gke")
    assert spec["nodeSelector"] == {"gke-no-default-nvidia-gpu-device-plugin": "true"}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["key"] == "cloud.google.com/gke-accelerator"


def test_every_platform_that_is_named_has_its_values() -> None:
    assert [path.stem for path in FILES] == ["al2023", "bottlerocket", "gke", "gpu-operator"]
