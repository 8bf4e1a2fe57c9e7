from typing import Any

import pytest

from dra_driver.mps.waiting import Why, of_deployment, of_pods

IMAGE = "localhost/dra-driver-gpu:v1"


def failing(message: str, status: str = "True", kind: str = "ReplicaFailure") -> Any:
    condition = {"type": kind, "status": status, "reason": "FailedCreate", "message": message}
    return {"status": {"conditions": [{"type": "Available", "status": "False"}, condition]}}


def pod(state: Any = None, last: Any = None, *, phase: str = "Pending", name: str = "daemon-1", **metadata: Any) -> Any:
    statuses = [] if state is None else [{"state": state, "lastState": last or {}, "image": IMAGE}]
    return {
        "metadata": {"name": name, "namespace": "gpus", "creationTimestamp": "2026-12-01T12:00:00Z", **metadata},
        "spec": {"containers": [{"image": IMAGE}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


def waits(reason: str, message: str = "") -> Any:
    return {"waiting": {"reason": reason, "message": message}}


REFUSALS = [
    "pods \"d-\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no privileged pods here",
    'pods "d-" is forbidden: violates PodSecurity "restricted:latest": privileged',
    'admission webhook "a.example" denied the request: not allowed',
    'Pod "d-" is invalid: spec.priorityClassName: no such class',
]


@pytest.mark.parametrize("message", REFUSALS)
def test_pod_that_is_refused_is_told_in_the_words_of_who_refused_it_and_not_waited_for(message: str) -> None:
    assert of_deployment(failing(message)) == Why(f"its pod is refused: {message}", final=True)


def test_admission_that_could_not_be_asked_is_waited_for() -> None:
    message = 'Internal error occurred: failed calling webhook "a.example": connection refused'
    assert of_deployment(failing(message)) == Why(f"its pod is refused: {message}", final=False)


@pytest.mark.parametrize("found", [failing("old", status="False"), failing("x", kind="Progressing"), {}])
def test_deployment_that_refuses_nothing_says_nothing(found: Any) -> None:
    assert of_deployment(found) is None


def test_no_pod_yet() -> None:
    assert of_pods([]) == Why("it has no pod yet")


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"])
def test_image_that_is_not_to_be_had_is_named_and_waited_for(reason: str) -> None:
    why = of_pods([pod(waits(reason, "failed to resolve reference: not found"))])
    assert not why.final
    assert why.words == f"its pod daemon-1 waits: {reason}: failed to resolve reference: not found (image {IMAGE})"


def test_image_that_the_message_names_is_not_named_twice() -> None:
    assert of_pods([pod(waits("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))]).words.count(IMAGE) == 1


def test_image_whose_name_is_none_is_not_waited_for() -> None:
    assert of_pods([pod(waits("InvalidImageName", "couldn't parse"))]).final


@pytest.mark.parametrize("reason", ["CreateContainerError", "CreateContainerConfigError", "RunContainerError"])
def test_container_that_cannot_be_made_is_told_with_reason_and_message(reason: str) -> None:
    why = of_pods([pod(waits(reason, "no such file or directory"))])
    assert f"{reason}: no such file or directory" in why.words
    assert not why.final


def test_container_that_fails_again_and_again_is_told_with_its_last_words() -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "libcuda.so.1 is\nnot there"}}
    why = of_pods([pod(waits("CrashLoopBackOff", "back-off 10s"), ended)])
    assert "CrashLoopBackOff: back-off 10s" in why.words
    assert "it ended with exit code 1 (Error): libcuda.so.1 is not there" in why.words


def test_container_between_two_starts_is_told_with_its_last_words() -> None:
    state = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no"}}
    assert of_pods([pod(state)]).words == (
        "its pod daemon-1 is about to be started again; it ended with exit code 3 (Error): no"
    )


def test_long_log_keeps_its_end_and_a_long_message_its_beginning() -> None:
    ended = {"terminated": {"exitCode": 1, "message": "x" * 5000 + "the cause"}}
    why = of_pods([pod(waits("CrashLoopBackOff", "the reason" + "y" * 5000), ended)])
    assert why.words.endswith("the cause")
    assert "the reason" in why.words
    assert len(why.words) < 900


@pytest.mark.parametrize("state", [None, waits("ContainerCreating"), waits("PodInitializing"), waits("")])
def test_pod_that_is_being_made_says_how_to_see_what_for(state: Any) -> None:
    assert of_pods([pod(state)]).words == "its pod daemon-1 is being made (kubectl -n gpus describe pod daemon-1)"


def test_pod_that_runs_has_a_daemon_that_does_not_serve() -> None:
    assert of_pods([pod({"running": {}}, phase="Running")]).words == (
        "its pod daemon-1 runs, and the daemon in it does not serve yet"
    )


def test_pod_that_the_kubelet_turns_away_is_not_waited_for_since_more_would_come() -> None:
    refused = pod(phase="Failed")
    refused["status"] |= {"reason": "OutOfpods", "message": "Node didn't have enough resource: pods"}
    why = of_pods([refused, pod(name="daemon-2", creationTimestamp="2026-12-01T12:00:01Z")])
    assert why == Why(
        "the kubelet refuses its pod daemon-1: OutOfpods: Node didn't have enough resource: pods", final=True
    )


def test_youngest_pod_that_stays_is_told_of() -> None:
    leaving = pod({"running": {}}, name="old", deletionTimestamp="2026-12-01T12:00:09Z", creationTimestamp="2")
    young = pod(waits("ErrImagePull"), name="young", creationTimestamp="1")
    assert "young" in of_pods([leaving, young, pod({"running": {}}, creationTimestamp="0")]).words
    assert of_pods([leaving]).words == "its pod old is being deleted, the next one comes after it"
