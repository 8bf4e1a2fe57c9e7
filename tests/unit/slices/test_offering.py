"""What is offered as profile, inventory, labels and live claims change, and what people are told of it."""

import logging
from dataclasses import dataclass, field, replace

import pytest

from dra_driver.model.devices import Inventory
from dra_driver.model.errors import ApiError, SettingError, StateError
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.settings.profile_file import parse_profile
from dra_driver.sharing.profile import Profile, Terms
from dra_driver.sharing.shares import ConsumableShares
from dra_driver.slices.build import PoolSlice
from dra_driver.slices.offering import EVENT_REFUSED, EVENT_WITHHELD, Offering, Telling
from dra_driver.slices.profiles import Profiles
from tests.builders import NODE, claim_ref, gpu_uuid, make_gpu, make_inventory, make_mig
from tests.fakes.cluster import FakeEvents, FakeReadiness

PARENT = make_gpu(0, mig_enabled=True)
SEVEN = Inventory(
    driver=make_inventory().driver,
    gpus=(PARENT, make_gpu(1)),
    mig_devices=tuple(make_mig(PARENT, start) for start in range(7)),
)


def rules(*lines: str) -> Profile:
    return parse_profile("rules:\n" + "".join(f"- {{{line}}}\n" for line in lines), 48)


WHOLE = rules("match: {minor: 0}, shares: disabled")
TEN = rules("match: {minor: 0}, shares: 10")
FOUR = rules("match: {minor: 0}, shares: 4")
AMBIGUOUS = rules("match: {minor: 0}, shares: 4", "match: {productName: NVIDIA H200}, shares: 4")
BY_LABEL = rules("match: {nodeLabels: {pool: dev}}, shares: 4")


@dataclass
class Node:
    """What an offer depends on, and what came of it."""

    profile: Profile | SettingError = field(default_factory=Profile)
    labels: dict[str, str] | ApiError = field(default_factory=dict)
    records: list[ClaimRecord] | StateError = field(default_factory=list)
    dropped: bool = False
    default: str = "disabled"
    now: float = 0.0
    label_reads: int = 0
    published: list[tuple[PoolSlice, ...]] = field(default_factory=list)
    readiness: FakeReadiness = field(default_factory=FakeReadiness)
    events: FakeEvents = field(default_factory=FakeEvents)

    def __post_init__(self) -> None:
        self._offering: Offering | None = None

    @property
    def offering(self) -> Offering:
        if self._offering is None:
            terms = Terms(default=ConsumableShares.parse(self.default))
            self._offering = Offering(
                NODE,
                Profiles(terms, self._read, self._labels, lambda: self.now),
                self._live,
                lambda slices: self.published.append(tuple(slices)),
                lambda: self.dropped,
                Telling(self.readiness, self.events),
            )
        return self._offering

    def _read(self) -> Profile:
        if isinstance(self.profile, SettingError):
            raise self.profile
        return self.profile

    def _labels(self) -> dict[str, str]:
        self.label_reads += 1
        if isinstance(self.labels, ApiError):
            raise self.labels
        return self.labels

    def _live(self) -> list[ClaimRecord]:
        if isinstance(self.records, StateError):
            raise self.records
        return self.records

    def offer(self) -> dict[str, str]:
        """Device -> its shares, ``whole`` or ``shared``, after another look."""
        self.offering.refresh()
        devices = [device for part in self.published[-1] for device in part.devices]
        return {device["name"]: _words(device) for device in devices}

    @property
    def condition(self) -> tuple[bool, str]:
        return self.readiness.conditions["sharing"]


def _words(device: dict[str, object]) -> str:
    if not device.get("allowMultipleAllocations"):
        return "whole"
    capacity = device["capacity"]
    assert isinstance(capacity, dict)
    return str(capacity["shares"]["value"]) if "shares" in capacity else "shared"


def hold(number: int, minor: int = 0, share: bool = True, admin: bool = False) -> ClaimRecord:
    device = PreparedDevice(
        requests=("gpu",),
        pool=NODE,
        device=f"gpu-{minor}",
        uuid=gpu_uuid(minor),
        gpu_uuid=gpu_uuid(minor),
        cdi_ids=(),
        share_id=f"share-{number}" if share else None,
        consumed_capacity=(("shares", "1"),) if share else (),
        admin_access=admin,
    )
    return ClaimRecord(
        claim=claim_ref(number), state=ClaimState.COMPLETED, plan=Plan(devices=(device,)), prepared_at=0.0
    )


@pytest.fixture
def node() -> Node:
    return Node()


def shown(node: Node, inventory: Inventory | None = None) -> Node:
    node.offering.show(inventory or make_inventory())
    return node


def test_nothing_is_published_before_there_is_an_inventory(node: Node) -> None:
    node.offering.refresh()
    assert node.published == []


def test_node_on_which_nothing_is_shared_has_no_condition_of_it(node: Node) -> None:
    assert shown(node).offer() == {"gpu-0": "whole", "gpu-1": "whole"}
    assert node.readiness.conditions == {}


def test_node_without_driver_offers_one_empty_slice(node: Node) -> None:
    shown(node).offering.show(None)
    assert node.published[-1] == (PoolSlice(),)


def test_default_is_for_devices_without_a_rule(node: Node) -> None:
    node.default, node.profile = "memory", TEN
    assert shown(node).offer() == {"gpu-0": "10", "gpu-1": "shared"}
    assert node.condition == (True, "10 shares: gpu-0; memory shares: gpu-1")


def test_changed_profile_is_published_at_the_next_look_and_an_unchanged_one_is_not(node: Node) -> None:
    shown(node)
    node.profile = TEN
    assert node.offer() == {"gpu-0": "10", "gpu-1": "whole"}
    times = len(node.published)
    for _ in range(3):
        node.offer()
    assert len(node.published) == times


@pytest.mark.parametrize("wrong", [SettingError("--sharing-profile f: line 3: wrong"), AMBIGUOUS], ids=["file", "node"])
def test_profile_that_cannot_be_followed_leaves_the_last_one_and_is_told_once(
    node: Node, wrong: Profile | SettingError, caplog: pytest.LogCaptureFixture
) -> None:
    node.profile = TEN
    shown(node)
    node.profile = wrong
    for _ in range(3):
        assert node.offer() == {"gpu-0": "10", "gpu-1": "whole"}
    holds, message = node.condition
    assert (holds, message.endswith("; the profile before this one counts on")) == (False, True)
    assert node.events.reasons() == [EVENT_REFUSED]
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    node.profile = FOUR
    assert node.offer() == {"gpu-0": "4", "gpu-1": "whole"}
    assert node.condition[0]


def test_profile_that_is_wrong_for_this_node_at_the_start_withholds_the_devices_concerned(node: Node) -> None:
    node.profile = rules("match: {minor: 0}, shares: 4", "match: {minor: 0}, shares: 2")
    assert shown(node).offer() == {"gpu-1": "whole"}
    holds, message = node.condition
    assert not holds
    assert [
        word for word in ("rules[0] (line 2)", "rules[1] (line 3)", "not offered: gpu-0") if word not in message
    ] == []


def test_wrong_file_after_such_a_start_changes_nothing_and_both_are_told(node: Node) -> None:
    node.profile = AMBIGUOUS
    shown(node)
    node.profile = SettingError("--sharing-profile f: line 3: wrong")
    assert node.offer() == {"gpu-1": "4"}
    assert "line 3: wrong" in node.condition[1]
    assert "not offered: gpu-0" in node.condition[1]


def test_shares_over_the_ceiling_withhold_that_gpu_only_and_the_arithmetic_is_an_event(node: Node) -> None:
    node.default = "7"
    assert shown(node, SEVEN).offer() == {"gpu-1": "7"}
    ((_, reason, text),) = node.events.written
    assert reason == EVENT_REFUSED
    assert "7 MIG devices x 7 shares = 49 clients" in text


def test_partitions_made_later_are_withheld_when_they_go_over_the_ceiling(node: Node) -> None:
    node.default = "7"
    few = replace(SEVEN, mig_devices=SEVEN.mig_devices[:6])
    assert len(shown(node, few).offer()) == 7
    node.offering.show(SEVEN)
    assert node.offer() == {"gpu-1": "7"}
    node.offering.show(few)
    assert len(node.offer()) == 7
    assert node.condition[0]


def test_profile_that_was_read_at_the_start_counts_when_its_file_is_gone_before_there_are_gpus(node: Node) -> None:
    node.default, node.profile = "4", WHOLE
    node.offering.show(None)
    node.profile = SettingError("--sharing-profile f cannot be read: No such file")
    assert shown(node).offer() == {"gpu-0": "whole", "gpu-1": "4"}
    assert "cannot be read" in node.condition[1]


def test_profile_that_was_followed_for_no_device_is_none_to_go_back_to(node: Node) -> None:
    node.profile = FOUR
    shown(node, Inventory(driver=make_inventory().driver))
    node.profile = AMBIGUOUS
    assert shown(node).offer() == {"gpu-1": "4"}
    assert "not offered: gpu-0" in node.condition[1]


def test_rule_that_means_no_device_here_is_told_once_and_is_no_fault(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node.profile = rules("match: {minor: 0}, shares: 4", "match: {productName: Tesla T4}, shares: 4")
    shown(node)
    node.offer()
    told = [r.getMessage() for r in caplog.records if "means no device" in r.getMessage()]
    assert told == ["sharing profile: rules[1] (line 3) means no device of this node"]
    assert node.condition[0]


# Labels.


def test_labels_are_not_read_where_no_rule_asks_for_them(node: Node) -> None:
    node.profile = TEN
    shown(node).offer()
    assert node.label_reads == 0


def test_labels_are_read_again_after_a_minute(node: Node) -> None:
    node.profile, node.labels = BY_LABEL, {"pool": "prod"}
    assert shown(node).offer() == {"gpu-0": "whole", "gpu-1": "whole"}
    node.labels = {"pool": "dev"}
    node.now = 59.0
    assert node.offer()["gpu-0"] == "whole"
    node.now = 60.0
    assert node.offer() == {"gpu-0": "4", "gpu-1": "4"}
    assert node.label_reads == 2


def test_nothing_is_offered_until_labels_that_are_asked_for_are_known(node: Node) -> None:
    node.profile, node.labels = BY_LABEL, ApiError("no route to host")
    shown(node)
    assert node.published == []
    assert node.condition[0] is False
    assert "no route to host" in node.condition[1]
    node.labels = {"pool": "dev"}
    assert node.offer() == {"gpu-0": "4", "gpu-1": "4"}
    assert node.condition[0]


def test_last_known_labels_count_while_they_cannot_be_read(node: Node) -> None:
    node.profile, node.labels = BY_LABEL, {"pool": "dev"}
    shown(node)
    node.labels, node.now = ApiError("no route to host"), 100.0
    assert node.offer() == {"gpu-0": "4", "gpu-1": "4"}
    assert node.condition[0]


# Live claims.


@pytest.mark.parametrize(
    ("before", "share", "after"), [(WHOLE, False, TEN), (TEN, True, WHOLE)], ids=["whole to shared", "shared to whole"]
)
def test_device_that_claims_hold_in_the_other_way_is_withheld_until_they_have_left(
    node: Node, before: Profile, share: bool, after: Profile
) -> None:
    node.profile = before
    shown(node)
    node.records = [hold(1, share=share)]
    offered = node.offer()
    node.profile = after
    for _ in range(3):
        assert node.offer() == {"gpu-1": "whole"}
    assert node.events.reasons() == [EVENT_WITHHELD]
    assert node.condition[0]
    assert node.condition[1].endswith("; not offered until live claims have left: gpu-0")
    node.records = []
    assert node.offer() == offered | {"gpu-0": "10" if after is TEN else "whole"}


def test_claims_that_leave_one_by_one_are_told_of_once(node: Node) -> None:
    node.records = [hold(1), hold(2)]
    shown(node)
    node.records = [hold(2)]
    node.offer()
    assert node.events.reasons() == [EVENT_WITHHELD]


def test_fewer_shares_than_are_in_use_are_published_at_once_and_told_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.profile, node.records = TEN, [hold(number) for number in range(8)]
    shown(node)
    node.profile = FOUR
    for _ in range(3):
        assert node.offer() == {"gpu-0": "4", "gpu-1": "whole"}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "has 4 shares now and live claims hold 8" in told[0]


def test_monitor_with_admin_access_holds_nothing_back(node: Node) -> None:
    node.profile, node.records = TEN, [hold(1, share=False, admin=True)]
    assert shown(node).offer()["gpu-0"] == "10"


def test_claims_are_taken_as_last_known_while_the_state_cannot_be_read(node: Node) -> None:
    node.profile, node.records = TEN, [hold(1, share=False)]
    assert "gpu-0" not in shown(node).offer()
    node.records = StateError("locked")
    assert "gpu-0" not in node.offer()


def test_nothing_is_offered_before_it_is_known_what_live_claims_hold(node: Node) -> None:
    node.profile, node.records = TEN, StateError("database is locked")
    shown(node)
    assert node.published == []
    assert node.condition == (False, "what live claims hold is not known: database is locked")
    node.records = [hold(1, share=False)]
    assert node.offer() == {"gpu-1": "whole"}


def test_device_that_waits_for_shares_to_leave_is_told_in_readiness_where_nothing_is_shared(node: Node) -> None:
    node.records = [hold(1)]
    assert shown(node).offer() == {"gpu-1": "whole"}
    assert node.condition == (True, "whole: gpu-0, gpu-1; not offered until live claims have left: gpu-0")


def test_device_is_not_withheld_where_the_api_server_knows_no_shares(node: Node) -> None:
    node.profile, node.dropped, node.records = TEN, True, [hold(1, share=False)]
    assert shown(node).offer()["gpu-0"] == "10"
