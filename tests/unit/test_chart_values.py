"""Values of the chart: what is refused and how it says so, and what reaches the driver's settings."""

import argparse
import json
from typing import Any

import pytest
import yaml

from dra_driver import __version__, settings
from dra_driver.features import EXCLUSIONS, GATES, REQUIREMENTS, Scope, parse_gates
from dra_driver.settings.table import TABLE
from tests import helm

pytestmark = pytest.mark.chart

NVIDIA_VALUES = """
nvidiaDriverRoot: /run/nvidia/driver
nvidiaCDIHookPath: /usr/bin/nvidia-cdi-hook
altProcDevices: ""
nameOverride: ""
fullnameOverride: ""
namespaceOverride: ""
selectorLabelsOverride: {}
gpuResourcesEnabledOverride: true
consumableShares: ""
allowDefaultNamespace: false
resourceApiVersion: ""
imagePullSecrets: []
image: {repository: registry.example/driver, pullPolicy: Always, tag: v9}
serviceAccount: {create: true, annotations: {}, name: ""}
resources: {gpus: {enabled: true}, computeDomains: {enabled: false}}
featureGates: {TimeSlicingSettings: true, MPSSupport: false}
logVerbosity: "6"
webhook: {enabled: true, replicas: 1, failurePolicy: Fail, tls: {mode: cert-manager}}
controller: {replicas: 1, priorityClassName: system-node-critical}
kubeletPlugin:
  metrics: {enabled: true, gpuHttpEndpoint: ":8080", computeDomainHttpEndpoint: ":8081", metricsPath: /metrics}
  priorityClassName: system-node-critical
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: "100%"}}
  podAnnotations: {}
  podSecurityContext: {}
  nodeSelector: {}
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  kubeletRegistrarDirectoryPath: /var/lib/kubelet/plugins_registry
  kubeletPluginsDirectoryPath: /var/lib/kubelet/plugins
  containers:
    init: {securityContext: {}, resources: {}}
    computeDomains: {env: [], securityContext: {privileged: true}, resources: {}, healthcheckPort: 51515}
    gpus: {env: [], securityContext: {privileged: true}, resources: {}, healthcheckPort: 51516}
  networkPolicy: {enabled: false}
"""
ALL_SETTINGS: dict[str, Any] = {
    "nvidiaDriverRoot": "/run/nvidia/driver",
    "nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
    "nvidiaCTKPath": "/usr/bin/nvidia-ctk",
    "deviceNodes": "require",
    "devicePluginConflict": "warn",
    "cdiEdits": "nvidia-ctk",
    "cdiHooks": "nvidia-cdi-hook",
    "cdiRoot": "/var/cdi",
    "simulatedNode": "h200x8",
    "gpuControl": "observe",
    "featureGates": {"TimeSlicingSettings": True, "ConsumableShares": True, "MPSSupport": True, "AllBeta": False},
    "mps": {"priorityClassName": "high"},
    "image": {"repository": "localhost/driver", "tag": "v9", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "first"}, {"name": "second"}],
    "consumableShares": 4,
    "sharingProfile": {"rules": [{"match": {"minor": 0}, "shares": "disabled"}]},
    "maxClientsPerGpu": 21,
    "shareMemory": "even",
    "logVerbosity": 6,
}


def schema() -> helm.Json:
    return dict(json.loads((helm.CHART / "values.schema.json").read_text()))


def nested(path: str, value: Any) -> dict[str, Any]:
    """{'a': {'b': value}} for 'a.b'."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def loaded(values: dict[str, Any]) -> settings.Settings:
    """The driver's settings in a pod of the chart."""
    return settings.load(argparse.Namespace(), helm.environment(helm.render(values)))


# Guards.


@pytest.mark.parametrize("value", [False, "false", "yes", "True", ""])
def test_install_is_refused_unless_the_gpu_override_is_true(value: Any) -> None:
    said = f'gpuResourcesEnabledOverride is "{str(value).lower() if value is False else value}": set '
    with pytest.raises(helm.Refused, match=said + "gpuResourcesEnabledOverride=true once nothing else"):
        helm.documents({"gpuResourcesEnabledOverride": value})


def test_install_is_refused_when_the_gpu_override_is_absent_and_the_reason_is_given() -> None:
    with pytest.raises(helm.Refused, match=r"NVIDIA device plugin.*two pods get one GPU.*gpus.enabled=false"):
        helm.documents({})


def test_gpu_override_as_text_counts_when_it_is_true() -> None:
    assert helm.documents({"gpuResourcesEnabledOverride": "true"})


def test_nothing_is_installed_and_no_override_asked_for_when_gpus_are_off() -> None:
    assert helm.documents({"resources": {"gpus": {"enabled": False}}}) == []


@pytest.mark.parametrize("where", ["release", "override"])
def test_default_namespace_is_refused(where: str) -> None:
    options = {"namespace": "default"} if where == "release" else {}
    with pytest.raises(helm.Refused, match=r'namespace is "default".*--namespace .* or set allowDefaultNamespace=true'):
        helm.render({"namespaceOverride": "default"} if where == "override" else {}, **options)


def test_default_namespace_is_taken_when_it_is_allowed() -> None:
    assert helm.render({"allowDefaultNamespace": True}, namespace="default")


@pytest.mark.parametrize(("first", "second"), EXCLUSIONS)
def test_gates_that_exclude_each_other_are_refused_before_the_driver_would(first: str, second: str) -> None:
    with pytest.raises(helm.Refused, match="exclude each other: set one of them to false") as refused:
        helm.render({"featureGates": {first: True, second: "true"}})
    assert f"featureGates.{first}" in str(refused.value)
    assert f"featureGates.{second}" in str(refused.value)


def test_gate_that_needs_another_is_refused_without_it() -> None:
    ours = {gate.name for gate in GATES if gate.scope is not Scope.FOREIGN}
    ((gate, needed),) = [pair for pair in REQUIREMENTS if pair[0] in ours]
    with pytest.raises(helm.Refused, match=f"featureGates.{gate} requires featureGates.{needed}"):
        helm.render({"featureGates": {gate: True}})


@pytest.mark.parametrize("shares", [4, "4", "memory"])
def test_shares_without_their_gate_are_refused_and_both_settings_are_named(shares: Any) -> None:
    with pytest.raises(helm.Refused, match=f'consumableShares is "{shares}", .*featureGates.ConsumableShares=true'):
        helm.render({"consumableShares": shares})


@pytest.mark.parametrize("shares", ["", "disabled"])
def test_shares_that_are_off_need_no_gate(shares: str) -> None:
    assert helm.render({"consumableShares": shares})


def test_files_of_the_toolkit_without_its_hooks_are_refused_and_both_settings_are_named() -> None:
    with pytest.raises(helm.Refused, match=r"cdiEdits is nvidia-ctk, .* cdiHooks is none: set "):
        helm.render({"cdiEdits": "nvidia-ctk", "cdiHooks": "none"})


def test_kubernetes_before_1_34_is_refused() -> None:
    with pytest.raises(helm.Refused, match=r"requires kubeVersion: >=1\.34"):
        helm.render(kube_version="1.33.9")


# The schema.


@pytest.mark.parametrize(
    "path",
    [
        "gpuResourcesEnabledOveride",
        "namespace",
        "nvidiaCtkPath",
        "featureGates.TimeSlicing",
        "image.repo",
        "resources.gpu",
        "serviceAccount.annotation",
        "kubeletPlugin.toleration",
        "kubeletPlugin.updateStrategy.rollingUpdate.maxSurges",
        "kubeletPlugin.containers.gpu",
        "kubeletPlugin.containers.gpus.healthCheckPort",
        "kubeletPlugin.metrics.httpEndpoint",
        "deviceClasses.extendedResource",
        "sharingProfile.rule",
        "deviceClasses.sharing.interval",
        "mps.priorityClass",
    ],
)
def test_misspelt_value_is_refused_by_its_name(path: str) -> None:
    parent, _, name = path.rpartition(".")
    with pytest.raises(helm.Refused) as refused:
        helm.render(nested(path, True))
    assert f"'/{parent.replace('.', '/')}'" in str(refused.value) if parent else "at ''" in str(refused.value)
    assert f"'{name}' not allowed" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("featureGates.TimeSlicingSettings", "yes"),
        ("cdiRoot", "var/run/cdi"),
        ("kubeletPlugin.kubeletPluginsDirectoryPath", "plugins"),
        ("gpuControl", "read"),
        ("deviceNodes", "make"),
        ("devicePluginConflict", "ignore"),
        ("cdiEdits", "toolkit"),
        ("cdiHooks", "all"),
        ("nvidiaCTKPath", "nvidia-ctk"),
        ("consumableShares", "0"),
        ("maxClientsPerGpu", 0),
        ("shareMemory", "all"),
        ("sharingProfile.rules", {}),
        ("deviceClasses.migProfiles", "1g.10gb"),
        ("deviceClasses.sharing.strategy", "MPS"),
        ("deviceClasses.sharing.timeSlicingConfig.interval", "Forever"),
        ("kubeletPlugin.updateStrategy.type", "Recreate"),
        ("kubeletPlugin.containers.gpus.healthcheckPort", 70000),
        ("logVerbosity", "high"),
        ("resourceApiVersion", "v1"),
        ("image.pullPolicy", "Sometimes"),
        ("mps.launcher", "daemonset"),
    ],
)
def test_value_of_the_wrong_form_is_refused_with_its_place(path: str, value: Any) -> None:
    with pytest.raises(helm.Refused, match=f"at '/{path.replace('.', '/')}'"):
        helm.render(nested(path, value))


def test_schema_knows_every_feature_gate_of_the_driver_and_no_other() -> None:
    known = set(schema()["properties"]["featureGates"]["properties"])
    assert known == {gate.name for gate in GATES} | {"AllAlpha", "AllBeta"}


def test_every_default_value_is_in_the_schema() -> None:
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
    assert set(values) <= set(schema()["properties"])


def test_values_file_of_nvidias_chart_installs_this_one() -> None:
    objects = helm.documents(yaml.safe_load(NVIDIA_VALUES))
    assert helm.environment(objects)["FEATURE_GATES"] == "MPSSupport=false,TimeSlicingSettings=true"


# What reaches the driver.


@pytest.mark.parametrize("values", [{}, ALL_SETTINGS], ids=["defaults", "all-set"])
def test_every_variable_of_the_pod_is_one_that_the_driver_reads(values: dict[str, Any]) -> None:
    known = {name for setting in TABLE for name in setting.env}
    meant_for_others = {"NVIDIA_VISIBLE_DEVICES"}
    assert set(helm.environment(helm.render(values))) - meant_for_others <= known


def test_driver_takes_the_defaults_of_the_chart() -> None:
    read = loaded({})
    assert (read.node_name, str(read.cdi_root), read.healthcheck_port, read.verbosity, read.metrics_path) == (
        "node-a",
        "/var/run/cdi",
        51516,
        4,
        "/metrics",
    )


def test_driver_reads_what_the_values_say() -> None:
    read = loaded(ALL_SETTINGS)
    assert {
        "driver_root": str(read.driver_root),
        "cdi_root": str(read.cdi_root),
        "cdi": (read.cdi_edits.value, read.cdi_hooks.value, str(read.cdi_hook_path), str(read.ctk_path)),
        "device_nodes": read.device_nodes.value,
        "simulated_node": read.simulated_node,
        "gpu_control": read.gpu_control.value,
        "shares": (str(read.consumable_shares), read.max_clients_per_gpu, str(read.sharing_profile)),
        "share_memory": read.share_memory.value,
        "verbosity": read.verbosity,
        "pod_uid": bool(read.pod_uid),
        "mps": (read.mps_launcher.value, read.namespace, read.mps_daemon_priority_class),
        "image": (read.image_name, read.image_pull_policy, read.image_pull_secrets),
        "account": read.service_account_name,
    } == {
        "driver_root": "/run/nvidia/driver",
        "cdi_root": "/var/cdi",
        "cdi": ("nvidia-ctk", "nvidia-cdi-hook", "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"),
        "device_nodes": "require",
        "simulated_node": "h200x8",
        "gpu_control": "observe",
        "shares": ("4", 21, "/etc/dra-driver-gpu/sharing/profile.yaml"),
        "share_memory": "even",
        "verbosity": 6,
        "pod_uid": True,
        "mps": ("deployment", helm.NAMESPACE, "high"),
        "image": ("localhost/driver:v9", "Always", ("first", "second")),
        "account": "gpus-dra-driver-gpu-service-account-kubeletplugin",
    }


def test_driver_starts_with_the_gate_of_mps_and_nothing_else_said() -> None:
    read = loaded({"featureGates": {"MPSSupport": True}})
    assert (read.mps_launcher.value, read.image_name) == ("deployment", f"localhost/dra-driver-gpu:v{__version__}")
    assert read.mps_daemon_priority_class == "system-node-critical"


def test_driver_that_runs_mps_daemons_itself_is_told_no_image() -> None:
    read = loaded({"featureGates": {"MPSSupport": True}, "mps": {"launcher": "process"}})
    assert (read.mps_launcher.value, read.image_name) == ("process", "")


def test_metrics_that_are_off_are_off_in_the_driver() -> None:
    assert loaded({"kubeletPlugin": {"metrics": {"enabled": False}}}).metrics_path == ""


def test_feature_gates_come_in_the_order_of_their_names() -> None:
    gates = {"TimeSlicingSettings": True, "ComputeDomainCliques": False, "DRAListTypeAttributes": "true"}
    text = helm.environment(helm.render({"featureGates": gates}))["FEATURE_GATES"]
    assert text == "ComputeDomainCliques=false,DRAListTypeAttributes=true,TimeSlicingSettings=true"
    assert "TimeSlicingSettings" in parse_gates(text)


def test_extra_variables_of_the_values_reach_the_container() -> None:
    objects = helm.render(
        {"kubeletPlugin": {"containers": {"gpus": {"env": [{"name": "LOGGING_FORMAT", "value": "json"}]}}}}
    )
    assert helm.environment(objects)["LOGGING_FORMAT"] == "json"


# The chart itself.


def test_helm_finds_nothing_to_complain_about() -> None:
    helm.lint()


def test_chart_has_the_version_of_the_driver() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == __version__


def test_notes_name_the_daemonset_and_what_to_check() -> None:
    text = helm.notes()
    assert f"kubectl -n {helm.NAMESPACE} rollout status daemonset/gpus-dra-driver-gpu-kubelet-plugin" in text
    assert "kubectl get resourceslices" in text
    assert "featureGates.TimeSlicingSettings=true, which is not set" in text


def test_notes_say_how_to_see_that_the_webhook_serves() -> None:
    text = helm.notes({"webhook": {"enabled": True}})
    assert "the webhook serves once its Secret gpus-dra-driver-gpu-webhook-tls is there" in text
    assert "rollout status deployment/gpus-dra-driver-gpu-webhook" in text
    assert "webhook" not in helm.notes()


def test_notes_say_that_mps_daemons_are_privileged_pods_and_how_to_see_them() -> None:
    text = helm.notes({"featureGates": {"MPSSupport": True}})
    assert "MPS control daemons are privileged pods in this namespace: Pod Security" in text
    assert "get deployments,pods -l app.kubernetes.io/component=mps-control-daemon" in text
    assert "MPS" not in helm.notes()


def test_notes_say_that_nothing_was_installed_when_gpus_are_off() -> None:
    assert "nothing was installed" in helm.notes({"resources": {"gpus": {"enabled": False}}})
