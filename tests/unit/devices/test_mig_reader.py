"""MIG devices that are made and destroyed while NVML is asked, in one session of it."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

import pynvml
import pytest

from dra_driver.devices.nvml import NvmlSource
from dra_driver.devices.simulated import SimulatedNode
from tests.fakes.nvml import FakeMig, FakeNvml, FakeProfile

SMALL: Final = [f"gpu-0-mig-1g5gb-19-{start}" for start in range(7)]


class Node:
    """One A100, cut into seven; the driver looks at it."""

    def __init__(self, folder: Path) -> None:
        everything = SimulatedNode.load("a100x8-mig").source().scan()
        first = everything.gpus[0]
        migs = tuple(mig for mig in everything.mig_devices if mig.parent.uuid == first.uuid)
        self.api = FakeNvml.of(replace(everything, gpus=(first,), mig_devices=migs))
        (self.card,) = self.api.cards
        self.card.profiles.append(
            FakeProfile(number=1, id=14, slices=2, memory_mib=9856, multiprocessors=28, name="MIG 2g.10gb")
        )
        self.source = NvmlSource(sysfs=folder / "sys", proc=folder / "proc", api=self.api)

    def names(self) -> list[str]:
        return list(self.source.scan().devices)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    assert made.names() == SMALL
    return made


def test_devices_that_were_made_and_destroyed_are_in_the_next_scan_of_the_same_session(node: Node) -> None:
    old, session = node.card.migs, node.api.calls["nvmlInitWithFlags"]
    pair = replace(old[0].device, uuid="MIG-new", profile="2g.10gb", profile_id=14, placement_size=2, gpu_instance_id=3)
    node.card.migs = [FakeMig(0, pair, 2, 2), *old[4:]]
    found = node.source.scan()
    assert list(found.devices) == ["gpu-0-mig-2g10gb-14-0", *SMALL[4:]]
    new = found.devices["gpu-0-mig-2g10gb-14-0"]
    assert (new.uuid, new.memory_bytes, new.physical.uuid) == ("MIG-new", 9856 * 1024**2, node.card.gpu.uuid)
    assert node.api.calls["nvmlInitWithFlags"] == session


def test_device_that_was_made_anew_in_its_place_has_its_name_and_another_uuid(node: Node) -> None:
    first = node.card.migs[0]
    first.device = replace(first.device, uuid="MIG-new")
    found = node.source.scan()
    assert list(found.devices) == SMALL
    assert found.devices[SMALL[0]].uuid == "MIG-new"


def test_card_is_offered_by_nothing_while_it_has_no_mig_device(node: Node) -> None:
    node.card.migs = []
    found = node.source.scan()
    assert list(found.devices) == []
    assert [gpu.mig_enabled for gpu in found.gpus] == [True]


def test_device_that_is_destroyed_during_the_scan_costs_only_itself(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def destroyed(mig: FakeMig) -> int:
        if mig is node.card.migs[2]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return mig.device.gpu_instance_id

    node.api.nvmlDeviceGetGpuInstanceId = destroyed
    with caplog.at_level(logging.ERROR):
        assert node.names() == [*SMALL[:2], *SMALL[3:]]
    assert "MIG device 2" in caplog.text
