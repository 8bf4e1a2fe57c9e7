"""The kustomize base and its overlay make the objects that the chart makes."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import kustomize
from hack.cluster import build
from tests import helm
from tests.unit.manifests import groups

pytestmark = pytest.mark.chart

Json = dict[str, Any]
FOLDER = groups.MANIFESTS / "kustomize"
IMAGE = "registry.example.com/dra-driver-gpu:v0.1.0"
ADDED = {("Namespace", "dra-driver-gpu")}


def built(folder: Path) -> dict[tuple[str, str], Json]:
    """What ``kubectl apply --kustomize`` would send, by kind and name; a list of named entries as a mapping."""
    kubectl = build.have(build.kubectl_product(), print) / "kubectl"
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=50, check=True)
    return by_name(yaml.safe_load_all(done.stdout))


def by_name(documents: Any) -> dict[tuple[str, str], Json]:
    return {(each["kind"], each["metadata"]["name"]): keyed(each) for each in documents}


def keyed(value: Any) -> Any:
    """The same without the order of named entries, such as environment variables, which patches need not keep."""
    if isinstance(value, dict):
        return {name: keyed(entry) for name, entry in value.items()}
    if isinstance(value, list) and all(isinstance(entry, dict) and "name" in entry for entry in value):
        return {entry["name"]: keyed(entry) for entry in value}
    return [keyed(entry) for entry in value] if isinstance(value, list) else value


def container(objects: dict[tuple[str, str], Json]) -> Json:
    (found,) = [each for (kind, _), each in objects.items() if kind == "DaemonSet"]
    gpus: Json = found["spec"]["template"]["spec"]["containers"]["gpus"]
    return gpus


def test_base_is_what_the_chart_renders_now() -> None:
    found = kustomize.DRIVER.read_text(encoding="utf-8")
    assert found == kustomize.written(kustomize.render({}, helm.program())), "run: python -m hack.kustomize"


def test_base_adds_nothing_but_the_namespace_with_the_right_to_be_privileged() -> None:
    objects = built(FOLDER / "base")
    assert objects.keys() - by_name(kustomize.render({}, helm.program())).keys() == ADDED
    labels = objects["Namespace", "dra-driver-gpu"]["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "privileged"}


def test_nothing_says_that_helm_looks_after_it() -> None:
    assert "helm" not in kustomize.DRIVER.read_text(encoding="utf-8").partition("\n")[2].lower()


def test_overlay_for_eks_is_the_chart_with_the_values_for_eks() -> None:
    objects = built(FOLDER / "eks")
    values = yaml.safe_load(groups.EKS_VALUES.read_text(encoding="utf-8"))
    expected = by_name(kustomize.render(values, helm.program()))
    assert container(objects)["image"] == IMAGE
    container(expected)["image"] = IMAGE
    assert {key: each for key, each in objects.items() if key not in ADDED} == expected


def test_admission_policy_names_the_account_with_the_namespace_that_it_is_in() -> None:
    objects = built(FOLDER / "base")
    (policy,) = [each for (kind, _), each in objects.items() if kind == "ValidatingAdmissionPolicy"]
    account = next(name for kind, name in objects if kind == "ServiceAccount")
    assert f"system:serviceaccount:dra-driver-gpu:{account}" in str(policy["spec"])
    assert objects["ServiceAccount", account]["metadata"]["namespace"] == "dra-driver-gpu"
