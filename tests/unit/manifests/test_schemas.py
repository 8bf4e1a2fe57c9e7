"""All that the chart and kustomize make, with each set of values that we ship, is what each Kubernetes takes."""

import copy
import subprocess

import pytest
import yaml

from hack.cluster import build, versions
from tests import helm
from tests.unit.manifests import groups, overlays, schemas

pytestmark = pytest.mark.chart

each_version = pytest.mark.parametrize("version", overlays.VERSIONS)


def complaints(documents: list[helm.Json], version: str) -> dict[str, list[str]]:
    """What is wrong, by object."""
    found = {f"{each['kind']}/{each['metadata']['name']}": schemas.errors(each, version) for each in documents}
    return {name: errors for name, errors in found.items() if errors}


@each_version
@pytest.mark.parametrize("name", overlays.VALUES)
def test_chart_renders_what_kubernetes_takes(name: str, version: str) -> None:
    objects = helm.render(overlays.VALUES[name], kube_version=version)
    assert overlays.kinds(objects) >= {"DaemonSet", "DeviceClass", "ValidatingAdmissionPolicy"}
    assert complaints(objects, version) == {}


@each_version
@pytest.mark.parametrize("name", overlays.KUSTOMIZE)
def test_kustomize_makes_what_kubernetes_takes(name: str, version: str) -> None:
    kubectl = build.have(build.kubectl_product(), print) / "kubectl"
    folder = groups.MANIFESTS / "kustomize" / name
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=50, check=True)
    objects = list(yaml.safe_load_all(done.stdout))
    assert overlays.kinds(objects) >= {"DaemonSet", "DeviceClass", "Namespace"}
    assert complaints(objects, version) == {}


@each_version
def test_field_that_no_kubernetes_knows_is_found(version: str) -> None:
    objects = copy.deepcopy(helm.render(kube_version=version))
    spec = helm.one(objects, "DaemonSet")["spec"]["template"]["spec"]
    spec["containers"][0]["livenesProbe"], spec["hostNetwork"] = {}, "yes"
    ((name, errors),) = complaints(objects, version).items()
    assert name == "DaemonSet/gpus-dra-driver-gpu-kubelet-plugin"
    assert any("livenesProbe" in error for error in errors)
    assert any("spec.template.spec.hostNetwork" in error for error in errors)


def test_everything_makes_every_kind_of_the_charts_templates_that_is_kubernetes_own() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted((helm.CHART / "templates").glob("*.yaml")))
    kinds = {line.partition(":")[2].strip() for line in sources.splitlines() if line.startswith("kind: ")}
    others = {"PodMonitor", "Issuer", "ClusterIssuer", "Certificate"}
    assert overlays.kinds(helm.render(overlays.EVERYTHING)) == kinds - others


def test_versions_are_those_that_the_end_to_end_tests_run_on_and_the_ones_between() -> None:
    assert set(versions.KUBERNETES) <= set(overlays.VERSIONS)
    minors = [versions.minor(version) for version in overlays.VERSIONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
