import argparse
import dataclasses
from pathlib import Path

import pytest

from dra_driver.cdi.tools import EditsSource, HookMode
from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import SettingError
from dra_driver.settings import (
    Endpoint,
    GpuControlMode,
    LoggingFormat,
    MpsLauncher,
    Settings,
    add_options,
    load,
    roots,
)
from dra_driver.settings.table import TABLE
from dra_driver.sharing.memory_limits import ShareMemory
from dra_driver.sharing.shares import ConsumableShares, SharesMode

NODE = {"NODE_NAME": "node-a"}


def read(*flags: str, environ: dict[str, str] | None = None) -> Settings:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser)
    return load(parser.parse_args(list(flags)), NODE if environ is None else environ)


def error_of(*flags: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        read(*flags, environ=environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_those_of_the_nvidia_driver():
    settings = read()

    assert settings.namespace == "default"
    assert settings.cdi_root == Path("/etc/cdi")
    assert settings.driver_root == Path("/")
    assert settings.kubelet_registrar_directory == Path("/var/lib/kubelet/plugins_registry")
    assert settings.kubelet_plugins_directory == Path("/var/lib/kubelet/plugins")
    assert settings.healthcheck_port == -1
    assert settings.http_endpoint is None
    assert settings.metrics_path == "/metrics"
    assert settings.consumable_shares == ConsumableShares(SharesMode.DISABLED)
    assert (settings.kube_api_qps, settings.kube_api_burst) == (5.0, 10)
    assert settings.gpu_control is GpuControlMode.SET
    assert settings.logging_format is LoggingFormat.TEXT
    assert settings.host_root == Path("/host-root")


def test_every_setting_has_a_field_and_every_field_a_setting():
    assert [setting.field for setting in TABLE] != []
    assert {setting.field for setting in TABLE} == {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.field)
def test_help_names_the_environment_variables_of_a_flag(setting):
    parser = argparse.ArgumentParser()
    add_options(parser)
    action = parser._option_string_actions[setting.flag]

    assert action.help is not None
    assert len(action.help.splitlines()[0]) > 10
    assert all(f"${name}" in action.help for name in setting.env)


def test_no_flag_and_no_environment_name_is_used_twice():
    flags = [flag for setting in TABLE for flag in setting.flags]
    names = [name for setting in TABLE for name in setting.env]

    assert len(flags) == len(set(flags))
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("flag", "env"),
    [
        ("--node-name", "NODE_NAME"),
        ("--namespace", "NAMESPACE"),
        ("--cdi-root", "CDI_ROOT"),
        ("--nvidia-driver-root", "NVIDIA_DRIVER_ROOT"),
        ("--host_driver-root", "HOST_DRIVER_ROOT"),
        ("--container-driver-root", "DRIVER_ROOT_CTR_PATH"),
        ("--host-root", "HOST_ROOT"),
        ("--nvidia-cdi-hook-path", "NVIDIA_CDI_HOOK_PATH"),
        ("--nvidia-ctk-path", "NVIDIA_CTK_PATH"),
        ("--cdi-edits", "CDI_EDITS"),
        ("--cdi-hooks", "CDI_HOOKS"),
        ("--image-name", "IMAGE_NAME"),
        ("--image-pull-secrets", "IMAGE_PULL_SECRETS"),
        ("--image-pull-policy", "IMAGE_PULL_POLICY"),
        ("--service-account-name", "SERVICE_ACCOUNT_NAME"),
        ("--mps-launcher", "MPS_LAUNCHER"),
        ("--mps-daemon-priority-class", "MPS_DAEMON_PRIORITY_CLASS"),
        ("--kubelet-registrar-directory-path", "KUBELET_REGISTRAR_DIRECTORY_PATH"),
        ("--kubelet-plugins-directory-path", "KUBELET_PLUGINS_DIRECTORY_PATH"),
        ("--healthcheck-port", "HEALTHCHECK_PORT"),
        ("--additional-xids-to-ignore", "ADDITIONAL_XIDS_TO_IGNORE"),
        ("--http-endpoint", "HTTP_ENDPOINT"),
        ("--metrics-path", "METRICS_PATH"),
        ("--consumable-shares", "CONSUMABLE_SHARES"),
        ("--sharing-profile", "SHARING_PROFILE"),
        ("--max-clients-per-gpu", "MAX_CLIENTS_PER_GPU"),
        ("--kubeconfig", "KUBECONFIG"),
        ("--kube-api-qps", "KUBE_API_QPS"),
        ("--kube-api-burst", "KUBE_API_BURST"),
        ("--feature-gates", "FEATURE_GATES"),
        ("--logging-format", "LOGGING_FORMAT"),
        ("--vmodule", "VMODULE"),
        ("-v", "V"),
        ("--simulated-node", "SIMULATED_NODE"),
        ("--gpu-control", "GPU_CONTROL"),
        ("--gpu-tool-timeout", "GPU_TOOL_TIMEOUT"),
        ("--nvidia-dev-root", "NVIDIA_DEV_ROOT"),
        ("--container-dev-root", "DEV_ROOT_CTR_PATH"),
        ("--pod-uid", "POD_UID"),
    ],
)
def test_flags_and_environment_names_are_those_that_manifests_use(flag, env):
    (setting,) = [setting for setting in TABLE if flag in setting.flags]

    assert env in setting.env


def test_environment_beats_default():
    assert read(environ=NODE | {"CDI_ROOT": "/var/run/cdi"}).cdi_root == Path("/var/run/cdi")


def test_flag_beats_environment():
    settings = read("--cdi-root=/run/cdi", environ=NODE | {"CDI_ROOT": "/var/run/cdi"})

    assert settings.cdi_root == Path("/run/cdi")


def test_a_bad_environment_value_does_not_matter_when_the_flag_is_given():
    assert read("--healthcheck-port", "51516", environ=NODE | {"HEALTHCHECK_PORT": "x"}).healthcheck_port == 51516


def test_the_first_environment_name_that_is_set_wins():
    environ = NODE | {"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver", "HOST_DRIVER_ROOT": "/other"}

    assert read(environ=environ).driver_root == Path("/run/nvidia/driver")


def test_the_second_environment_name_counts_when_the_first_is_empty():
    environ = NODE | {"NVIDIA_DRIVER_ROOT": "", "HOST_DRIVER_ROOT": "/other"}

    assert read(environ=environ).driver_root == Path("/other")


@pytest.mark.parametrize(
    "setting", [s for s in TABLE if s.field not in ("node_name", "metrics_path")], ids=lambda s: s.field
)
def test_an_empty_environment_value_is_as_good_as_none(setting):
    environ = NODE | dict.fromkeys(setting.env, "")

    assert getattr(read(environ=environ), setting.field) == getattr(read(), setting.field)


def test_an_empty_metrics_path_switches_metrics_off():
    assert read(environ=NODE | {"METRICS_PATH": ""}).metrics_path == ""


def test_node_name_is_required():
    message = error_of(environ={})

    assert "--node-name is required" in message
    assert "NODE_NAME" in message


@pytest.mark.parametrize("name", ["node-a", "ip-10-0-3-17.eu-west-1.compute.internal", "a" * 253, "0"])
def test_node_names_that_kubernetes_allows_are_accepted(name):
    assert read("--node-name", name).node_name == name


@pytest.mark.parametrize("name", ["Node-A", "node_a", "-a", "a-", "a..b", ".a", "a/b", "a" * 254, "näh", "a\n", "../x"])
def test_node_names_that_kubernetes_refuses_are_refused(name):
    message = error_of(f"--node-name={name}")

    assert "invalid value for --node-name" in message
    assert "DNS subdomain" in message


@pytest.mark.parametrize(
    "flag",
    [
        "--cdi-root",
        "--nvidia-driver-root",
        "--container-driver-root",
        "--nvidia-dev-root",
        "--container-dev-root",
        "--host-root",
        "--kubelet-registrar-directory-path",
        "--kubelet-plugins-directory-path",
        "--state-dir",
        "--nvidia-cdi-hook-path",
        "--nvidia-ctk-path",
    ],
)
def test_a_relative_directory_is_refused(flag):
    assert f'invalid value for {flag}: "some/where" (must be an absolute path)' == error_of(flag, "some/where")


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--cdi-edits", "auto or nvidia-ctk or builtin"),
        ("--cdi-hooks", "auto or nvidia-cdi-hook or none"),
    ],
)
def test_unknown_way_to_hand_over_files_is_refused_with_the_ways_there_are(flag, values):
    assert error_of(flag, "toolkit") == f'invalid value for {flag}: "toolkit" (must be {values})'


def test_files_of_the_toolkit_without_its_hooks_are_refused():
    message = error_of("--cdi-edits", "nvidia-ctk", environ=NODE | {"CDI_HOOKS": "none"})

    assert message.startswith("--cdi-edits=nvidia-ctk needs hooks, which --cdi-hooks=none forbids: set ")


def test_the_toolkit_is_used_where_it_is_unless_told_otherwise():
    settings = read()

    assert (settings.cdi_edits, settings.cdi_hooks) == (EditsSource.AUTO, HookMode.AUTO)
    assert (settings.cdi_hook_path, settings.ctk_path) == (None, None)


def test_the_error_names_the_environment_variable_that_the_value_came_from():
    message = error_of(environ=NODE | {"CDI_ROOT": "cdi"})

    assert (
        message == 'invalid value for --cdi-root: "cdi" (must be an absolute path), from environment variable CDI_ROOT'
    )


def test_a_huge_value_is_cut_in_the_error():
    assert len(error_of("--cdi-root", "x" * 100_000)) < 400


@pytest.mark.parametrize(("text", "port"), [("-1", -1), ("-5", -5), ("0", 0), ("51516", 51516), ("65535", 65535)])
def test_healthcheck_ports_that_are_accepted(text, port):
    assert read("--healthcheck-port", text).healthcheck_port == port


@pytest.mark.parametrize("text", ["65536", "http", "", "1.5", "1_0", "٣", "99999999999999999999"])
def test_healthcheck_ports_that_are_refused(text):
    assert "must be a port from 0 to 65535" in error_of(f"--healthcheck-port={text}")


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        (":8080", Endpoint("", 8080)),
        ("127.0.0.1:0", Endpoint("127.0.0.1", 0)),
        ("[::1]:8080", Endpoint("::1", 8080)),
        ("localhost:65535", Endpoint("localhost", 65535)),
    ],
)
def test_http_endpoints_that_are_accepted(text, endpoint):
    assert read("--http-endpoint", text).http_endpoint == endpoint


@pytest.mark.parametrize(
    "text",
    [
        *("8080", ":", ":x", ":65536", "::1:8080", ":-1", "http://a:80", "[::1]", "a:80/x"),
        *("[127.0.0.1]:1", "[[::1]]:1", "a b:1", ":٣"),
    ],
)
def test_http_endpoints_that_are_refused(text):
    assert "must be HOST:PORT" in error_of("--http-endpoint", text)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("disabled", ConsumableShares(SharesMode.DISABLED)),
        ("", ConsumableShares(SharesMode.DISABLED)),
        ("memory", ConsumableShares(SharesMode.MEMORY)),
        ("unlimited", ConsumableShares(SharesMode.UNLIMITED)),
        ("4", ConsumableShares(SharesMode.COUNT, 4)),
    ],
)
def test_consumable_shares_that_are_accepted(text, shares):
    settings = read(f"--consumable-shares={text}", "--feature-gates=ConsumableShares=true")

    assert settings.consumable_shares == shares


@pytest.mark.parametrize("text", ["x", "0", "-1", "1.5", "Memory", "count", " 4"])
def test_consumable_shares_that_are_refused(text):
    message = error_of(f"--consumable-shares={text}", "--feature-gates=ConsumableShares=true")

    assert message == (
        f'invalid value for --consumable-shares: "{text}" '
        "(must be 'disabled', 'memory', 'unlimited', or a positive integer)"
    )


@pytest.mark.parametrize("text", ["4", "memory", "unlimited"])
def test_consumable_shares_without_their_gate_are_refused_naming_both(text):
    message = error_of(environ=NODE | {"CONSUMABLE_SHARES": text})

    assert message.startswith("--consumable-shares requires feature gate ConsumableShares to be enabled")
    assert text in message


def test_sharing_profile_without_the_gate_of_shares_is_refused_naming_both():
    message = error_of("--sharing-profile=/etc/profile.yaml")

    assert message.startswith("--sharing-profile requires feature gate ConsumableShares to be enabled")
    assert "/etc/profile.yaml" in message


@pytest.mark.parametrize(("text", "value"), [("none", ShareMemory.NONE), ("even", ShareMemory.EVEN)])
def test_share_memory_that_is_accepted(text, value):
    settings = read(environ=NODE | {"SHARE_MEMORY": text, "FEATURE_GATES": "ConsumableShares=true"})

    assert settings.share_memory is value


@pytest.mark.parametrize("text", ["Even", "half", "1", ""])
def test_share_memory_that_is_refused_names_what_is_allowed(text):
    message = error_of(f"--share-memory={text}", "--feature-gates=ConsumableShares=true")

    assert message == f'invalid value for --share-memory: "{text}" (must be none or even)'


def test_share_memory_without_the_gate_of_shares_is_refused_naming_both():
    message = error_of("--share-memory=even")

    assert message.startswith("--share-memory requires feature gate ConsumableShares to be enabled: it is even")
    assert "set it to none" in message


def test_more_shares_than_clients_on_a_gpu_are_refused_with_both_settings():
    gate = "--feature-gates=ConsumableShares=true"
    message = error_of(gate, "--consumable-shares=49")

    assert [word for word in ("--consumable-shares=49", "--max-clients-per-gpu=48") if word not in message] == []
    assert read(gate, "--consumable-shares=49", "--max-clients-per-gpu=49").max_clients_per_gpu == 49


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_number_of_clients_must_be_one_or_more(text):
    message = error_of("--max-clients-per-gpu", text)

    assert message == f'invalid value for --max-clients-per-gpu: "{text}" (must be a whole number above 0)'


def test_empty_sharing_profile_is_none():
    assert read(environ=NODE | {"SHARING_PROFILE": ""}).sharing_profile is None


def test_the_gate_of_shares_without_a_value_leaves_shares_off():
    settings = read("--feature-gates=ConsumableShares=true")

    assert settings.consumable_shares == ConsumableShares()
    assert "ConsumableShares" in settings.gates


def test_feature_gates_with_helms_trailing_comma_are_accepted():
    settings = read(environ=NODE | {"FEATURE_GATES": "TimeSlicingSettings=true,MPSSupport=false,"})

    assert "TimeSlicingSettings" in settings.gates
    assert "MPSSupport" not in settings.gates


def test_an_unknown_gate_names_setting_value_origin_and_the_near_name():
    message = error_of(environ=NODE | {"FEATURE_GATES": "TimeSlicing=true"})

    assert 'invalid value for --feature-gates: "TimeSlicing=true"' in message
    assert "did you mean TimeSlicingSettings?" in message
    assert message.endswith("from environment variable FEATURE_GATES")


def test_exclusive_gates_end_the_start_naming_both():
    message = error_of("--feature-gates", "DynamicMIG=true,MPSSupport=true")

    assert "DynamicMIG is currently mutually exclusive with MPSSupport" in message


@pytest.mark.parametrize(
    ("flag", "value", "valid"),
    [
        ("--gpu-control", "off", "must be set or observe"),
        ("--logging-format", "xml", "must be text or json"),
        ("--namespace", "Kube-System", "must be a DNS label"),
        ("--pod-uid", "../x", "must be the UID of a Pod"),
        ("--kube-api-qps", "0", "must be a number above 0"),
        ("--kube-api-qps", "nan", "must be a number above 0"),
        ("--kube-api-qps", "inf", "must be a number above 0"),
        ("--kube-api-burst", "0", "must be a whole number above 0"),
        ("--kube-api-burst", "1.5", "must be a whole number above 0"),
        ("--gpu-tool-timeout", "0", "must be a number above 0"),
        ("--gpu-tool-timeout", "3601", "at most 3600"),
        ("--gpu-tool-timeout", "", "must be a number of seconds"),
        ("--metrics-path", "metrics", "must begin with '/'"),
        ("-v", "high", "must be a whole number"),
        ("--mps-launcher", "pod", "must be deployment or process"),
        ("--image-pull-policy", "always", "must be Always, IfNotPresent or Never"),
    ],
)
def test_bad_values_are_refused_with_the_valid_ones(flag, value, valid):
    message = error_of(f"{flag}={value}")

    assert f'"{value}"' in message
    assert valid in message


@pytest.mark.parametrize("text", ["10", "10s", "10.0"])
def test_the_tool_timeout_is_in_seconds(text):
    assert read("--gpu-tool-timeout", text).gpu_tool_timeout == 10.0


def test_xids_keep_what_is_a_number():
    assert read("--additional-xids-to-ignore=13, 31,x,,-2").additional_xids_to_ignore == {13, 31}


@pytest.mark.parametrize("text", ["a,b", "a b", " a, b,"])
def test_pull_secrets_are_separated_by_commas_or_blanks(text):
    assert read(f"--image-pull-secrets={text}").image_pull_secrets == ("a", "b")


def test_mps_control_daemons_are_run_by_deployments_unless_told_otherwise():
    assert read().mps_launcher is MpsLauncher.DEPLOYMENT
    assert read("--mps-launcher=process").mps_launcher is MpsLauncher.PROCESS


def test_gate_of_mps_without_an_image_is_refused_naming_both_and_the_ways_out():
    message = error_of("--feature-gates=MPSSupport=true")

    assert "feature gate MPSSupport with --mps-launcher=deployment requires --image-name" in message
    assert "set --mps-launcher=process" in message


@pytest.mark.parametrize(
    "flags",
    [
        ("--image-name=localhost/driver:v1",),
        ("--mps-launcher=process",),
        ("--feature-gates=MPSSupport=false",),
    ],
)
def test_image_is_needed_only_for_the_gate_of_mps_with_deployments(flags):
    assert read("--feature-gates=MPSSupport=true", *flags)


def test_command_that_starts_no_daemon_needs_no_image():
    parser = argparse.ArgumentParser()
    add_options(parser, only={"gates"})
    options = parser.parse_args(["--feature-gates=MPSSupport=true"])

    assert "MPSSupport" in load(options, {}, only={"gates"}).gates


@pytest.mark.parametrize("flags", [("-v", "6"), ("-v=6",), ("-v6",), ("--v=6",)])
def test_verbosity_is_taken_in_each_form_of_klog(flags):
    assert read(*flags).verbosity == 6


def test_state_and_sockets_are_in_the_relocated_kubelet_directory():
    settings = read(
        "--kubelet-plugins-directory-path=/var/lib/k0s/kubelet/plugins",
        "--kubelet-registrar-directory-path=/var/lib/k0s/kubelet/plugins_registry",
    )

    assert settings.state_directory == Path("/var/lib/k0s/kubelet/plugins/gpu.nvidia.com")
    assert settings.dra_socket == Path("/var/lib/k0s/kubelet/plugins/gpu.nvidia.com/dra.sock")
    assert settings.registration_socket == Path("/var/lib/k0s/kubelet/plugins_registry/gpu.nvidia.com-reg.sock")


def test_each_pod_has_its_own_sockets_when_its_uid_is_known():
    settings = read("--pod-uid=0b5c")

    assert settings.dra_socket.name == "dra-0b5c.sock"
    assert settings.registration_socket.name == "gpu.nvidia.com-0b5c-reg.sock"


def test_a_state_directory_of_its_own_is_taken():
    assert read("--state-dir=/var/lib/dra").state_directory == Path("/var/lib/dra")


@pytest.mark.parametrize("flag", ["--kubelet-plugins-directory-path", "--kubelet-registrar-directory-path"])
def test_a_directory_too_long_for_a_socket_is_refused(flag):
    message = error_of(flag, f"/{'x' * 100}")

    assert flag in message
    assert "at most 107" in message


def test_settings_that_a_command_does_not_offer_are_not_read_from_the_environment():
    settings = load(argparse.Namespace(), {"HEALTHCHECK_PORT": "x"}, only={"driver_root"})

    assert settings.healthcheck_port == -1


def test_a_command_may_do_without_a_required_setting():
    assert load(argparse.Namespace(), {}, only={"node_name"}, optional={"node_name"}).node_name == ""


def test_only_the_offered_settings_become_options():
    parser = argparse.ArgumentParser()
    add_options(parser, only={"driver_root"})

    assert set(parser._option_string_actions) == {"-h", "--help", "--nvidia-driver-root", "--host_driver-root"}


def test_roots_are_the_hosts_when_nothing_is_mounted(tmp_path):
    found = roots(read(f"--nvidia-driver-root={tmp_path}"), tmp_path / "absent")

    assert found == DriverRoots(
        driver_root=tmp_path,
        dev_root=Path("/"),
        container_driver_root=tmp_path,
        container_dev_root=Path("/"),
    )


def test_the_driver_root_is_seen_where_it_is_mounted(tmp_path):
    found = roots(read("--nvidia-driver-root=/run/nvidia/driver"), tmp_path)

    assert found.container_driver_root == tmp_path
    assert found.driver_root == Path("/run/nvidia/driver")


@pytest.mark.parametrize("node", ["nvidiactl", "nvidia0"])
def test_a_driver_root_with_device_nodes_is_the_dev_root_too(tmp_path, node):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / node).touch()

    found = roots(read("--nvidia-driver-root=/run/nvidia/driver"), tmp_path)

    assert (found.dev_root, found.container_dev_root) == (Path("/run/nvidia/driver"), tmp_path)


def test_a_driver_root_without_device_nodes_leaves_the_dev_root_at_the_top(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "null").touch()

    found = roots(read("--nvidia-driver-root=/usr/local"), tmp_path)

    assert (found.dev_root, found.container_dev_root) == (Path("/"), Path("/"))


def test_the_hosts_dev_is_seen_under_the_mounted_root_before_the_nodes_are_there(tmp_path):
    (tmp_path / "dev").mkdir()

    found = roots(read(), tmp_path)

    assert (found.dev_root, found.container_dev_root) == (Path("/"), tmp_path)


def test_explicit_roots_win_over_what_is_found(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    flags = ("--container-driver-root=/a", "--nvidia-dev-root=/b", "--container-dev-root=/c")

    found = roots(read("--nvidia-driver-root=/d", *flags), tmp_path)

    assert found == DriverRoots(
        driver_root=Path("/d"),
        dev_root=Path("/b"),
        container_driver_root=Path("/a"),
        container_dev_root=Path("/c"),
    )
