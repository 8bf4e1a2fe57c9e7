import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.ports import Json
from dra_driver.sharing.shares import ConsumableShares
from dra_driver.slices.build import PoolSlice, build_slices
from dra_driver.slices.pacing import Timing
from dra_driver.slices.publisher import Role, SlicePublisher
from tests.fakes.cluster import FakeEvents, FakeNode, FakeReadiness, FakeSliceStore
from tests.unit.slices.devices import DRIVER, gpu

QUICK = Timing(
    debounce_s=0.01,
    retry_first_s=0.01,
    retry_most_s=0.02,
    away_most_s=0.02,
    contested_most_s=0.02,
    hold_poll_s=0.01,
    watch_s=5.0,
    rewatch_s=0.01,
)
DENIED = ApiError('POST /x: 403: User "plugin" cannot create resource "resourceslices"', 403)


def pool(*minors: int) -> tuple[PoolSlice, ...]:
    return build_slices([gpu(minor) for minor in minors], DRIVER, "node-1")


@dataclass
class Node:
    """A cluster in memory and the publishers that work on it."""

    store: FakeSliceStore = field(default_factory=FakeSliceStore)
    node: FakeNode = field(default_factory=FakeNode)
    events: FakeEvents = field(default_factory=FakeEvents)
    readiness: FakeReadiness = field(default_factory=FakeReadiness)
    running: list[SlicePublisher] = field(default_factory=list)

    def start(self, timing: Timing = QUICK, role: Callable[[], Role] = lambda: Role.WRITES) -> SlicePublisher:
        publisher = SlicePublisher(
            self.store, self.node, "node-1", self.events, self.readiness, role=role, timing=timing
        )
        publisher.start()
        self.running.append(publisher)
        return publisher

    def published(self, *minors: int) -> SlicePublisher:
        """A publisher that has published these GPUs and watches."""
        publisher = self.start()
        publisher.publish(pool(*minors))
        assert publisher.wait(5.0)
        until(lambda: "watch" in self.store.calls)
        return publisher

    def names(self) -> list[str]:
        """The devices that the API server knows."""
        return [device["name"] for item in self.store.objects for device in item["spec"].get("devices", [])]

    def ready(self) -> tuple[bool, str]:
        return self.readiness.conditions["slices"]


@pytest.fixture
def node() -> Iterator[Node]:
    cluster = Node()
    yield cluster
    cluster.store.close()
    for publisher in cluster.running:
        publisher.stop()


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds; fail when it does not within 5 s."""
    deadline = time.monotonic() + 5.0
    while not holds():
        assert time.monotonic() < deadline, "did not come about"
        threading.Event().wait(0.005)


def test_devices_are_published(node: Node) -> None:
    node.published(0, 1)
    assert node.names() == ["gpu-0", "gpu-1"]


def test_published_slice_is_owned_by_the_node(node: Node) -> None:
    node.published(0)
    (owner,) = node.store.objects[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Node", "node-1", "node-uid-1", True)


def test_publishing_is_a_list_and_a_create_before_any_watch(node: Node) -> None:
    node.published(0)
    assert node.store.calls[:3] == ["list", "create", "watch"]


def test_readiness_tells_before_and_after(node: Node) -> None:
    publisher = node.start()
    assert node.ready() == (False, "ResourceSlices are not published yet")
    publisher.publish(pool(0))
    assert publisher.wait(5.0)
    until(lambda: node.ready() == (True, "1 devices in 1 slices, generation 1"))


def test_empty_node_publishes_an_empty_slice(node: Node) -> None:
    node.published()
    assert [item["spec"].get("devices") for item in node.store.objects] == [None]


def test_gpus_that_appear_later_are_published_in_the_same_slice(node: Node) -> None:
    publisher = node.published()
    (empty,) = node.store.objects
    publisher.publish(pool(0, 1))
    assert publisher.wait(5.0)
    assert node.names() == ["gpu-0", "gpu-1"]
    assert [item["metadata"]["uid"] for item in node.store.objects] == [empty["metadata"]["uid"]]


def test_restart_with_unchanged_devices_writes_nothing(node: Node) -> None:
    node.published(0, 1).stop()
    before = node.store.objects
    second = node.start()
    second.publish(pool(0, 1))
    assert second.wait(5.0)
    assert node.store.objects == before
    assert list(node.store.writes) == ["create"]


def test_stop_leaves_the_slices(node: Node) -> None:
    node.published(0).stop()
    assert node.names() == ["gpu-0"]


def test_stopped_publisher_repairs_nothing(node: Node) -> None:
    node.published(0).stop()
    node.store.remove_all()
    threading.Event().wait(0.05)
    assert node.names() == []


def test_publishing_the_same_again_asks_nothing_of_the_api_server(node: Node) -> None:
    publisher = node.published(0)
    before = list(node.store.calls)
    publisher.publish(pool(0))
    assert publisher.wait(0.05)
    assert node.store.calls == before


def test_deleted_slices_come_back(node: Node) -> None:
    node.published(0)
    node.store.remove_all()
    until(lambda: node.names() == ["gpu-0"])


def test_slice_changed_by_hand_is_restored(node: Node) -> None:
    node.published(0)
    (item,) = node.store.objects
    item["spec"]["devices"] = []
    node.store.put(item)
    until(lambda: node.names() == ["gpu-0"])


def test_foreign_slice_of_the_pool_is_removed(node: Node) -> None:
    node.published(0)
    (item,) = node.store.objects
    item["metadata"] |= {"name": "00001-gpu.nvidia.com-node-1-other", "uid": "other"}
    node.store.put(item)
    until(lambda: len(node.store.objects) == 1)


def test_own_writes_do_not_cause_another_look(node: Node) -> None:
    publisher = node.published(0)
    publisher.publish(pool(0, 1))
    assert publisher.wait(5.0)
    threading.Event().wait(0.05)
    assert node.store.calls.count("list") == 2


def test_slices_of_a_node_made_anew_get_its_uid(node: Node) -> None:
    node.published(0)
    node.node.value = "node-uid-2"
    node.store.remove_all()
    until(lambda: node.names() == ["gpu-0"])
    assert node.store.objects[0]["metadata"]["ownerReferences"][0]["uid"] == "node-uid-2"


def test_node_is_read_once_while_nothing_is_odd(node: Node) -> None:
    publisher = node.published(0)
    publisher.publish(pool(0, 1))
    assert publisher.wait(5.0)
    assert node.node.reads == 1


@pytest.mark.parametrize("verb", ["list", "create"])
def test_api_server_that_is_away_is_asked_until_it_answers(node: Node, verb: str) -> None:
    node.store.failures[verb] = [ApiUnreachable("connection refused")] * 3
    node.published(0)
    assert node.names() == ["gpu-0"]


def test_node_that_cannot_be_read_is_shown_in_readiness(node: Node) -> None:
    node.node.error = ApiError('nodes "node-1" not found', 404)
    node.start().publish(pool(0))
    until(lambda: 'nodes "node-1" not found' in node.ready()[1])
    assert node.ready()[0] is False


def test_api_server_that_is_away_makes_no_event(node: Node) -> None:
    node.store.failures["list"] = [ApiUnreachable("connection refused")] * 3
    node.published(0)
    assert node.events.written == []


@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_refusal_is_one_event_with_the_servers_words_however_often_it_is_tried(node: Node, status: int) -> None:
    node.store.failures["create"] = [
        ApiError(f'ResourceSlice "00000-gpu.nvidia.com-node-1-abcd{number}" is invalid', status) for number in range(4)
    ]
    node.published(0)
    kind, reason, message = node.events.written[0]
    assert (kind, reason, len(node.events.written)) == ("Warning", "ResourceSlicesRefused", 2)
    assert 'ResourceSlice "00000-gpu.nvidia.com-node-1-abcd0" is invalid' in message


def test_refusal_shows_in_readiness_with_the_servers_words_and_a_remedy(node: Node) -> None:
    node.store.failures["create"] = [DENIED] * 10_000
    node.start().publish(pool(0))
    until(lambda: "cannot create resource" in node.ready()[1])
    assert node.ready()[0] is False
    assert "ClusterRole" in node.ready()[1]


def test_end_of_refusals_is_an_event(node: Node) -> None:
    node.store.failures["create"] = [DENIED]
    node.published(0)
    until(lambda: node.events.reasons() == ["ResourceSlicesRefused", "ResourceSlicesPublished"])


def test_conflict_is_nothing_to_tell(node: Node) -> None:
    publisher = node.published(0)
    node.store.failures["replace"] = [ApiError("modified", 409), ApiError("not found", 404)]
    publisher.publish(pool(0, 1))
    assert publisher.wait(5.0)
    assert node.events.written == []
    assert node.names() == ["gpu-0", "gpu-1"]


def test_conflict_without_end_is_told(node: Node) -> None:
    publisher = node.published(0)
    node.store.failures["replace"] = [ApiError("modified", 409)] * 10_000
    publisher.publish(pool(0, 1))
    until(lambda: node.events.reasons() == ["ResourceSlicesRefused"])


def without_attributes(spec: Json) -> Json:
    """What an API server does that does not know a field."""
    devices = [{**device, "taints": [], "newField": 1} for device in spec.get("devices", [])]
    return {**spec, "devices": devices}


def tainted(*minors: int) -> tuple[PoolSlice, ...]:
    taints = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    return tuple(
        PoolSlice(devices=tuple({**device, "taints": taints} for device in pool_slice.devices))
        for pool_slice in pool(*minors)
    )


def test_fields_that_the_server_drops_or_adds_do_not_loop(node: Node) -> None:
    node.store.stored_as = without_attributes
    publisher = node.start()
    publisher.publish(tainted(0))
    assert publisher.wait(5.0)
    publisher.publish(tainted(0, 1))
    assert publisher.wait(5.0)
    (item,) = node.store.objects
    item["metadata"]["labels"] = {"seen": "true"}
    node.store.put(item)
    until(lambda: node.store.calls.count("list") >= 3)
    threading.Event().wait(0.05)
    assert list(node.store.writes) == ["create", "replace"]


def test_fields_that_the_server_drops_are_told_with_the_gate(node: Node) -> None:
    node.store.stored_as = without_attributes
    publisher = node.start()
    publisher.publish(tainted(0))
    assert publisher.wait(5.0)
    assert node.events.reasons() == ["ResourceSliceFieldsDropped"]
    assert "DRADeviceTaints" in node.events.written[0][2]


def test_watch_that_breaks_off_is_opened_again(node: Node) -> None:
    node.published(0)
    node.store.break_watch(ApiUnreachable("connection reset"))
    until(lambda: node.store.calls.count("watch") == 2)
    node.store.remove_all()
    until(lambda: node.names() == ["gpu-0"])


def test_change_during_a_broken_watch_is_seen(node: Node) -> None:
    node.published(0)
    node.store.failures["watch"] = [ApiUnreachable("connection refused")] * 3
    node.store.break_watch(ApiUnreachable("connection reset"))
    node.store.remove_all()
    until(lambda: node.names() == ["gpu-0"])


def test_version_too_old_leads_to_a_new_list(node: Node) -> None:
    node.published(0)
    node.store.failures["watch"] = [ApiError("too old resource version", 410)]
    node.store.break_watch(ApiError("too old resource version", 410))
    node.store.remove_all()
    until(lambda: node.names() == ["gpu-0"])
    assert node.store.calls.count("list") >= 2


def test_publisher_on_hold_asks_nothing_and_writes_nothing(node: Node) -> None:
    publisher = node.start(role=lambda: Role.STANDS_BY)
    publisher.publish(pool(0))
    assert publisher.wait(5.0)
    threading.Event().wait(0.05)
    assert node.store.calls == []


def test_publisher_on_hold_counts_as_ready(node: Node) -> None:
    publisher = node.start(role=lambda: Role.STANDS_BY)
    publisher.publish(pool(0))
    until(lambda: node.ready() == (True, "standing by: another instance of the driver publishes"))


def test_publisher_takes_over_when_it_may(node: Node) -> None:
    may = threading.Event()
    node.start(role=lambda: Role.WRITES if may.is_set() else Role.STANDS_BY).publish(pool(0))
    may.set()
    until(lambda: node.names() == ["gpu-0"])


def test_publisher_that_is_put_on_hold_repairs_nothing(node: Node) -> None:
    may = threading.Event()
    may.set()
    publisher = node.start(role=lambda: Role.WRITES if may.is_set() else Role.STANDS_BY)
    publisher.publish(pool(0))
    until(lambda: "watch" in node.store.calls)
    may.clear()
    node.store.remove_all()
    until(lambda: node.ready()[1].startswith("standing by"))
    assert node.names() == []


@pytest.fixture
def beside(node: Node) -> threading.Event:
    """Set: another driver of this name is here. The publisher has published gpu-0 and gpu-1 and watches."""
    other = threading.Event()
    publisher = node.start(role=lambda: Role.STANDS_ASIDE if other.is_set() else Role.WRITES)
    publisher.publish(pool(0, 1))
    until(lambda: "watch" in node.store.calls)
    return other


def test_publisher_that_stands_aside_deletes_what_it_has_published(node: Node, beside: threading.Event) -> None:
    beside.set()
    node.running[0].publish(pool())
    until(lambda: node.ready() == (True, "nothing is published beside another driver"))
    assert node.store.objects == []


def test_publisher_that_stands_aside_leaves_slices_that_another_has_taken_over(
    node: Node, beside: threading.Event
) -> None:
    beside.set()
    (item,) = node.store.objects
    item["spec"]["devices"] = item["spec"]["devices"][:1]
    taken_over = node.store.replace(item)
    node.running[0].publish(pool())
    until(lambda: node.ready()[1].startswith("nothing is published"))
    assert node.store.objects == [taken_over]
    node.store.replace({**taken_over, "spec": {**taken_over["spec"], "devices": []}})
    threading.Event().wait(0.05)
    assert node.names() == []


def test_publisher_that_starts_aside_leaves_all_slices_alone(node: Node) -> None:
    node.published(0).stop()
    before = node.store.objects
    node.start(role=lambda: Role.STANDS_ASIDE).publish(pool())
    until(lambda: node.ready()[1].startswith("nothing is published"))
    assert node.store.objects == before


def test_publisher_publishes_again_when_the_other_driver_has_left(node: Node, beside: threading.Event) -> None:
    beside.set()
    node.running[0].publish(pool())
    until(lambda: node.store.objects == [])
    beside.clear()
    node.running[0].publish(pool(0))
    until(lambda: node.names() == ["gpu-0"])


def test_withdrawing_is_tried_again_when_the_api_server_is_away(node: Node, beside: threading.Event) -> None:
    node.store.failures["delete"] = [ApiError("away", 503), ApiError("away", 503)]
    beside.set()
    node.running[0].publish(pool())
    until(lambda: node.store.objects == [])


def test_withdrawing_takes_back_what_a_change_that_failed_left(node: Node, beside: threading.Event) -> None:
    """The API server refused the change on the way, so the slice of before is there, and is this process's own."""
    node.store.failures["replace"] = [DENIED] * 1000
    node.running[0].publish(pool(0))
    until(lambda: not node.ready()[0])
    assert node.names() == ["gpu-0", "gpu-1"]
    beside.set()
    until(lambda: node.store.objects == [])


def test_endless_fight_over_the_slices_is_told_once_and_named(node: Node) -> None:
    node.published(0)
    for _ in range(5):
        until(lambda: node.names() == ["gpu-0"])
        (item,) = node.store.objects
        item["spec"]["devices"] = []
        item["metadata"]["managedFields"] = [{"manager": "gpu-kubelet-plugin"}]
        node.store.put(item)
    until(lambda: node.names() == ["gpu-0"])
    assert node.events.reasons() == ["ResourceSlicesContested"]
    assert "gpu-kubelet-plugin" in node.events.written[0][2]


def test_fight_over_the_slices_is_fought_ever_slower(node: Node) -> None:
    publisher = node.start(Timing(debounce_s=0.001, contested_most_s=60.0, rewatch_s=0.01))
    publisher.publish(pool(0))
    until(lambda: "watch" in node.store.calls)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        node.store.remove_all()
        threading.Event().wait(0.002)
    # Doubling from 1 ms leaves room for ten repairs in a second.
    assert len(node.store.writes) <= 11


def test_unexpected_error_does_not_end_publishing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.store.failures["list"] = [ValueError("odd answer")]  # type: ignore[list-item]
    node.published(0)
    assert "internal error" in caplog.text


def test_left_out_facts_are_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.start().publish([PoolSlice(notes=("device gpu-0: attribute brand left out",))])
    assert "attribute brand left out" in caplog.text


def test_stop_may_come_twice_and_before_start() -> None:
    publisher = SlicePublisher(FakeSliceStore(), FakeNode(), "node-1", FakeEvents(), FakeReadiness())
    publisher.stop()
    publisher.stop()


SHARED = {"gpu-0": ConsumableShares.parse("4")}


@pytest.mark.parametrize("known", [False, True], ids=["gate off", "gate on"])
def test_whether_the_server_knows_shared_devices_is_remembered_while_none_is_written(node: Node, known: bool) -> None:
    if not known:
        node.store.stored_as = _without_shares
    publisher = node.start()
    for slices in (build_slices([gpu(0), gpu(1)], DRIVER, "node-1", SHARED), pool(1)):
        publisher.publish(slices)
        assert publisher.wait(5.0)
        assert publisher.shares_dropped is not known


def _without_shares(spec: Json) -> Json:
    devices = [{k: v for k, v in device.items() if k != "allowMultipleAllocations"} for device in spec["devices"]]
    for device in devices:
        device["capacity"] = {name: {"value": entry["value"]} for name, entry in device["capacity"].items()}
    return {**spec, "devices": devices}
