"""Memory limits through prepare: what goes into the record and the CDI file, what is watched, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import Inventory, MemoryLimits
from dra_driver.model.errors import ApiUnreachable, BadConfig, DriverNotReady
from dra_driver.sharing.memory_limits import LimitTerms, ShareMemory
from tests.builders import claim_ref, make_inventory, resource_claim, result
from tests.unit.claims.conftest import Node

GIB = 1 << 30


def share(number: int, memory: str, device: str = "gpu-0") -> dict[str, Any]:
    return result(device, request=f"r{number}", shareID=f"share-{number}", consumedCapacity={"memory": memory})


def inventory(limits: MemoryLimits | None) -> Inventory:
    found = make_inventory(2)
    return replace(found, gpus=tuple(replace(gpu, memory_limits=limits) for gpu in found.gpus))


@pytest.fixture
def enforcing(node: Node) -> Node:
    node.inventory = inventory(MemoryLimits.ENFORCED)
    return node


def test_enforced_limit_is_recorded_and_in_the_file_and_not_watched(enforcing: Node) -> None:
    claim = enforcing.claim(1, [share(1, "20Gi")])
    (device,) = enforcing.lifecycle.prepare(claim)
    assert (device.memory_budget, device.memory_enforced) == (20 * GIB, True)
    assert enforcing.cdi.limits[claim.uid] == {"gpu-0": 20 * GIB}
    assert enforcing.watched == []


@pytest.mark.parametrize("limits", [MemoryLimits.OBSERVED, None])
def test_budget_that_is_not_enforced_is_recorded_and_watched(node: Node, limits: MemoryLimits | None) -> None:
    node.inventory = inventory(limits)
    claim = node.claim(1, [share(1, "20Gi")])
    (device,) = node.lifecycle.prepare(claim)
    assert (device.memory_budget, device.memory_enforced) == (20 * GIB, False)
    assert node.cdi.limits[claim.uid] == {}
    assert node.watched == ["woken"]


def test_claim_without_a_limit_is_not_watched(node: Node) -> None:
    node.prepare(node.claim(1, [share(1, "0")]))
    node.prepare(node.claim(2, [result("gpu-1")]))
    assert node.watched == []


def test_limit_of_a_prepared_claim_stays_what_it_was_when_the_node_changes(enforcing: Node) -> None:
    claim = enforcing.claim(1, [share(1, "20Gi")])
    first = enforcing.lifecycle.prepare(claim)
    enforcing.inventory = inventory(MemoryLimits.OBSERVED)
    enforcing.restart()
    assert enforcing.lifecycle.prepare(claim) == first
    assert enforcing.cdi.limits[claim.uid] == {"gpu-0": 20 * GIB}


def test_claim_with_different_limits_is_refused_and_leaves_nothing(enforcing: Node) -> None:
    claim = enforcing.claim(1, [share(1, "20Gi"), share(2, "30Gi", "gpu-1")])
    with pytest.raises(BadConfig, match=r"gpu-0 20480 MiB, gpu-1 30720 MiB"):
        enforcing.lifecycle.prepare(claim)
    assert enforcing.store.get(claim.uid) is None
    assert enforcing.cdi.files == {}


def test_claim_waits_until_it_is_known_what_an_even_part_is(enforcing: Node) -> None:
    def undecided(device: str) -> int:
        raise DriverNotReady("how the GPUs of this node are shared is not decided yet")

    enforcing.limit_terms = LimitTerms(ShareMemory.EVEN, undecided)
    enforcing.restart()
    shares = result(shareID="share-1", consumedCapacity={"shares": "1"})
    with pytest.raises(DriverNotReady):
        enforcing.lifecycle.prepare(enforcing.claim(1, [shares]))
    enforcing.prepare(enforcing.claim(2, [share(2, "20Gi")]))


# A class that insists.

ENFORCED = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].memoryLimits == "enforced"'}}
OTHER = {"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}


@pytest.fixture
def observing(node: Node) -> Node:
    """Its limits are observed; there is a class that insists and one that does not."""
    node.inventory = inventory(MemoryLimits.OBSERVED)
    node.classes.specs = {"limited": {"selectors": [OTHER, ENFORCED]}, "any": {"selectors": [OTHER]}}
    return node


def of_class(node: Node, number: int, name: str, *results: dict[str, Any]) -> ClaimRef:
    """A claim whose request is of a class."""
    claim = resource_claim(claim_ref(number), list(results))
    claim["spec"] = {"devices": {"requests": [{"name": f"r{number}", "exactly": {"deviceClassName": name}}]}}
    return node.api.add(claim)


def test_claim_of_a_class_that_insists_is_refused_where_limits_are_observed(observing: Node) -> None:
    with pytest.raises(BadConfig, match="demands memoryLimits == enforced"):
        observing.lifecycle.prepare(of_class(observing, 1, "limited", share(1, "20Gi")))
    observing.prepare(of_class(observing, 2, "any", share(2, "20Gi")))


def test_class_that_is_gone_insists_on_nothing(observing: Node) -> None:
    observing.prepare(of_class(observing, 1, "deleted", share(1, "20Gi")))


def test_claim_waits_while_its_class_cannot_be_read(observing: Node) -> None:
    observing.classes.error = ApiUnreachable("connection refused")
    claim = of_class(observing, 1, "any", share(1, "20Gi"))
    with pytest.raises(ApiUnreachable):
        observing.lifecycle.prepare(claim)
    assert observing.store.get(claim.uid) is None


def test_class_is_not_read_where_limits_are_enforced_or_the_device_is_not_shared(observing: Node) -> None:
    observing.prepare(of_class(observing, 1, "limited", result("gpu-1", request="r1")))
    observing.inventory = inventory(MemoryLimits.ENFORCED)
    observing.prepare(of_class(observing, 2, "limited", share(2, "20Gi")))
    assert observing.classes.reads == []
