"""What the chart's DaemonSet looks like: pods, mounts, probes, updates."""

from typing import Any

import pytest

from dra_driver import __version__
from tests import helm

pytestmark = pytest.mark.chart


def mount(objects: list[helm.Json], path: str) -> helm.Json:
    (found,) = [entry for entry in helm.container(objects)["volumeMounts"] if entry["mountPath"] == path]
    (volume,) = [entry for entry in helm.pod(objects)["volumes"] if entry["name"] == found["name"]]
    return {"host": volume["hostPath"]["path"], "type": volume["hostPath"]["type"], **found}


def update_strategy(values: Any) -> Any:
    objects = helm.render({"kubeletPlugin": {"updateStrategy": values}})
    return helm.one(objects, "DaemonSet")["spec"]["updateStrategy"]


def test_new_pod_comes_before_the_old_one_goes_by_default() -> None:
    strategy = helm.one(helm.render(), "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@pytest.mark.parametrize(
    ("given", "rolling"),
    [
        pytest.param({"maxUnavailable": "100%"}, {"maxSurge": 0, "maxUnavailable": "100%"}, id="as-NVIDIA's-chart"),
        pytest.param({"maxUnavailable": 0}, {"maxSurge": 1, "maxUnavailable": 0}, id="none-unavailable"),
        pytest.param({"maxUnavailable": "0%"}, {"maxSurge": 1, "maxUnavailable": "0%"}, id="none-in-percent"),
        pytest.param({"maxSurge": "25%"}, {"maxSurge": "25%", "maxUnavailable": 0}, id="surge"),
        pytest.param({"maxSurge": 0, "maxUnavailable": 2}, {"maxSurge": 0, "maxUnavailable": 2}, id="both-given"),
    ],
)
def test_what_an_update_strategy_leaves_open_is_filled_in_as_kubernetes_wants_it(given: Any, rolling: Any) -> None:
    assert update_strategy({"rollingUpdate": given})["rollingUpdate"] == rolling


def test_update_on_delete_has_no_rolling_update() -> None:
    assert update_strategy({"type": "OnDelete"}) == {"type": "OnDelete"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxSurge": 1, "maxUnavailable": "100%"}, "maxSurge 1 and maxUnavailable 100%"),
        ({"maxSurge": 0}, "maxSurge 0 and no maxUnavailable"),
    ],
)
def test_update_strategy_that_the_api_server_would_refuse_is_refused_by_the_chart(given: Any, says: str) -> None:
    with pytest.raises(helm.Refused, match=says):
        update_strategy({"rollingUpdate": given})


def test_one_setting_moves_the_cdi_flag_host_path_and_mount() -> None:
    objects = helm.render({"cdiRoot": "/var/cdi/dynamic"})
    assert mount(objects, "/var/cdi/dynamic")["host"] == helm.environment(objects)["CDI_ROOT"] == "/var/cdi/dynamic"


def test_cdi_folder_is_made_when_it_is_missing() -> None:
    assert mount(helm.render(), "/var/run/cdi")["type"] == "DirectoryOrCreate"


@pytest.mark.parametrize(
    ("value", "variable", "path"),
    [
        ("kubeletRegistrarDirectoryPath", "KUBELET_REGISTRAR_DIRECTORY_PATH", "/var/lib/k0s/kubelet/plugins_registry"),
        ("kubeletPluginsDirectoryPath", "KUBELET_PLUGINS_DIRECTORY_PATH", "/var/lib/k0s/kubelet/plugins"),
    ],
)
def test_kubelet_folder_is_the_same_inside_and_outside_when_it_is_elsewhere(
    value: str, variable: str, path: str
) -> None:
    objects = helm.render({"kubeletPlugin": {value: path}})
    assert mount(objects, path)["host"] == helm.environment(objects)[variable] == path


def test_kubelet_folder_that_is_missing_is_not_made() -> None:
    objects = helm.render()
    folders = ("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins")
    assert {mount(objects, folder)["type"] for folder in folders} == {"Directory"}


@pytest.mark.parametrize(
    ("path", "host", "expected"),
    [
        ("/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins", {"mountPropagation": "Bidirectional"}),
        ("/driver-root", "/run/nvidia/driver", {"mountPropagation": "HostToContainer"}),
        ("/sys", "/sys", {"readOnly": True}),
        ("/dev", "/dev", {}),
    ],
)
def test_mount_goes_in_the_direction_it_is_needed(path: str, host: str, expected: Any) -> None:
    found = mount(helm.render({"nvidiaDriverRoot": "/run/nvidia/driver"}), path)
    assert found == {"host": host, "mountPath": path, "type": found["type"], "name": found["name"], **expected}


def test_probes_are_those_of_the_grpc_health_service() -> None:
    container = helm.container(helm.render())
    ask = {"port": 51516, "service": "liveness"}
    assert (container["startupProbe"], container["livenessProbe"]) == (
        {"grpc": ask, "failureThreshold": 600, "periodSeconds": 1, "timeoutSeconds": 10},
        {"grpc": ask, "failureThreshold": 3, "periodSeconds": 30, "timeoutSeconds": 10},
    )


def test_readiness_asks_the_page_that_knows_devices_registration_and_slices() -> None:
    container = helm.container(helm.render({"kubeletPlugin": {"metrics": {"gpuHttpEndpoint": ":9191"}}}))
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert {"name": "http", "containerPort": 9191} in container["ports"]


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8080", "[::1]:8080", ""])
def test_readiness_asks_the_grpc_service_when_the_kubelet_cannot_reach_the_page(endpoint: str) -> None:
    container = helm.container(helm.render({"kubeletPlugin": {"metrics": {"gpuHttpEndpoint": endpoint}}}))
    assert container["readinessProbe"]["grpc"] == {"port": 51516, "service": "liveness"}


def test_readiness_page_stays_when_metrics_are_off() -> None:
    objects = helm.render({"kubeletPlugin": {"metrics": {"enabled": False}}})
    environment = helm.environment(objects)
    assert (environment["HTTP_ENDPOINT"], environment["METRICS_PATH"]) == (":8080", "")
    assert "httpGet" in helm.container(objects)["readinessProbe"]


@pytest.mark.parametrize("port", [-1, 0])
def test_no_grpc_probe_when_the_health_service_is_off_or_its_port_is_unknown(port: int) -> None:
    container = helm.container(helm.render({"kubeletPlugin": {"containers": {"gpus": {"healthcheckPort": port}}}}))
    assert {"startupProbe", "livenessProbe"}.isdisjoint(container)
    assert "httpGet" in container["readinessProbe"]


def test_pod_is_privileged_and_hidden_from_the_nvidia_runtime() -> None:
    objects = helm.render()
    assert helm.container(objects)["securityContext"] == {"privileged": True}
    assert helm.environment(objects)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_pod_has_neither_the_nodes_network_nor_its_processes() -> None:
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(helm.pod(helm.render()))


@pytest.mark.parametrize(("launcher", "host_pid"), [("deployment", None), ("process", True)])
def test_pod_sees_the_nodes_processes_where_mps_daemons_run_in_it(launcher: str, host_pid: bool | None) -> None:
    objects = helm.render({"featureGates": {"MPSSupport": True}, "mps": {"launcher": launcher}})
    assert helm.pod(objects).get("hostPID") is host_pid


def test_last_words_do_not_land_in_the_nodes_dev() -> None:
    assert not helm.container(helm.render())["terminationMessagePath"].startswith("/dev")


def test_image_is_the_one_of_the_charts_version() -> None:
    assert helm.container(helm.render())["image"] == f"localhost/dra-driver-gpu:v{__version__}"


def test_image_values_name_another_image() -> None:
    objects = helm.render(
        {
            "image": {"repository": "registry.example/gpu/driver", "tag": "edge", "pullPolicy": "Always"},
            "imagePullSecrets": [{"name": "pull"}],
        }
    )
    container = helm.container(objects)
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example/gpu/driver:edge", "Always")
    assert helm.pod(objects)["imagePullSecrets"] == [{"name": "pull"}]


def test_placement_values_reach_the_pod() -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    given = {
        "nodeSelector": {"gpu-mode": "dra"},
        "tolerations": [toleration],
        "affinity": None,
        "priorityClassName": "",
        "podAnnotations": {"note": "a"},
    }
    objects = helm.render({"kubeletPlugin": given})
    pod = helm.pod(objects)
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"gpu-mode": "dra"}, [toleration])
    assert {"affinity", "priorityClassName"}.isdisjoint(pod)
    assert helm.one(objects, "DaemonSet")["spec"]["template"]["metadata"]["annotations"] == {"note": "a"}


def test_pods_go_to_nodes_labelled_as_having_an_nvidia_card() -> None:
    rule = helm.pod(helm.render())["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = {term["matchExpressions"][0]["key"] for term in rule["nodeSelectorTerms"]}
    assert labels == {
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",
        "feature.node.kubernetes.io/pci-0300_10de.present",
        "feature.node.kubernetes.io/cpu-model.vendor_id",
        "nvidia.com/gpu.present",
    }


def test_simulated_node_needs_no_gpu_label() -> None:
    objects = helm.render({"simulatedNode": "h200x8"})
    assert "affinity" not in helm.pod(objects)
    assert helm.environment(objects)["SIMULATED_NODE"] == "h200x8"


@pytest.mark.parametrize("override", [{}, {"team": "gpu"}])
def test_selector_finds_its_own_pods(override: dict[str, str]) -> None:
    spec = helm.one(helm.render({"selectorLabelsOverride": override}), "DaemonSet")["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_pods_of_two_releases_do_not_match_each_others_selector() -> None:
    first = helm.one(helm.render(), "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert first["app.kubernetes.io/instance"] == helm.RELEASE


def test_labels_stay_within_63_characters_when_names_are_long() -> None:
    objects = helm.render({"nameOverride": "y" * 63, "fullnameOverride": "x" * 70})
    daemonset = helm.one(objects, "DaemonSet")
    labels = daemonset["spec"]["template"]["metadata"]["labels"]
    assert max(len(text) for text in (daemonset["metadata"]["name"], *labels, *labels.values())) <= 63
