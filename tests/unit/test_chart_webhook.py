"""The chart's admission webhook: what is sent to it, who may reach it, and what it needs."""

import re
from typing import Any

import pytest
import yaml

from dra_driver.commands.parser import parse
from dra_driver.features import parse_gates
from dra_driver.webhook.http import VALIDATE
from tests import helm

pytestmark = pytest.mark.chart

NAME = "gpus-dra-driver-gpu-webhook"
NVIDIA_VALUES = """
featureGates: {TimeSlicingSettings: true}
webhook:
  enabled: true
  replicas: 1
  servicePort: 443
  containerPort: 443
  priorityClassName: system-cluster-critical
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: "100%"}}
  podAnnotations: {}
  podSecurityContext: {}
  nodeSelector: {}
  tolerations: [{key: CriticalAddonsOnly, operator: Exists}]
  affinity: {}
  containers: {webhook: {securityContext: {privileged: false}, resources: {}}}
  serviceAccount: {create: true, name: ""}
  failurePolicy: Fail
  tls:
    mode: cert-manager
    certManager: {issuerType: selfsigned, issuerName: "", dnsNames: []}
    secret: {name: "", caBundle: ""}
"""


def rendered(more: dict[str, Any] | None = None, **webhook: Any) -> list[helm.Json]:
    """The objects of the chart with the webhook. more: values beside it."""
    return helm.render({**(more or {}), "webhook": {"enabled": True, **webhook}})


def spec(objects: list[helm.Json]) -> helm.Json:
    found: helm.Json = helm.one(objects, "Deployment")["spec"]
    return found


def pod(objects: list[helm.Json]) -> helm.Json:
    found: helm.Json = spec(objects)["template"]["spec"]
    return found


def container(objects: list[helm.Json]) -> helm.Json:
    (only,) = pod(objects)["containers"]
    return dict(only)


def configured(objects: list[helm.Json]) -> helm.Json:
    (only,) = helm.one(objects, "ValidatingWebhookConfiguration")["webhooks"]
    return dict(only)


# Whether it is there.


@pytest.mark.parametrize("values", [{}, {"webhook": {"enabled": False}}])
def test_nothing_of_it_is_installed_unless_it_is_asked_for(values: dict[str, Any]) -> None:
    assert [item["metadata"]["name"] for item in helm.render(values) if "webhook" in item["metadata"]["name"]] == []


def test_nothing_of_it_is_installed_where_gpus_are_off() -> None:
    assert helm.documents({"resources": {"gpus": {"enabled": False}}, "webhook": {"enabled": True}}) == []


def test_webhook_of_a_values_file_for_nvidias_chart_is_installed() -> None:
    objects = helm.render(yaml.safe_load(NVIDIA_VALUES))
    assert configured(objects)["failurePolicy"] == "Fail"
    assert spec(objects)["strategy"]["rollingUpdate"]["maxUnavailable"] == "100%"
    assert container(objects)["securityContext"]["allowPrivilegeEscalation"] is False


# What is sent to it.


def test_claims_and_templates_of_all_versions_are_sent_when_they_are_made_or_changed() -> None:
    (rule,) = configured(rendered())["rules"]
    assert rule == {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1", "v1beta1", "v1beta2"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceclaims", "resourceclaimtemplates"],
        "scope": "Namespaced",
    }


def test_only_new_specs_with_a_config_of_this_driver_are_sent() -> None:
    ours, new = (each["expression"] for each in configured(rendered())["matchConditions"])
    assert "entry.?opaque.?driver.orValue('') == 'gpu.nvidia.com'" in ours
    assert new == "request.operation != 'UPDATE' || object.spec != oldObject.spec"


def test_api_server_is_told_as_nvidias_chart_tells_it() -> None:
    found = configured(rendered())
    assert (found["name"], found["sideEffects"], found["admissionReviewVersions"]) == ("gpu.nvidia.com", "None", ["v1"])
    assert found["failurePolicy"] == "Fail"
    assert found["timeoutSeconds"] <= 5
    assert configured(rendered(failurePolicy="Ignore"))["failurePolicy"] == "Ignore"


def test_call_arrives_at_the_program() -> None:
    objects = rendered(servicePort=8443, containerPort=9443)
    called = configured(objects)["clientConfig"]["service"]
    service = helm.one(objects, "Service", "webhook")
    (port,) = service["spec"]["ports"]
    (exposed,) = container(objects)["ports"]

    assert called == {"name": NAME, "namespace": helm.NAMESPACE, "port": 8443, "path": VALIDATE}
    assert (service["metadata"]["name"], port["port"], port["targetPort"]) == (NAME, 8443, exposed["name"])
    assert exposed["containerPort"] == 9443
    assert service["spec"]["selector"].items() <= spec(objects)["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("override", [{}, {"selectorLabelsOverride": {"app": "mine"}}, {"nameOverride": "x" * 60}])
def test_deployment_and_daemonset_do_not_take_each_others_pods(override: dict[str, Any]) -> None:
    objects = rendered(override)
    daemonset = helm.one(objects, "DaemonSet")["spec"]
    for one, other in ((daemonset, spec(objects)), (spec(objects), daemonset)):
        selected = one["selector"]["matchLabels"].items()
        assert selected <= one["template"]["metadata"]["labels"].items()
        assert not selected <= other["template"]["metadata"]["labels"].items()


# What it runs.


def test_command_line_is_one_that_the_program_takes() -> None:
    found = container(rendered(containerPort=9443))
    options = parse([*found["command"][1:], *found["args"]])
    (mount,) = found["volumeMounts"]
    assert found["command"][0] == "dra-driver"
    assert options.port == "9443"
    assert {str(options.tls_cert_file), str(options.tls_private_key_file)} == {
        f"{mount['mountPath']}/tls.crt",
        f"{mount['mountPath']}/tls.key",
    }


def test_gates_are_those_of_the_driver() -> None:
    objects = rendered({"featureGates": {"TimeSlicingSettings": True, "ConsumableShares": "true"}})
    environment = {entry["name"]: entry["value"] for entry in container(objects)["env"]}
    assert environment["FEATURE_GATES"] == helm.environment(objects)["FEATURE_GATES"]
    assert "ConsumableShares" in parse_gates(environment["FEATURE_GATES"])


def test_probes_ask_pages_that_are_there_over_https() -> None:
    found = container(rendered())
    asked = {found[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")}
    assert asked == {"/healthz", "/readyz"}
    assert {found[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}


def test_pod_that_is_to_leave_serves_on_until_the_api_server_knows() -> None:
    objects = rendered()
    wait = container(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert 0 < wait < pod(objects)["terminationGracePeriodSeconds"] - 10
    assert spec(objects)["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_pods_are_as_the_strictest_level_of_pod_security_wants_them() -> None:
    objects = rendered()
    context, own = pod(objects)["securityContext"], container(objects)["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"] is True
    assert pod(objects)["automountServiceAccountToken"] is False


@pytest.mark.parametrize(("port", "needed"), [(443, True), (1023, True), (1024, False), (8443, False)])
def test_low_port_is_opened_for_a_user_that_is_not_root(port: int, needed: bool) -> None:
    context = pod(rendered(containerPort=port))["securityContext"]
    assert context.get("sysctls", []) == [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}] * needed


def test_several_replicas_are_spread_and_one_at_a_time_may_be_taken() -> None:
    objects = rendered(replicas=3)
    budget = helm.one(objects, "PodDisruptionBudget")["spec"]
    assert spec(objects)["replicas"] == 3
    assert budget == {"maxUnavailable": 1, "selector": spec(objects)["selector"]}
    (spread,) = pod(objects)["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["labelSelector"]) == ("kubernetes.io/hostname", spec(objects)["selector"])


def test_single_replica_does_not_keep_a_node_from_being_drained() -> None:
    assert "PodDisruptionBudget" not in {item["kind"] for item in rendered()}


def test_strategy_recreate_comes_without_what_only_a_rolling_update_has() -> None:
    assert spec(rendered(strategy={"type": "Recreate"}))["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("account", "name"),
    [
        ({}, "gpus-dra-driver-gpu-service-account-webhook"),
        ({"name": "mine"}, "mine-webhook"),
        ({"create": False, "name": "theirs"}, "theirs"),
    ],
)
def test_account_is_its_own_and_has_no_rights(account: dict[str, Any], name: str) -> None:
    objects = rendered(serviceAccount=account)
    accounts = [item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"]
    subjects = [s["name"] for item in objects if item["kind"].endswith("Binding") for s in item.get("subjects", ())]
    assert pod(objects)["serviceAccountName"] == name
    assert (name in accounts) is account.get("create", True)
    assert name not in subjects


def test_network_policy_lets_calls_in_and_nothing_out_when_asked_for() -> None:
    found = helm.one(rendered(networkPolicy={"enabled": True}, containerPort=9443), "NetworkPolicy")["spec"]
    assert [port["port"] for rule in found["ingress"] for port in rule["ports"]] == [9443]
    assert (found["egress"], found["policyTypes"]) == ([], ["Ingress", "Egress"])
    assert "NetworkPolicy" not in {item["kind"] for item in rendered()}


# Certificates.


def certificates(objects: list[helm.Json]) -> dict[str, helm.Json]:
    return {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Certificate"}


def test_certificate_is_for_the_name_that_is_called_and_in_the_secret_that_is_mounted() -> None:
    objects = rendered(tls={"certManager": {"dnsNames": ["webhook.example.com"]}})
    found = certificates(objects)[NAME]
    (volume,) = pod(objects)["volumes"]
    assert f"{NAME}.{helm.NAMESPACE}.svc" in found["dnsNames"]
    assert "webhook.example.com" in found["dnsNames"]
    assert volume["secret"]["secretName"] == found["secretName"]
    annotations = helm.one(objects, "ValidatingWebhookConfiguration")["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"{helm.NAMESPACE}/{NAME}"}


def test_selfsigned_is_an_authority_that_outlives_the_certificates_it_signs() -> None:
    objects = rendered()
    found = certificates(objects)
    issuers = {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Issuer"}
    signer = issuers[found[NAME]["issuerRef"]["name"]]
    (authority,) = [each for each in found.values() if each.get("isCA")]
    assert signer == {"ca": {"secretName": authority["secretName"]}}
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}
    assert int(re.sub("h$", "", authority["duration"])) >= 5 * 365 * 24


@pytest.mark.parametrize(("type_", "kind"), [("issuer", "Issuer"), ("clusterissuer", "ClusterIssuer")])
def test_issuer_that_is_there_is_used_and_none_is_made(type_: str, kind: str) -> None:
    objects = rendered(tls={"certManager": {"issuerType": type_, "issuerName": "ours"}})
    reference = certificates(objects)[NAME]["issuerRef"]
    assert (reference["kind"], reference["name"]) == (kind, "ours")
    assert "Issuer" not in {item["kind"] for item in objects}


def test_secret_that_is_given_is_mounted_and_cert_manager_is_not_needed() -> None:
    objects = rendered(tls={"mode": "secret", "secret": {"name": "given", "caBundle": "Q0E="}})
    (volume,) = pod(objects)["volumes"]
    assert volume["secret"]["secretName"] == "given"
    assert configured(objects)["clientConfig"]["caBundle"] == "Q0E="
    assert not [item for item in objects if item["apiVersion"].startswith("cert-manager.io")]
    assert "annotations" not in helm.one(objects, "ValidatingWebhookConfiguration")["metadata"]


# What is refused.


@pytest.mark.parametrize("secret", [{}, {"name": "given"}, {"caBundle": "Q0E="}])
def test_secret_without_name_or_bundle_is_refused_and_both_are_named(secret: dict[str, Any]) -> None:
    with pytest.raises(helm.Refused, match=r'webhook.tls.mode is "secret", .*secret.name, .*secret.caBundle'):
        rendered(tls={"mode": "secret", "secret": secret})


@pytest.mark.parametrize("type_", ["issuer", "clusterissuer"])
def test_issuer_without_its_name_is_refused(type_: str) -> None:
    with pytest.raises(helm.Refused, match=f'issuerType is "{type_}", which requires .*issuerName: set both'):
        rendered(tls={"certManager": {"issuerType": type_}})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("failurePolicy", "Allow"),
        ("containerPort", 0),
        ("servicePort", 70000),
        ("replicas", -1),
        ("tls.mode", "certmanager"),
        ("tls.certManager.issuerType", "ca"),
        ("tls.secret.caBundle", "-----BEGIN CERTIFICATE-----"),
        ("strategy.type", "OnDelete"),
    ],
)
def test_value_of_the_wrong_form_is_refused_with_its_place(path: str, value: Any) -> None:
    with pytest.raises(helm.Refused, match=f"at '/webhook/{path.replace('.', '/')}'"):
        helm.render(nested(f"webhook.{path}", value))


@pytest.mark.parametrize(
    "path", ["enable", "tls.certmanager", "tls.secret.ca", "containers.gpus", "networkPolicy.enable"]
)
def test_misspelt_value_is_refused_by_its_name(path: str) -> None:
    with pytest.raises(helm.Refused, match=f"'{path.rpartition('.')[2]}' not allowed"):
        helm.render(nested(f"webhook.{path}", True))


def nested(path: str, value: Any) -> dict[str, Any]:
    """{'a': {'b': value}} for 'a.b'."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)
