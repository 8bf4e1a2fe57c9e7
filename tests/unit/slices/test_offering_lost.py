"""What people are told of devices that live claims hold and that are gone."""

from dataclasses import replace
from typing import Final

from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.slices.offering import EVENT_LOST
from tests.builders import NODE, claim_ref
from tests.unit.slices.test_offering import SEVEN, Node, node, shown

__all__ = ["node"]

FIRST: Final = SEVEN.mig_devices[0]
WITHOUT: Final = replace(SEVEN, mig_devices=SEVEN.mig_devices[1:])
PREPARED: Final = PreparedDevice(
    requests=("mig",), pool=NODE, device=FIRST.name, uuid=FIRST.uuid, gpu_uuid=FIRST.physical.uuid, cdi_ids=()
)
RECORD: Final = ClaimRecord(
    claim=claim_ref(), state=ClaimState.COMPLETED, plan=Plan(devices=(PREPARED,)), prepared_at=0.0
)


def told(node: Node) -> list[str]:
    return [text for _, reason, text in node.events.written if reason == EVENT_LOST]


def test_mig_device_that_is_destroyed_under_a_claim_is_an_event_once_each_time(node: Node) -> None:
    node.records = [RECORD]
    shown(node, SEVEN)
    assert told(node) == []
    for inventory in (WITHOUT, SEVEN, WITHOUT):
        node.offering.show(inventory)
        node.offer()
    first, second = told(node)
    assert first == second
    assert f"{FIRST.uuid}) is not on this node any more, and live claims (team-a/claim-1)" in first


def test_mig_device_that_nobody_held_may_go_without_an_event(node: Node) -> None:
    shown(node, SEVEN)
    shown(node, WITHOUT)
    assert node.events.written == []


def test_device_that_is_not_offered_for_its_sharing_is_not_lost(node: Node) -> None:
    node.records, node.default = [RECORD], "7"  # 49 clients on the card
    assert FIRST.name not in shown(node, SEVEN).offer()
    assert told(node) == []
