"""What the chart lets the driver do in the API server: exactly what its code asks for, on its own node only."""

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import dra_driver.cluster
from dra_driver.cluster.claims import ApiClaims, ApiClasses
from dra_driver.cluster.deployments import ApiDeployments
from dra_driver.cluster.events import ApiEvents
from dra_driver.cluster.nodes import ApiNode
from dra_driver.cluster.slices import ApiSlices
from dra_driver.model.claims import ClaimRef
from dra_driver.simulator import __file__ as simulator
from tests import helm

pytestmark = pytest.mark.chart

Right = tuple[str, str, str]
"""API group, resource, verb."""

SLICE = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PATH = re.compile(r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/[^/]+)?/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?")


class Recorder:
    """A connection that notes which right each request needs and answers something usable."""

    def __init__(self) -> None:
        self.rights: set[Right] = set()
        self.counted = threading.Event()

    def request(self, method: str, path: str, *_: Any, **__: Any) -> helm.Json:
        group, resource, name = self._parts(path)
        self.rights.add((group, resource, _VERBS.get(method) or ("get" if name else "list")))
        if method == "PATCH":
            self.counted.set()
        return {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "items": []}

    def stream(self, path: str, query: Mapping[str, str], timeout_s: float) -> Iterator[helm.Json]:
        group, resource, _ = self._parts(path)
        self.rights.add((group, resource, "watch" if query.get("watch") == "true" else "list"))
        yield from ()

    def _parts(self, path: str) -> tuple[str, str, str | None]:
        found = _PATH.fullmatch(path)
        assert found is not None, path
        return found["group"] or "", found["resource"], found["name"]


def asked_for() -> set[Right]:
    """The rights that the driver's API classes need, each of their methods called once."""
    connection: Any = Recorder()
    claims, slices = ApiClaims(connection), ApiSlices(connection, "node-a")
    claims.get(ClaimRef("ns", "claim", "u"))
    claims.list_allocated()
    ApiClasses(connection).get("gpu.nvidia.com")
    slices.list()
    list(slices.watch("1", 1.0))
    slices.create(SLICE)
    slices.replace(SLICE)
    slices.delete(SLICE)
    ApiNode(connection, "node-a").uid()
    events = ApiEvents(connection, "node-a", repeat_s=0.0)
    events.warning("Reason", "twice")
    events.warning("Reason", "twice")
    events.close()
    assert connection.counted.is_set()
    return set(connection.rights)


def asked_for_with_mps() -> set[Right]:
    """Those that MPS control daemons need in addition, in the driver's own namespace."""
    connection: Any = Recorder()
    deployments = ApiDeployments(connection, helm.NAMESPACE)
    deployments.create(SLICE)
    deployments.get("a")
    deployments.labelled({"a": "b"})
    deployments.pods({"a": "b"})
    deployments.delete(SLICE)
    return set(connection.rights)


def granted(role: helm.Json) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_roles_grant_what_the_code_asks_for_and_no_more() -> None:
    objects = helm.render()
    roles = granted(helm.one(objects, "ClusterRole")) | granted(helm.one(objects, "Role"))
    assert roles == asked_for()


def test_gate_of_mps_adds_what_its_code_asks_for_in_the_drivers_namespace_only() -> None:
    objects = helm.render({"featureGates": {"MPSSupport": True}})
    role, binding = helm.one(objects, "Role", "-mps"), helm.one(objects, "RoleBinding", "-mps")
    assert granted(role) == asked_for_with_mps()
    assert granted(helm.one(objects, "ClusterRole")) | granted(helm.one(objects, "Role", "-events")) == asked_for()
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == helm.NAMESPACE
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [helm.pod(objects)["serviceAccountName"]]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"featureGates": {"MPSSupport": False}},
        {"featureGates": {"MPSSupport": True}, "mps": {"launcher": "process"}},
    ],
)
def test_nobody_may_make_deployments_where_no_daemon_is_one(values: dict[str, Any]) -> None:
    rights = {right for item in helm.render(values) if item["kind"].endswith("Role") for right in granted(item)}
    assert rights == asked_for()


def test_every_class_that_talks_to_the_api_server_is_asked_here() -> None:
    (folder,) = dra_driver.cluster.__path__
    with_connection = re.compile(r"^class (\w+)(?:(?!^class ).)*?connection: Connection", re.MULTILINE | re.DOTALL)
    found = {name for file in Path(folder).glob("*.py") for name in with_connection.findall(file.read_text())}
    assert found == {"ApiClaims", "ApiClasses", "ApiDeployments", "ApiEvents", "ApiNode", "ApiSlices"}


def test_events_are_granted_where_those_about_nodes_live() -> None:
    objects = helm.render()
    role, binding = helm.one(objects, "Role"), helm.one(objects, "RoleBinding")
    assert granted(role) == {("", "events", "create"), ("", "events", "patch")}
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "default"


ACCOUNTS = [
    pytest.param({}, "gpus-dra-driver-gpu-service-account-kubeletplugin", id="default"),
    pytest.param({"serviceAccount": {"name": "mine"}}, "mine-kubeletplugin", id="named"),
    pytest.param({"serviceAccount": {"create": False, "name": "theirs"}}, "theirs", id="made-elsewhere"),
    pytest.param({"namespaceOverride": "other"}, "gpus-dra-driver-gpu-service-account-kubeletplugin", id="namespace"),
]


@pytest.mark.parametrize(("values", "account"), ACCOUNTS)
def test_pod_bindings_and_admission_policy_mean_the_same_account(values: dict[str, Any], account: str) -> None:
    objects = helm.render(values)
    namespace = values.get("namespaceOverride", helm.NAMESPACE)
    subjects = [s for item in objects if item["kind"].endswith("RoleBinding") for s in item["subjects"]]
    assert [(s["namespace"], s["name"]) for s in subjects] == [(namespace, account)] * 2
    assert helm.pod(objects)["serviceAccountName"] == account
    (condition,) = helm.one(objects, "ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert condition["expression"].endswith(f'== "system:serviceaccount:{namespace}:{account}"')


def test_account_is_made_only_when_asked_for() -> None:
    objects = helm.render({"serviceAccount": {"create": False, "name": "theirs"}})
    assert "ServiceAccount" not in {item["kind"] for item in objects}


def test_admission_policy_ties_every_write_of_slices_to_the_tokens_node() -> None:
    spec = helm.one(helm.render(), "ValidatingAdmissionPolicy")["spec"]
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], set(rule["operations"])) == (["resourceslices"], {"CREATE", "UPDATE", "DELETE"})
    assert spec["failurePolicy"] == "Fail"
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    assert "authentication.kubernetes.io/node-name" in variables["tokenNode"]
    assert "variables.slice.spec.?nodeName.orValue('') == variables.tokenNode" in {
        validation["expression"] for validation in spec["validations"]
    }


def test_admission_policy_ties_deployments_of_mps_daemons_to_the_tokens_node() -> None:
    objects = helm.render({"featureGates": {"MPSSupport": True}})
    policy, slices = (helm.one(objects, "ValidatingAdmissionPolicy", name) for name in ("mps-", "resourceslices-"))
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == (["apps"], ["deployments"])
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    assert policy["spec"]["matchConditions"] == slices["spec"]["matchConditions"]
    assert "variables.deployment.spec.template.spec.?nodeName.orValue('') == variables.tokenNode" in {
        validation["expression"] for validation in policy["spec"]["validations"]
    }
    binding = helm.one(objects, "ValidatingAdmissionPolicyBinding", "mps-")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_admission_policy_is_in_force() -> None:
    objects = helm.render()
    binding = helm.one(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    policy = helm.one(objects, "ValidatingAdmissionPolicy")["metadata"]["name"]
    assert binding == {"policyName": policy, "validationActions": ["Deny"]}


def test_privileged_pods_are_allowed_for_on_openshift_only() -> None:
    plain = {item["metadata"]["name"] for item in helm.render() if item["kind"] == "RoleBinding"}
    openshift = helm.render(api_versions="security.openshift.io/v1")
    added = {item["metadata"]["name"] for item in openshift if item["kind"] == "RoleBinding"} - plain
    assert {helm.one(openshift, "RoleBinding", name)["roleRef"]["name"] for name in added} == {
        "system:openshift:scc:privileged"
    }


# DeviceClasses.


def test_device_classes_are_those_of_the_simulated_cluster() -> None:
    simulated = yaml.safe_load_all((Path(simulator).parent / "device_classes.yaml").read_text())
    expected = {item["metadata"]["name"]: item["spec"] for item in simulated}
    rendered = {item["metadata"]["name"]: item["spec"] for item in helm.render() if item["kind"] == "DeviceClass"}
    assert rendered == {name: expected[name] for name in ("gpu.nvidia.com", "mig.nvidia.com")}


@pytest.mark.parametrize("version", ["resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1"])
def test_extended_resource_is_left_out_where_the_api_version_has_none(version: str) -> None:
    device_class = helm.one(helm.render({"resourceApiVersion": version}), "DeviceClass", "gpu")
    assert device_class["apiVersion"] == version
    assert "extendedResourceName" not in device_class["spec"]


def test_extended_resource_can_be_renamed_and_switched_off() -> None:
    names = [
        helm.one(helm.render({"deviceClasses": {"extendedResourceName": name}}), "DeviceClass", "gpu")["spec"].get(
            "extendedResourceName"
        )
        for name in ("example.com/gpu", "")
    ]
    assert names == ["example.com/gpu", None]


def test_device_classes_can_be_left_to_another_release() -> None:
    kinds = {item["kind"] for item in helm.render({"deviceClasses": {"create": False}})}
    assert "DeviceClass" not in kinds
    assert "DaemonSet" in kinds


# Network.


def test_network_policy_lets_out_to_the_api_server_and_in_to_the_metrics_when_asked_for() -> None:
    spec = helm.one(helm.render({"kubeletPlugin": {"networkPolicy": {"enabled": True}}}), "NetworkPolicy")["spec"]
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {443, 6443}
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == [8080]


def test_service_and_monitor_find_the_drivers_pods_and_their_port() -> None:
    objects = helm.render({"kubeletPlugin": {"metrics": {"podMonitor": {"enabled": True, "labels": {"team": "a"}}}}})
    pod = helm.one(objects, "DaemonSet")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    service, monitor = helm.one(objects, "Service"), helm.one(objects, "PodMonitor")
    for selector in (service["spec"]["selector"], monitor["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= pod["metadata"]["labels"].items()
    assert {"name": "http", "containerPort": service["spec"]["ports"][0]["port"]} in container["ports"]
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics", "interval": "30s"}]
    assert monitor["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize(
    "metrics", [{"enabled": False}, {"gpuHttpEndpoint": "127.0.0.1:8080"}, {"gpuHttpEndpoint": ""}]
)
def test_there_is_no_service_where_nobody_could_be_reached(metrics: dict[str, Any]) -> None:
    kinds = {each["kind"] for each in helm.render({"kubeletPlugin": {"metrics": metrics}})}
    assert not kinds & {"Service", "PodMonitor"}


def test_there_is_no_network_policy_by_default() -> None:
    assert "NetworkPolicy" not in {item["kind"] for item in helm.render()}
