"""Doctor and driver look for NVIDIA's MPS programs alike, and only where claims may ask for MPS."""

from pathlib import Path

import pytest

from dra_driver.doctor.findings import Status
from dra_driver.doctor.mps import check_mps
from dra_driver.model.errors import MpsError
from dra_driver.mps.tool import MpsTool
from tests.driver_tree import AL2023, GPU_OPERATOR, Layout, driver_tree
from tests.node_tree import NodeTree
from tests.unit.doctor.conftest import Examine, Machine


@pytest.mark.parametrize("layout", [AL2023, GPU_OPERATOR], ids=["AL2023", "GPU Operator"])
def test_programs_that_are_there_are_named_as_the_host_has_them(tmp_path: Path, layout: Layout) -> None:
    tree = driver_tree(tmp_path, layout)
    (found,) = check_mps(tree.roots)
    assert found.status is Status.OK
    assert found.facts["control"] == str(
        tree.roots.on_host(MpsTool(tree.roots.container_driver_root).programs().control)
    )


@pytest.mark.parametrize("program", ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"])
def test_program_that_is_missing_is_a_problem_in_the_words_of_a_prepare(tmp_path: Path, program: str) -> None:
    tree = driver_tree(tmp_path)
    for path in tree.root.rglob(program):
        path.unlink()
    with pytest.raises(MpsError) as at_prepare:
        MpsTool(tree.roots.container_driver_root).programs()
    (found,) = check_mps(tree.roots)
    assert found.status is Status.PROBLEM
    assert str(at_prepare.value) in found.message
    assert "nvidia-cuda-mps-server" in found.remedy


def test_nothing_is_said_where_the_gate_is_off(tmp_path: Path, run: Examine) -> None:
    tree = NodeTree(tmp_path)
    tree.driver.install()
    assert run(tree, Machine(), mps=True).of("mps").status is Status.OK
    assert not [finding for finding in run(tree, Machine()) if finding.check == "mps"]


def test_nothing_is_said_where_there_is_no_driver(tmp_path: Path, run: Examine) -> None:
    assert not [finding for finding in run(NodeTree(tmp_path), Machine(), mps=True) if finding.check == "mps"]
