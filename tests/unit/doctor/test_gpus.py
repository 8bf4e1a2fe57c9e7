from pathlib import Path

import pytest

from dra_driver.cdi.hook_program import HOOKS, LIMITS
from dra_driver.cdi.tools import HookMode, Tools
from dra_driver.doctor.findings import Status
from dra_driver.doctor.gpus import version_in
from dra_driver.model.devices import Inventory
from dra_driver.model.errors import ControlError, ControlTimeout
from tests.builders import DRIVER, make_gpu, make_inventory, make_mig
from tests.node_tree import KUBELET, healthy
from tests.unit.doctor.conftest import Examine, Machine


def _inventory(**facts: object) -> Inventory:
    return Inventory(driver=DRIVER, gpus=(make_gpu(0, **facts),))


def test_nvml_that_does_not_answer_is_a_problem_with_its_reason(tmp_path: Path, run: Examine) -> None:
    machine = Machine()
    machine.silent = "NVML cannot be initialised: Unknown Error"

    found = run(healthy(tmp_path), machine)

    assert found.problems == {"nvml": "NVML cannot be initialised: Unknown Error"}
    assert [f.check for f in found if f.check in ("persistence", "memory-limits")] == []


def test_card_that_nvml_does_not_list_is_named_by_its_pci_address(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path).gpus(2), Machine())

    assert found.problems["nvml"].endswith("not listed, though on the PCI bus: 0000:02:00.0")
    assert "XID 79" in found.of("nvml").remedy


def test_node_whose_cards_are_all_in_mig_mode_without_devices_offers_nothing(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), Machine(_inventory(mig_enabled=True)))

    assert "nothing is on offer" in found.warnings["nvml"]


def test_mig_devices_are_counted(tmp_path: Path, run: Examine) -> None:
    parent = make_gpu(0, mig_enabled=True)
    inventory = Inventory(driver=DRIVER, gpus=(parent,), mig_devices=(make_mig(parent, 0), make_mig(parent, 1)))

    found = run(healthy(tmp_path), Machine(inventory))

    assert found.of("nvml").message == "driver 580.159.04, 1 x NVIDIA H200, 2 MIG devices"
    assert [f for f in found if f.check == "memory-limits"] == []


def test_cards_without_persistence_mode_are_named_with_what_they_forget(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), Machine(_inventory(persistence=False)))

    assert make_gpu(0).uuid in found.warnings["persistence"]
    assert "forgets compute mode and time slice" in found.warnings["persistence"]
    assert "nvidia-persistenced" in found.of("persistence").remedy


@pytest.mark.parametrize(("persistence", "status"), [(True, Status.OK), (None, Status.WARNING)])
def test_persistence_mode_is_told(tmp_path: Path, run: Examine, persistence: bool | None, status: Status) -> None:
    found = run(healthy(tmp_path), Machine(_inventory(persistence=persistence)))

    assert found.of("persistence").status is status


def test_driver_without_memory_limits_leaves_pods_unguarded_and_is_told(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), Machine()).of("memory-limits")

    assert (found.status, found.facts["supported"]) == (Status.WARNING, False)
    assert found.message.startswith("observed, not enforced: the NVIDIA driver or the GPU does not know them")
    assert "R615" in found.remedy


def able() -> Machine:
    """A machine that has all that enforced limits need."""
    machine = Machine(limits=None)
    machine.hooks = (*HOOKS, LIMITS)
    return machine


def test_memory_limits_are_enforced_with_driver_cgroups_and_hook(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), able()).of("memory-limits")

    assert (found.status, found.facts["supported"]) == (Status.OK, True)


def test_memory_limits_are_not_for_a_hook_program_without_them_whatever_its_version(
    tmp_path: Path, run: Examine
) -> None:
    machine = Machine(limits=None)
    machine.versions["nvidia-cdi-hook"] = "NVIDIA CDI Hook version 1.20.2\n"

    found = run(healthy(tmp_path), machine).of("memory-limits")

    assert found.facts["supported"] is False
    assert "/usr/bin/nvidia-cdi-hook has no hook apply-cuda-memory-limits" in found.message


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        pytest.param({"hooks": HookMode.NONE}, "--cdi-hooks=none", id="no hooks"),
        pytest.param({"hook_path": Path("/opt/nowhere")}, "there is no /opt/nowhere", id="path of nothing"),
    ],
)
def test_memory_limits_are_not_where_no_hook_finishes_containers(
    tmp_path: Path, run: Examine, tools: dict[str, object], reason: str
) -> None:
    changed = Tools(shared=Path(KUBELET, "plugins/gpu.nvidia.com"), own=(), **tools)  # type: ignore[arg-type]

    found = run(healthy(tmp_path), able(), tools=changed).of("memory-limits")

    assert found.facts["supported"] is False
    assert reason in found.message


def test_memory_limits_on_old_cgroups_are_none(tmp_path: Path, run: Examine) -> None:
    tree = healthy(tmp_path)
    tree.path("/sys/fs/cgroup/cgroup.controllers").unlink()
    tree.cgroups(1)

    found = run(tree, able())

    assert "cgroups are of version 1" in found.warnings["memory-limits"]
    assert "version 1" in found.warnings["cgroup"]


def test_memory_limits_that_may_not_be_read_are_not_enforced_with_the_reason(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), Machine(limits=ControlError("no permission"))).of("memory-limits")

    assert (found.status, found.facts["supported"]) == (Status.WARNING, False)
    assert "no permission" in found.message


def test_memory_limits_of_a_silent_driver_are_unknown(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), Machine(limits=ControlTimeout("no answer within 10 s"))).of("memory-limits")

    assert (found.status, found.facts["supported"]) == (Status.WARNING, None)
    assert "no answer" in found.message


def test_many_cards_are_told_in_one_line(tmp_path: Path, run: Examine) -> None:
    found = run(healthy(tmp_path), Machine(make_inventory(8)))

    assert found.of("nvml").message == "driver 580.159.04, 8 x NVIDIA H200"
    assert "and 4 more" in found.of("memory-limits").message


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVIDIA CDI Hook version 1.17.8\ncommit: f202b80a9b9d", (1, 17, 8)),
        ("NVIDIA Container Toolkit CLI version 1.20.0-rc.1\n", (1, 20, 0)),
        ("containerd github.com/containerd/containerd/v2 v2.2.4 f7d1c2", (2, 2, 4)),
        ("containerd containerd.io 1.7.27 05044ec0a9a7", (1, 7, 27)),
        ("", None),
        ("sh: not found", None),
    ],
)
def test_version_is_found_in_what_programs_print(text: str, version: tuple[int, ...] | None) -> None:
    assert version_in(text) == version
