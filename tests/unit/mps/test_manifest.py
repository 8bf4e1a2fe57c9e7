from pathlib import Path
from typing import Any

import pytest

from dra_driver.model.mps import MpsDaemon
from dra_driver.mps.manifest import (
    DaemonPods,
    HostFolders,
    deployment,
    describes,
    name_of,
    node_labels,
    node_of,
    pod_labels,
)

DAEMON = MpsDaemon(
    id="7e2a5d52-1d4a-4a04-9f35-6b5c8e2f6d11-0a1b2",
    devices=("GPU-1", "MIG-2"),
    gpus=("GPU-1",),
    thread_percentage=25,
    memory_limits=(("GPU-1", "1024M"),),
    multi_user=True,
)
NAME = "mps-control-daemon-7e2a5d52-1d4a-4a04-9f35-6b5c8e2f6d11-0a1b2"
DIRECTORY = Path("/var/lib/kubelet/plugins/gpu.nvidia.com/mps") / DAEMON.id
FOLDERS = HostFolders(driver_root=Path("/run/nvidia/driver"), dev=Path("/run/nvidia/driver/dev"), daemon=DIRECTORY)
PODS = DaemonPods(node_name="node-a", image="localhost/dra-driver-gpu:v1")


def made(pods: DaemonPods = PODS, daemon: MpsDaemon = DAEMON) -> Any:
    return deployment(daemon, FOLDERS, pods, "node-uid")


def pod(pods: DaemonPods = PODS) -> Any:
    return made(pods)["spec"]["template"]["spec"]


def container(pods: DaemonPods = PODS) -> Any:
    (only,) = pod(pods)["containers"]
    return only


def test_deployment_is_called_as_nvidias_driver_calls_it_and_finds_its_pod() -> None:
    found = made()
    assert (found["apiVersion"], found["kind"], found["metadata"]["name"]) == ("apps/v1", "Deployment", NAME)
    assert found["spec"]["selector"]["matchLabels"] == {"app": NAME} == pod_labels(DAEMON.id)
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert labels == found["metadata"]["labels"]
    assert labels == {"app": NAME, "app.kubernetes.io/component": "mps-control-daemon", "gpu.nvidia.com/node": "node-a"}


def test_names_can_be_labels() -> None:
    assert len(name_of(DAEMON.id)) <= 63


def test_there_is_never_a_second_pod_beside_the_first() -> None:
    spec = made()["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_deployment_goes_with_its_node_without_holding_it_up() -> None:
    (owner,) = made()["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid"}


def test_pod_runs_on_its_node_whatever_taints_that_has() -> None:
    assert (pod()["nodeName"], pod()["tolerations"]) == ("node-a", [{"operator": "Exists"}])
    assert node_of(made()) == "node-a"


def test_pod_sees_the_nodes_processes_and_has_no_token() -> None:
    found = pod()
    assert (found["hostPID"], found["automountServiceAccountToken"]) == (True, False)
    assert found["terminationGracePeriodSeconds"] == 30
    assert {"hostNetwork", "hostIPC"}.isdisjoint(found)


def test_container_runs_the_supervisor_without_a_shell_and_its_probe_asks_the_same_program() -> None:
    found = container()
    assert (found["name"], found["image"]) == ("mps-control-daemon", "localhost/dra-driver-gpu:v1")
    assert found["command"] == ["dra-driver", "mps-daemon", "--driver-root", "/driver-root", str(DIRECTORY)]
    probe = found["startupProbe"]["exec"]["command"]
    assert probe == ["dra-driver", "mps-daemon", "--is-ready", str(DIRECTORY)]


def test_container_is_privileged_and_writes_nowhere_but_into_its_mounts() -> None:
    found = container()
    assert found["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert not found["terminationMessagePath"].startswith("/dev")
    assert set(found["resources"]) == {"requests"}


def test_container_is_hidden_from_the_nvidia_runtime() -> None:
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container()["env"]


@pytest.mark.parametrize(
    ("inside", "host", "read_only"),
    [
        ("/driver-root", "/run/nvidia/driver", True),
        (str(DIRECTORY), str(DIRECTORY), False),
        ("/dev/shm", f"{DIRECTORY}/shm", False),
        ("/dev", "/run/nvidia/driver/dev", False),
    ],
)
def test_folder_of_the_host_is_there_with_what_is_mounted_later(inside: str, host: str, read_only: bool) -> None:
    (mount,) = [mount for mount in container()["volumeMounts"] if mount["mountPath"] == inside]
    (volume,) = [volume for volume in pod()["volumes"] if volume["name"] == mount["name"]]
    assert volume["hostPath"] == {"path": host, "type": "Directory"}
    assert (mount.get("readOnly", False), mount["mountPropagation"]) == (read_only, "HostToContainer")


def test_container_has_a_folder_that_the_supervisor_can_cover() -> None:
    (mount,) = [mount for mount in container()["volumeMounts"] if mount["mountPath"] == "/mnt"]
    (volume,) = [volume for volume in pod()["volumes"] if volume["name"] == mount["name"]]
    assert set(volume) == {"name", "emptyDir"}


def test_settings_that_are_given_reach_the_pod() -> None:
    given = DaemonPods(
        node_name="node-a",
        image="localhost/other:v2",
        pull_policy="Always",
        pull_secrets=("first", "second"),
        service_account="driver",
        priority_class="system-node-critical",
    )
    found = pod(given)
    assert (container(given)["image"], container(given)["imagePullPolicy"]) == ("localhost/other:v2", "Always")
    assert found["imagePullSecrets"] == [{"name": "first"}, {"name": "second"}]
    assert (found["serviceAccountName"], found["priorityClassName"]) == ("driver", "system-node-critical")


def test_settings_that_are_not_given_are_left_to_kubernetes() -> None:
    assert {"imagePullSecrets", "serviceAccountName", "priorityClassName"}.isdisjoint(pod())
    assert "imagePullPolicy" not in container()


# What is found in the API server.


def test_daemon_is_described_by_its_deployment() -> None:
    assert describes(made()) == DAEMON


@pytest.mark.parametrize(
    "annotations",
    [None, {}, {"gpu.nvidia.com/mps-daemon": "{"}, {"gpu.nvidia.com/mps-daemon": "[]"}],
    ids=["none", "empty", "no-json", "no-object"],
)
def test_daemon_whose_description_is_damaged_is_known_by_its_id(annotations: Any) -> None:
    found = made()
    found["metadata"]["annotations"] = annotations
    assert describes(found) == MpsDaemon(id=DAEMON.id, devices=())


def test_description_of_another_daemon_does_not_count() -> None:
    found = made()
    found["metadata"]["name"] = f"{NAME[:-1]}3"
    assert describes(found) == MpsDaemon(id=f"{DAEMON.id[:-1]}3", devices=())


def test_deployment_of_something_else_is_no_daemon() -> None:
    found = made()
    found["metadata"]["labels"] = {"app.kubernetes.io/component": "webhook"}
    assert describes(found) is None
    assert describes({}) is None
    assert node_of({}) != "node-a"


def test_nodes_with_long_names_have_labels_of_their_own() -> None:
    first, second = (f"{'n' * 100}.{letter}" for letter in "ab")
    values = [node_labels(name)["gpu.nvidia.com/node"] for name in (first, second)]
    assert values[0] != values[1]
    assert all(len(value) <= 63 and value[0] == "n" and value[-1].isalnum() for value in values)
    assert node_labels("n" * 63)["gpu.nvidia.com/node"] == "n" * 63
