"""A device plugin on the node is noticed by what the kubelet counts, told once, and is in the way until it has left."""

import pytest

from dra_driver.model.errors import ApiError
from dra_driver.slices.other_publisher import CONDITION, EVENT, OtherPublisher
from tests.fakes.cluster import FakeEvents, FakeReadiness


class Node:
    """What the kubelet counts, and what came of it."""

    def __init__(self, *, refuse: bool = True) -> None:
        self.allocatable: dict[str, str] | ApiError = {"cpu": "8"}
        self.reads, self.now = 0, 0.0
        self.readiness, self.events = FakeReadiness(), FakeEvents()
        self._looked_at = OtherPublisher(self._read, self.readiness, self.events, refuse=refuse, clock=lambda: self.now)

    def _read(self) -> dict[str, str]:
        self.reads += 1
        if isinstance(self.allocatable, ApiError):
            raise self.allocatable
        return self.allocatable

    def look(self) -> bool:
        """Half a minute later."""
        self.now += 30
        return self._looked_at.in_the_way()


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"])
def test_device_plugin_is_in_the_way_until_it_has_left(resource: str) -> None:
    node = Node()
    assert not node.look()
    assert node.readiness.conditions == {}
    node.allocatable = {resource: "8"}
    assert node.look()
    assert node.look()
    ok, message = node.readiness.conditions[CONDITION]
    assert not ok
    assert f"a device plugin offers GPUs of this node ({resource}: 8): nothing is offered" in message
    assert node.events.reasons() == [EVENT]
    node.allocatable = {resource: "0"}
    assert not node.look()
    assert node.readiness.conditions[CONDITION][0]


def test_plugin_that_only_warns_is_told_and_offers_on() -> None:
    node = Node(refuse=False)
    node.allocatable = {"nvidia.com/gpu": "1"}
    assert not node.look()
    ok, message = node.readiness.conditions[CONDITION]
    assert ok
    assert "GPUs may be used twice" in message
    assert node.events.reasons() == [EVENT]


def test_what_cannot_be_read_stays_as_it_was() -> None:
    node = Node()
    node.allocatable = ApiError("away")
    assert not node.look()
    node.allocatable = {"nvidia.com/gpu": "1"}
    assert node.look()
    node.allocatable = ApiError("away")
    assert node.look()


def test_api_server_is_asked_each_half_minute_at_most() -> None:
    node = Node()
    node.look()
    node.now -= 1
    node.look()
    assert node.reads == 1


def test_resources_of_others_are_no_matter() -> None:
    node = Node()
    node.allocatable = {"amd.com/gpu": "8", "nvidia.com/hostdev": "4"}
    assert not node.look()
