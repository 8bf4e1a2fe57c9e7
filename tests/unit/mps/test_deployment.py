import contextlib
import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hostfs import DriverRoots
from dra_driver.model.errors import ApiError, ApiUnreachable, MpsError, MpsStarting
from dra_driver.model.mps import MpsDaemon
from dra_driver.mps.deployment import DeploymentLauncher
from dra_driver.mps.description import Description
from dra_driver.mps.folders import Folder
from dra_driver.mps.manifest import DaemonPods, pod_labels
from tests.fakes.cluster import FakeNode
from tests.fakes.deployments import FakeDeployments

DAEMON = MpsDaemon(id="7e2a5d52-1d4a-4a04-9f35-6b5c8e2f6d11-0a1b2", devices=("GPU-1",), gpus=("GPU-1",))
NAME = f"mps-control-daemon-{DAEMON.id}"
CANNOT = 'pods is forbidden: User "driver" cannot list resource "pods" in API group ""'


class Time:
    """A clock that moves when somebody pauses; ``on_pause`` is called each time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_pause: Callable[[], object] = lambda: None

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.on_pause()


@pytest.fixture
def api() -> FakeDeployments:
    return FakeDeployments()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def roots(tmp_path: Path) -> DriverRoots:
    (tmp_path / "driver").mkdir()
    return DriverRoots(
        driver_root=Path("/run/nvidia/driver"),
        dev_root=Path("/run/nvidia/driver"),
        container_driver_root=tmp_path / "driver",
        container_dev_root=tmp_path / "driver",
    )


@pytest.fixture
def launcher(api: FakeDeployments, time: Time, roots: DriverRoots) -> DeploymentLauncher:
    return made(api, time, roots)


def made(api: FakeDeployments, time: Time, roots: DriverRoots, **more: Any) -> DeploymentLauncher:
    pods = DaemonPods(node_name=more.pop("node", "node-a"), image="localhost/driver:v1")
    return DeploymentLauncher(api, FakeNode(), pods, lambda: roots, clock=time.clock, pause=time.pause, **more)


def launch(launcher: DeploymentLauncher, tmp_path: Path, daemon: MpsDaemon = DAEMON) -> None:
    launcher.launch(daemon, tmp_path)


def run_pod(api: FakeDeployments, state: Any = None, *, node: str = "node-a", phase: str = "Running") -> Any:
    pod = {
        "metadata": {"name": "pod-1", "namespace": api.namespace, "labels": pod_labels(DAEMON.id)},
        "spec": {"nodeName": node, "containers": [{"image": "localhost/driver:v1"}]},
        "status": {"phase": phase, "containerStatuses": [{"state": state or {"running": {}}}]},
    }
    api.running.append(pod)
    return pod


def paths(api: FakeDeployments) -> dict[str, str]:
    volumes = api.stored[NAME]["spec"]["template"]["spec"]["volumes"]
    return {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}


# Launching.


def test_daemon_is_launched_as_a_deployment_owned_by_the_node(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    assert api.stored[NAME]["metadata"]["ownerReferences"][0]["uid"] == "node-uid-1"
    assert (paths(api)["driver-root"], paths(api)["daemon"]) == ("/run/nvidia/driver", str(tmp_path))


def test_device_nodes_are_a_driver_containers_own_where_it_has_a_whole_dev(
    api: FakeDeployments, launcher: DeploymentLauncher, roots: DriverRoots, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    assert paths(api)["dev"] == "/dev"
    api.stored.clear()
    (roots.container_dev_root / "dev").mkdir()
    (roots.container_dev_root / "dev/null").touch()
    launch(launcher, tmp_path)
    assert paths(api)["dev"] == "/run/nvidia/driver/dev"


def test_launching_again_is_success_and_makes_nothing(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    launch(launcher, tmp_path)
    assert [each["metadata"]["uid"] for each in api.stored.values()] == ["uid-1"]


def test_deployment_of_that_name_for_another_daemon_is_refused_and_left_alone(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    with pytest.raises(MpsError, match=f"{NAME} is there already.*GPU-1.*kubectl -n dra-driver-gpu delete") as caught:
        launch(launcher, tmp_path, replace(DAEMON, thread_percentage=50))
    assert not isinstance(caught.value, MpsStarting)
    assert "delete" not in api.calls


def test_deployment_of_that_name_on_another_node_is_refused(
    api: FakeDeployments, time: Time, roots: DriverRoots, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    with pytest.raises(MpsError, match="wanted on node node-b: it is on node node-a"):
        launch(made(api, time, roots, node="node-b"), tmp_path)


def test_deployment_of_an_earlier_try_that_is_being_deleted_is_waited_for(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    api.delete(api.stored[NAME])
    with pytest.raises(MpsStarting, match=f"Deployment dra-driver-gpu/{NAME} .* still being deleted"):
        launch(launcher, tmp_path)
    api.settle()
    launch(launcher, tmp_path)
    assert api.stored[NAME]["metadata"]["uid"] == "uid-2"


def test_deployment_that_vanishes_between_two_looks_is_made_the_next_time(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    api.on_call = lambda verb: api.stored.clear() if verb == "get" else None
    with pytest.raises(MpsStarting):
        launch(launcher, tmp_path)
    launch(launcher, tmp_path)
    assert NAME in api.stored


def test_refusal_to_create_is_passed_on_whole(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    said = 'deployments.apps is forbidden: User "driver" cannot create resource "deployments" in API group "apps"'
    api.failures["create"] = ApiError(said, 403)
    with pytest.raises(ApiError, match=said):
        launch(launcher, tmp_path)


# Waiting.


def test_what_a_pod_waits_for_is_told(api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path) -> None:
    launch(launcher, tmp_path)
    run_pod(api, {"waiting": {"reason": "ErrImagePull", "message": "not found"}}, phase="Pending")
    assert "pod-1 waits: ErrImagePull: not found (image localhost/driver:v1)" in launcher.why_not_ready(
        DAEMON.id, tmp_path
    )


def test_refusal_of_the_pod_is_an_error_with_the_words_of_who_refused(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    message = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
    condition = {"type": "ReplicaFailure", "status": "True", "message": message}
    api.stored[NAME]["status"] = {"conditions": [condition]}
    with pytest.raises(MpsError) as caught:
        launcher.why_not_ready(DAEMON.id, tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("verb", ["get", "pods"])
@pytest.mark.parametrize("error", [ApiError(CANNOT, 403), ApiUnreachable("no answer")], ids=["forbidden", "no-answer"])
def test_what_cannot_be_read_is_told_and_waited_for_all_the_same(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path, verb: str, error: ApiError
) -> None:
    launch(launcher, tmp_path)
    api.failures[verb] = error
    assert launcher.why_not_ready(DAEMON.id, tmp_path) == f"what it waits for cannot be read: {error}"


def test_deployment_that_somebody_deletes_is_not_waited_for(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    api.delete(api.stored[NAME])
    for _ in range(2):
        with pytest.raises(MpsError, match=f"somebody deleted Deployment dra-driver-gpu/{NAME}"):
            launcher.why_not_ready(DAEMON.id, tmp_path)
        api.settle()


# Ending.


def test_end_returns_when_deployment_and_pods_are_gone(
    api: FakeDeployments, launcher: DeploymentLauncher, time: Time, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    run_pod(api)
    looks = [api.settle, api.stored.clear, list]

    def look() -> None:
        looks.pop()()

    time.on_pause = look
    launcher.end(DAEMON.id, tmp_path, 20.0)
    assert looks == []
    assert (api.stored, api.running, api.calls.count("delete")) == ({}, [], 1)


def test_ending_what_is_not_there_is_success(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launcher.end(DAEMON.id, tmp_path, 20.0)
    assert "delete" not in api.calls


def test_what_is_still_there_when_the_time_is_over_is_named(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    run_pod(api)
    with pytest.raises(MpsError, match=f"not gone after 3 s: Deployment .*{NAME} is being deleted; pod pod-1 is being"):
        launcher.end(DAEMON.id, tmp_path, 3.0)


def test_pod_that_outlives_its_deployment_is_waited_for_and_named(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    run_pod(api)
    with pytest.raises(MpsError, match="not gone after 3 s: pod pod-1 is there, and nobody deletes it"):
        launcher.end(DAEMON.id, tmp_path, 3.0)


@pytest.mark.parametrize("pod", [{"node": "node-b"}, {"phase": "Failed"}, {"phase": "Succeeded"}])
def test_pods_that_hold_nothing_here_are_not_waited_for(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path, pod: dict[str, str]
) -> None:
    run_pod(api, **pod)
    launcher.end(DAEMON.id, tmp_path, 3.0)


def test_pods_that_must_not_be_listed_leave_it_to_the_deployment_and_the_supervisors_lock(
    api: FakeDeployments, launcher: DeploymentLauncher, time: Time, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    api.failures["pods"] = ApiError(CANNOT, 403)
    time.on_pause = api.settle
    launcher.end(DAEMON.id, tmp_path, 3.0)
    assert api.stored == {}


def test_supervisor_that_still_runs_is_not_gone_when_pods_must_not_be_listed(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    api.failures["pods"] = ApiError(CANNOT, 403)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MpsError, match="not gone after 3 s: its supervisor runs"):
            launcher.end(DAEMON.id, tmp_path, 3.0)


def test_deployment_that_is_replaced_while_it_is_ended_is_ended_too(
    api: FakeDeployments, launcher: DeploymentLauncher, time: Time, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)

    def replaced(verb: str) -> None:
        if verb == "delete" and api.calls.count("delete") == 0:
            api.stored[NAME]["metadata"]["uid"] = "uid-9"

    api.on_call = replaced
    time.on_pause = api.settle
    launcher.end(DAEMON.id, tmp_path, 20.0)
    assert (api.stored, api.calls.count("delete")) == ({}, 2)


def test_deployment_of_another_node_is_left_alone(
    api: FakeDeployments, time: Time, roots: DriverRoots, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    made(api, time, roots, node="node-b").end(DAEMON.id, tmp_path, 3.0)
    assert NAME in api.stored


@pytest.mark.parametrize("verb", ["get", "delete"])
def test_missing_right_to_end_is_passed_on(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path, verb: str
) -> None:
    launch(launcher, tmp_path)
    api.failures[verb] = ApiError(f'cannot {verb} resource "deployments"', 403)
    with pytest.raises(ApiError, match=f"cannot {verb} resource"):
        launcher.end(DAEMON.id, tmp_path, 3.0)


@pytest.mark.parametrize(("launcher_of", "left"), [("process", False), ("deployment", True), (None, False)])
def test_launcher_that_is_not_wanted_may_lack_the_right_to_end_what_is_not_its_own(
    api: FakeDeployments, time: Time, roots: DriverRoots, tmp_path: Path, launcher_of: str | None, left: bool
) -> None:
    directory = tmp_path / DAEMON.id
    directory.mkdir()
    if launcher_of:
        Folder(directory).describe(Description(DAEMON, launcher_of, mounted=False))
    api.failures["get"] = ApiError("cannot get", 403)
    with pytest.raises(ApiError) if left else contextlib.nullcontext():
        made(api, time, roots, wanted=False).end(DAEMON.id, directory, 3.0)


def test_launcher_that_is_not_wanted_needs_an_answer_of_the_api_server(
    api: FakeDeployments, time: Time, roots: DriverRoots, tmp_path: Path
) -> None:
    api.failures["get"] = ApiUnreachable("connection refused")
    with pytest.raises(ApiUnreachable):
        made(api, time, roots, wanted=False).end(DAEMON.id, tmp_path / DAEMON.id, 3.0)


def test_launcher_that_is_not_wanted_needs_the_right_to_end_what_a_supervisor_runs(
    api: FakeDeployments, time: Time, roots: DriverRoots, tmp_path: Path
) -> None:
    api.failures["get"] = ApiError("cannot get", 403)
    folder = Folder(tmp_path / DAEMON.id)
    folder.path.mkdir()
    with folder.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ApiError, match="cannot get"):
            made(api, time, roots, wanted=False).end(DAEMON.id, folder.path, 3.0)


# What is there.


def test_daemons_of_this_node_are_present(
    api: FakeDeployments, time: Time, roots: DriverRoots, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    other = replace(DAEMON, id=f"{DAEMON.id[:-1]}3")
    launch(launcher, tmp_path)
    launch(made(api, time, roots, node="node-b"), tmp_path, other)
    assert launcher.present() == (DAEMON,)


def test_daemon_that_is_being_deleted_is_still_present(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    api.delete(api.stored[NAME])
    assert launcher.present() == (DAEMON,)


def test_missing_right_to_look_is_an_error_where_daemons_are_launched(
    api: FakeDeployments, launcher: DeploymentLauncher
) -> None:
    api.failures["labelled"] = ApiError("cannot list", 403)
    with pytest.raises(ApiError):
        launcher.present()


def test_launcher_that_is_not_wanted_may_lack_the_right_to_look_and_nothing_else(
    api: FakeDeployments, time: Time, roots: DriverRoots
) -> None:
    unwanted = made(api, time, roots, wanted=False)
    api.failures["labelled"] = ApiError("cannot list", 403)
    assert unwanted.present() == ()
    api.failures["labelled"] = ApiUnreachable("no answer")
    with pytest.raises(ApiUnreachable):
        unwanted.present()


def test_deployment_with_this_nodes_label_for_another_node_is_not_ours(
    api: FakeDeployments, launcher: DeploymentLauncher, tmp_path: Path
) -> None:
    launch(launcher, tmp_path)
    api.stored[NAME]["spec"]["template"]["spec"]["nodeName"] = "node-b"
    assert launcher.present() == ()


def test_launcher_that_is_not_wanted_does_not_pass_over_a_daemon_that_is_supervised(
    api: FakeDeployments, time: Time, roots: DriverRoots, tmp_path: Path
) -> None:
    api.failures["get"] = ApiError("cannot get", 403)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ApiError, match="cannot get"):
            made(api, time, roots, wanted=False).end(DAEMON.id, tmp_path, 3.0)
