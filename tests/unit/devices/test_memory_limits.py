"""What becomes of memory limits on each GPU: driver, cgroups and hook program must all have them."""

from pathlib import Path

import pytest

from dra_driver.devices.memory_limits import CONTROLLERS, LimitedSource
from dra_driver.model.devices import GpuProcess, Inventory, MemoryLimits
from dra_driver.model.errors import ControlError, ControlGone, ControlTimeout, ControlUnsupported
from tests.builders import DRIVER, gpu_uuid, make_gpu, make_inventory, make_mig

ENFORCED, OBSERVED = MemoryLimits.ENFORCED, MemoryLimits.OBSERVED


class Node:
    """A node on which all is there, until a test takes it away."""

    def __init__(self, directory: Path) -> None:
        self.inventory = make_inventory(2)
        self.errors: dict[str, ControlError] = {}
        self.current_epoch = "epoch-1"
        self.hook = ""
        self.asked: list[str] = []
        self.asked_hook: list[str] = []
        self.controllers = directory / CONTROLLERS
        self.controllers.parent.mkdir(parents=True)
        self.controllers.touch()
        self.source = LimitedSource(self, self, directory, self.why_no_hook)

    def scan(self) -> Inventory:
        return self.inventory

    def on_bus(self) -> tuple[str, ...]:
        return ("0000:01:00.0",)

    def close(self) -> None:
        self.current_epoch = "closed"

    def check_memory_limits(self, gpu_uuid: str) -> None:
        self.asked.append(gpu_uuid)
        if gpu_uuid in self.errors:
            raise self.errors[gpu_uuid]

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        raise AssertionError("not asked for here")

    def epoch(self) -> str:
        return self.current_epoch

    def why_no_hook(self, driver_version: str) -> str:
        self.asked_hook.append(driver_version)
        return self.hook

    def look(self) -> list[MemoryLimits | None]:
        return [gpu.memory_limits for gpu in self.source.scan().gpus]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_limits_are_enforced_where_driver_cgroups_and_hook_have_them(node: Node) -> None:
    assert node.look() == [ENFORCED, ENFORCED]
    assert set(node.asked_hook) == {DRIVER.driver_version}


@pytest.mark.parametrize("error", [ControlUnsupported("not supported"), ControlError("no permission")])
def test_gpu_whose_driver_does_not_answer_for_it_is_observed(
    node: Node, error: ControlError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.errors[gpu_uuid(1)] = error
    assert node.look() == [ENFORCED, OBSERVED]
    assert f"memory limits on gpu-1 ({gpu_uuid(1)}): observed: the NVIDIA driver" in caplog.text
    assert str(error) in caplog.text


def test_limits_are_observed_on_old_cgroups(node: Node) -> None:
    node.controllers.unlink()
    assert node.look() == [OBSERVED, OBSERVED]


def test_limits_are_observed_without_a_hook_until_there_is_one(node: Node) -> None:
    node.hook = "there is none"
    assert node.look() == [OBSERVED, OBSERVED]
    node.hook = ""
    assert node.look() == [ENFORCED, ENFORCED]


def test_driver_that_can_is_asked_once_for_each_session(node: Node) -> None:
    node.look()
    node.look()
    assert node.asked == [gpu_uuid(0), gpu_uuid(1)]
    node.errors[gpu_uuid(0)] = ControlUnsupported("an older driver was loaded")
    assert node.look() == [ENFORCED, ENFORCED]
    node.current_epoch = "epoch-2"
    assert node.look() == [OBSERVED, ENFORCED]


@pytest.mark.parametrize(
    "error", [ControlTimeout("no answer"), ControlGone("GPU lost"), ControlError("unknown error")], ids=repr
)
def test_driver_that_did_not_say_yes_is_asked_again(node: Node, error: ControlError) -> None:
    node.errors[gpu_uuid(0)] = error
    assert node.look() == [OBSERVED, ENFORCED]
    node.errors.clear()
    assert node.look() == [ENFORCED, ENFORCED]


def test_hook_is_not_looked_for_where_the_driver_cannot(node: Node) -> None:
    node.errors = {gpu_uuid(number): ControlUnsupported("not supported") for number in (0, 1)}
    node.look()
    assert node.asked_hook == []


def test_why_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node.hook = "there is none"
    for _ in range(3):
        node.look()
    assert caplog.text.count("memory limits on gpu-0") == 1


def test_gpu_in_mig_mode_and_its_devices_say_nothing_of_limits(node: Node) -> None:
    card = make_gpu(0, mig_enabled=True)
    node.inventory = Inventory(driver=DRIVER, gpus=(card,), mig_devices=(make_mig(card),))
    assert node.source.scan() == node.inventory
    assert node.asked == []


def test_the_rest_is_the_sources_own(node: Node) -> None:
    assert node.source.on_bus() == ("0000:01:00.0",)
    node.source.close()
    assert node.current_epoch == "closed"
