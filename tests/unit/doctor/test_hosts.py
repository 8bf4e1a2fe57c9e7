"""Whole hosts of the kinds that we meet: what the doctor says of each, taken together."""

from pathlib import Path

import pytest

from dra_driver.doctor.findings import Status
from tests import node_tree
from tests.driver_tree import AL2023, BOTTLEROCKET, GKE, GPU_OPERATOR, Layout
from tests.node_tree import CONTAINERD_3, NodeTree, healthy
from tests.unit.doctor.conftest import Examine, Machine

OLD_LIMITS = {"memory-limits"}
"""What every driver before R615 is warned of."""


def test_healthy_al2023_node_has_nothing_but_known_limits(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path).containerd(CONTAINERD_3.format(runtime="nvidia")).this_driver()

    found = run(tree, Machine())

    assert found.problems == {}
    assert set(found.warnings) == {*OLD_LIMITS, "default-runtime"}
    assert found.of("node").message == "Amazon Linux 2023.8, kernel 6.12.40; 1 NVIDIA GPU"
    assert found.of("driver").message == "580.159.04 under /, libraries and kernel module alike"
    assert found.of("nvml").message == "driver 580.159.04, 1 x NVIDIA H200"
    assert found.of("toolkit").facts["hookVersion"] == "1.19.1"
    assert found.of("containerd").message == (
        "containerd 2.2.4 reads CDI specs from /etc/cdi, /var/run/cdi; this driver writes them to /var/run/cdi"
    )


def test_healthy_bottlerocket_node_has_its_driver_found_behind_links(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path, BOTTLEROCKET, node_tree.BOTTLEROCKET), Machine())

    assert found.problems == {}
    assert set(found.warnings) == OLD_LIMITS
    assert found.of("driver").facts["libraries"]["libcuda"] == ["580.159.04"]
    assert found.of("node").message.startswith("Bottlerocket OS 1.66.0 (aws-k8s-1.36-nvidia), ")
    assert found.of("toolkit").facts["hook"] == "/usr/bin/nvidia-cdi-hook"


def test_bottlerocket_with_its_own_publishers_is_told_which_settings_switch_them_off(
    tmp_path: Path, run: Examine
) -> None:
    tree = healthy(tmp_path, BOTTLEROCKET, node_tree.BOTTLEROCKET).device_plugin()
    tree.add("/etc/nvidia-dra-driver-gpu/enabled", "true\n")

    published = [finding for finding in run(tree, Machine()) if finding.check == "publishers"]

    assert [finding.status for finding in published] == [Status.PROBLEM, Status.PROBLEM]
    assert all("settings.kubelet-dra-drivers.nvidia.enabled = false" in finding.remedy for finding in published)
    assert "a device plugin offers the same GPUs (nvidia.com/gpu: 1; " in published[0].message


def test_healthy_gpu_operator_node_is_examined_at_its_driver_root(tmp_path: Path, run: Examine) -> None:
    root = GPU_OPERATOR.driver_root

    found = run(healthy(tmp_path, GPU_OPERATOR, node_tree.UBUNTU), Machine(), driver_root=root, dev_root=root)

    assert found.problems == {}
    assert found.of("driver").message == f"580.159.04 under {root}, libraries and kernel module alike"
    assert "set --nvidia-cdi-hook-path=/usr/local/nvidia/toolkit/nvidia-cdi-hook" in found.of("toolkit").remedy


@pytest.mark.parametrize(
    ("layout", "root"),
    [(GPU_OPERATOR, "/run/nvidia/driver"), (GKE, "/home/kubernetes/bin/nvidia")],
    ids=["GPU Operator", "GKE"],
)
def test_driver_that_is_elsewhere_is_found_and_the_flag_named(
    tmp_path: Path, run: Examine, layout: Layout, root: str
) -> None:
    found = run(healthy(tmp_path, layout), Machine())

    assert found.problems == {"driver": f"none under /, but 580.159.04 under {root}"}
    assert f"--nvidia-driver-root={root}" in found.of("driver").remedy


def test_fresh_node_without_a_driver_is_told_to_install_one_and_nothing_else(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path).gpus().containerd().cgroups().kubelet()

    found = run(tree, Machine())

    assert set(found.problems) == {"driver"}
    assert "no NVIDIA driver under /" in found.text("driver")
    assert "install it: on EKS an AMI type with NVIDIA in its name" in found.of("driver").remedy
    assert [finding.check for finding in found if finding.check in ("device-nodes", "nvml")] == []


def test_fresh_node_whose_driver_has_made_no_nodes_yet_is_fine(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path).install().gpus().load_driver().containerd().cgroups().kubelet()

    found = run(tree, Machine())

    assert found.problems == {}
    assert found.of("device-nodes").status is Status.WARNING
    assert "the first claim has them made" in found.of("device-nodes").remedy


def test_node_with_the_device_plugin_at_work_is_a_problem_with_the_way_out(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path).device_plugin(count=8), Machine())

    assert set(found.problems) == {"publishers"}
    assert "(nvidia.com/gpu: 8; /var/lib/kubelet/device-plugins/nvidia-gpu.sock)" in found.of("publishers").message
    assert "nvidia.com/gpu.deploy.device-plugin=false" in found.of("publishers").remedy
    assert "drain the node first" in found.of("publishers").remedy


def test_node_without_gpus_has_nothing_to_offer_and_no_problem(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path).containerd().cgroups().kubelet()

    found = run(tree, Machine())

    assert found.problems == {}
    assert "no NVIDIA GPU on the PCI bus" in found.of("node").message
    assert found.of("driver").message == "none, and no GPU that would need one"


def test_node_that_simulates_gpus_is_not_told_to_install_a_driver(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path).containerd().cgroups().kubelet()

    found = run(tree, Machine(), simulated="h200x2")

    assert (found.problems, found.warnings) == ({}, {})
    assert "simulated (h200x2)" in found.of("node").message


def test_folder_of_another_machine_is_examined_without_asking_anybody(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), None)

    assert found.problems == {}
    assert set(found.warnings) == {"nvml"}
    assert "not the running machine's root" in found.of("nvml").message
    assert found.of("toolkit").facts["hookVersion"] is None


@pytest.mark.parametrize("layout", [AL2023, BOTTLEROCKET], ids=["al2023", "bottlerocket"])
def test_every_warning_and_problem_says_what_to_do(tmp_path: Path, run: Examine, layout: Layout) -> None:
    tree = healthy(tmp_path, layout).device_plugin().containerd("version = 2\n").cgroups(1)
    tree.path("/dev/nvidia0").unlink()
    tree.path("/sys/fs/cgroup/cgroup.controllers").unlink()
    tree.kernel.version("590.10.01")

    found = run(tree, None, makes_nodes=False)

    assert len(found.problems) >= 3
    assert [finding for finding in found if finding.status is not Status.OK and not finding.remedy] == []
