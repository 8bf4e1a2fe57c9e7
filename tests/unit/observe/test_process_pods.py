from pathlib import Path

import pytest

from dra_driver.observe.process_pods import ProcessPods, pod_uid

UID = "0b1c2d3e-4f50-4a61-8b72-93a4b5c6d7e8"
UNDERSCORES = UID.replace("-", "_")
CONTAINER = "c0ffee" * 10 + "abcd"
OTHER = "11111111-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORES}.slice/"
            f"cri-containerd-{CONTAINER}.scope\n",
            id="systemd, containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORES}.slice/crio-{CONTAINER}.scope/container\n",
            id="systemd, cri-o, guaranteed",
        ),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}\n", id="cgroupfs, containerd"),
        pytest.param(f"0::/kubepods/pod{UID}/crio-{CONTAINER}\n", id="cgroupfs, cri-o"),
        pytest.param(
            f"0::/kubepods-burstable-pod{UNDERSCORES}.slice:cri-containerd:{CONTAINER}\n", id="drivers that differ"
        ),
        pytest.param(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{UNDERSCORES}.slice/cri-containerd-{CONTAINER}.scope\n",
            id="kind",
        ),
        pytest.param(f"12:cpuset:/\n4:memory:/kubepods/pod{UID}/{CONTAINER}\n0::/\n", id="version 1"),
        pytest.param(f"0::/../../kubepods/besteffort/pod{UID}/{CONTAINER}\n", id="seen from another namespace"),
        pytest.param(
            f"0::/kubepods/pod{OTHER}/{CONTAINER}/kubepods/besteffort/pod{UID}/{CONTAINER}\n", id="cluster in a pod"
        ),
    ],
)
def test_pod_is_found_in_the_cgroups_of(text: str) -> None:
    assert pod_uid(text) == UID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/system.slice/containerd.service\n",
        "0::/user.slice/user-1000.slice/session-1.scope\n",
        f"0::/kubepods/pod{UID}f/{CONTAINER}\n",
        f"0::/kubepods/burstable/pod{'0123456789abcdef' * 2}/{CONTAINER}\n",
    ],
    ids=["nothing", "service", "session", "longer than a UID", "static pod"],
)
def test_process_of_no_pod_with_claims_has_none(text: str) -> None:
    assert pod_uid(text) is None


def test_pod_of_a_process_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{CONTAINER}\n")
    assert ProcessPods(tmp_path).pod_of(42) == UID


def test_process_that_has_ended_is_in_no_pod(tmp_path: Path) -> None:
    assert ProcessPods(tmp_path).pod_of(42) is None


@pytest.mark.parametrize(("namespace", "told"), [("pid:[4026531836]", False), ("pid:[4026532770]", True)])
def test_process_that_cannot_see_the_hosts_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, namespace: str, told: bool
) -> None:
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").symlink_to(namespace)
    ProcessPods(tmp_path).tell_if_blind()
    assert ("hostPID: true" in caplog.text) is told
