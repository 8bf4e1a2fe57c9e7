from pathlib import Path

import pytest

from dra_driver.doctor.findings import Status
from tests.node_tree import KUBELET, NodeTree, healthy
from tests.unit.doctor.conftest import Examine, Machine

PLUGIN = f"{KUBELET}/plugins/gpu.nvidia.com"
REGISTRATION = f"{KUBELET}/plugins_registry/gpu.nvidia.com"


def test_kubelet_with_another_root_is_found_and_the_flags_are_named(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path).kubelet("/var/lib/k0s/kubelet")

    found = run(tree, None).of("kubelet")

    assert found.status is Status.PROBLEM
    assert "--kubelet-registrar-directory-path=/var/lib/k0s/kubelet/plugins_registry" in found.remedy
    assert "--kubelet-plugins-directory-path=/var/lib/k0s/kubelet/plugins" in found.remedy


def test_node_without_a_kubelet_is_a_problem_by_path(tmp_path: Path, run: Examine) -> None:
    found = run(NodeTree(tmp_path), None).of("kubelet")

    assert found.status is Status.PROBLEM
    assert found.message == "/var/lib/kubelet/plugins_registry and /var/lib/kubelet/plugins are not there"


def test_this_driver_at_work_is_no_other_publisher(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path).this_driver(), Machine()).of("publishers")

    assert found.message == f"this driver alone is registered ({REGISTRATION}-reg.sock)"


def test_node_that_nobody_serves_is_said_to_be_so(tmp_path: Path, run: Examine) -> None:
    assert run(healthy(tmp_path), Machine()).of("publishers").message == "nobody offers GPUs here at present"


def test_resources_that_the_kubelet_remembers_as_none_are_no_device_plugin(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).kubelet_noted({"nvidia.com/gpu": [], "example.com/nic": ["a"]})

    assert run(tree, Machine()).of("publishers").status is Status.OK


def test_device_plugin_that_left_pods_behind_is_told(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).kubelet_noted({"nvidia.com/gpu": []}, "nvidia.com/gpu")

    found = run(tree, Machine()).of("publishers")

    assert found.status is Status.WARNING
    assert "pods still hold nvidia.com/gpu" in found.message


@pytest.mark.parametrize("name", ["nvidia-gpu.sock", "nvidia-mig-1g.5gb.sock", "nvidiaGPU-1764547200.sock"])
def test_device_plugin_is_known_by_its_socket(tmp_path: Path, run: Examine, name: str) -> None:
    tree = healthy(tmp_path).socket(f"{KUBELET}/device-plugins/{name}")

    assert name in run(tree, Machine()).problems["publishers"]


@pytest.mark.parametrize("text", ["", "[]", '{"Data": 7}', '{"Data": {"PodDeviceEntries": [1]}}', "{", "[" * 100_000])
def test_kubelets_notes_that_cannot_be_understood_are_passed_over(tmp_path: Path, run: Examine, text: str) -> None:
    tree = healthy(tmp_path).add(f"{KUBELET}/device-plugins/kubelet_internal_checkpoint", text)

    assert run(tree, Machine()).problems == {}


def test_nvidias_driver_under_the_same_name_is_a_problem(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).add(f"{PLUGIN}/checkpoint.json", "{}").socket(f"{REGISTRATION}-reg.sock")

    found = run(tree, Machine())

    assert found.problems["publishers"] == (
        f"another driver is registered as gpu.nvidia.com ({REGISTRATION}-reg.sock, with {PLUGIN}/checkpoint.json)"
    )


def test_trace_of_nvidias_driver_is_told(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).add(f"{PLUGIN}/checkpoint.json", "{}")

    assert "has been here" in run(tree, Machine()).warnings["publishers"]


def test_registration_of_somebody_unknown_is_a_problem(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).socket(f"{REGISTRATION}-reg.sock")

    assert "this driver has no records here" in run(tree, Machine()).problems["publishers"]


def test_two_registrations_are_an_update_or_a_leftover(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).this_driver().socket(f"{REGISTRATION}-0a1b-reg.sock")

    found = run(tree, Machine()).of("publishers")

    assert found.status is Status.WARNING
    assert found.facts["registrations"] == [f"{REGISTRATION}-0a1b-reg.sock", f"{REGISTRATION}-reg.sock"]


def test_bottlerockets_driver_that_is_switched_off_is_no_publisher(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).add("/etc/nvidia-dra-driver-gpu/enabled", "\n")

    assert run(tree, Machine()).problems == {}
