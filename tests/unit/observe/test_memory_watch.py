"""Use of GPU memory beyond a claim's budget: who is told, when, and what it costs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dra_driver.model.claims import ClaimRef, PodRef
from dra_driver.model.devices import GpuProcess
from dra_driver.model.errors import ControlError
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.observe.memory_watch import EVENT, IDLE_S, TELL_AGAIN_S, MemoryWatch, Sources
from dra_driver.observe.process_pods import ProcessPods
from tests.builders import claim_ref, gpu_uuid, resource_claim
from tests.fakes.node import FakeClaims
from tests.grpc.helpers import wait_until

GIB = 1 << 30


def pod(number: int) -> PodRef:
    return PodRef("team-a", f"pod-{number}", f"00000000-0000-4000-b000-{number:012d}")


@dataclass
class Node:
    """A node of two GPUs; its claims, the pods that have them, and what these use."""

    directory: Path
    records: list[ClaimRecord] = field(default_factory=list)
    api: FakeClaims = field(default_factory=FakeClaims)
    used: dict[str, list[GpuProcess]] = field(default_factory=dict)
    fault: ControlError | None = None
    asked: int = 0
    told: list[tuple[PodRef, str]] = field(default_factory=list)
    counted: int = 0
    now: float = 0.0
    idle_s: float = IDLE_S

    def __post_init__(self) -> None:
        sources = Sources(
            records=lambda: list(self.records), memory=self, pods=ProcessPods(self.directory), claims=self.api
        )
        self.watch = MemoryWatch(sources, self, self.count, lambda: self.now, self.idle_s)

    def count(self) -> None:
        self.counted += 1

    def pod_warning(self, about: PodRef, reason: str, message: str) -> None:
        assert reason == EVENT
        self.told.append((about, message))

    # What NVML says.

    def check_memory_limits(self, gpu_uuid: str) -> None:
        raise AssertionError("not asked for here")

    def epoch(self) -> str:
        return ""

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return tuple(self.used.get(gpu_uuid, ()))

    # What happens on the node.

    def claim(self, number: int, gib: int | None, *pods: int, gpu: int = 0, enforced: bool = False) -> ClaimRef:
        device = PreparedDevice(
            requests=("gpu",),
            pool="node-a",
            device=f"gpu-{gpu}",
            uuid=gpu_uuid(gpu),
            gpu_uuid=gpu_uuid(gpu),
            cdi_ids=(),
            memory_budget=None if gib is None else gib * GIB,
            memory_enforced=enforced,
        )
        ref = claim_ref(number)
        plan = Plan(devices=(device,))
        self.records.append(ClaimRecord(claim=ref, state=ClaimState.COMPLETED, plan=plan, prepared_at=0.0))
        found: dict[str, Any] = resource_claim(ref, [])
        found["status"]["reservedFor"] = [
            {"resource": "pods", "name": pod(each).name, "uid": pod(each).uid} for each in pods
        ]
        return self.api.add(found)

    def uses(self, number: int, gib: float | None, gpu: int = 0) -> None:
        """A process of a pod more, None where NVML does not tell how much it has."""
        pid = 1000 + sum(map(len, self.used.values()))
        folder = self.directory / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod(number).uid}/{'ab' * 32}\n")
        process = GpuProcess(pid=pid, memory_bytes=None if gib is None else int(gib * GIB))
        self.used.setdefault(gpu_uuid(gpu), []).append(process)

    def look(self) -> list[PodRef]:
        """Look once; who was told by that."""
        before = len(self.told)
        self.watch.look()
        return [about for about, _ in self.told[before:]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_pod_that_uses_more_than_its_claim_may_is_told_and_counted(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(1, 10.5)
    assert node.look() == [pod(1)]
    assert node.counted == 1
    (_, message) = node.told[0]
    assert "claim team-a/claim-1 uses 10752 MiB of the memory of gpu-0 and may have 10240 MiB" in message


def test_pod_that_uses_what_it_may_is_not_told(node: Node) -> None:
    node.claim(1, 10, 1)
    node.claim(2, 10, 2)
    node.uses(1, 10)
    node.uses(2, 10)
    assert (node.look(), node.counted) == ([], 0)


def test_claim_is_told_of_once_a_minute(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(1, 11)
    assert node.look() == [pod(1)]
    node.now = TELL_AGAIN_S - 1
    assert node.look() == []
    node.now = TELL_AGAIN_S
    assert node.look() == [pod(1)]
    assert node.counted == 2


def test_only_the_one_that_uses_too_much_is_told(node: Node) -> None:
    node.claim(1, 10, 1)
    node.claim(2, 20, 2)
    node.uses(1, 3)
    node.uses(2, 21)
    assert node.look() == [pod(2)]


def test_processes_of_a_pod_add_up(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(1, 6)
    node.uses(1, 6)
    assert node.look() == [pod(1)]


def test_pods_of_one_claim_add_up_and_the_largest_is_told(node: Node) -> None:
    node.claim(1, 10, 1, 2)
    node.uses(1, 4)
    node.uses(2, 7)
    assert node.look() == [pod(2)]


def test_pod_with_two_claims_on_a_gpu_may_use_what_both_give(node: Node) -> None:
    node.claim(1, 10, 1)
    node.claim(2, 10, 1)
    node.uses(1, 19)
    assert node.look() == []
    node.uses(1, 2)
    assert node.look() == [pod(1), pod(1)]


@pytest.mark.parametrize(
    ("gib", "enforced", "fits", "over"), [(None, False, 70, None), (10, True, 19, 2)], ids=["no limit", "enforced"]
)
def test_pod_with_another_claim_on_the_gpu_that_is_not_watched_may_use_what_that_gives_too(
    node: Node, gib: int | None, enforced: bool, fits: int, over: int | None
) -> None:
    node.claim(1, 10, 1)
    node.claim(2, gib, 1, enforced=enforced)
    node.uses(1, fits)
    assert node.look() == []
    if over is not None:
        node.uses(1, over)
        assert node.look() == [pod(1)]


def test_claim_that_was_deleted_before_it_was_given_back_hides_no_other(node: Node) -> None:
    gone = node.claim(1, 10, 1)
    node.claim(2, 20, 2)
    node.claim(3, 5, 3, gpu=1)
    del node.api.objects[gone.uid]
    node.uses(1, 11)
    node.uses(2, 21)
    node.uses(3, 6, gpu=1)
    assert node.look() == [pod(2), pod(3)]
    reads = node.api.reads
    node.look()
    assert node.api.reads == reads


def test_memory_of_another_gpu_does_not_count(node: Node) -> None:
    node.claim(1, 10, 1, gpu=0)
    node.claim(2, 30, 1, gpu=1)
    node.uses(1, 8, gpu=0)
    node.uses(1, 29, gpu=1)
    assert node.look() == []


def test_process_whose_memory_is_not_known_counts_as_none(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(1, None)
    node.uses(1, 9)
    assert node.look() == []


def test_pod_without_a_budget_is_nobody_to_tell(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(9, 50)
    assert node.look() == []


# What it costs.


@pytest.mark.parametrize("gib", [None, 10], ids=["no limit", "enforced"])
def test_claims_without_an_observed_budget_cost_nothing(node: Node, gib: int | None) -> None:
    node.claim(1, gib, 1, enforced=gib is not None)
    assert node.watch.look() is False
    assert (node.asked, node.api.reads) == (0, 0)


def test_claim_that_is_not_prepared_to_the_end_is_not_watched(node: Node) -> None:
    node.claim(1, 10, 1)
    (record,) = node.records
    node.records = [ClaimRecord(claim=record.claim, state=ClaimState.STARTED, plan=record.plan, prepared_at=0.0)]
    assert node.watch.look() is False


def test_api_server_is_not_asked_while_nobody_can_be_over_budget(node: Node) -> None:
    node.claim(1, 10, 1)
    node.claim(2, 30, 2)
    node.uses(1, 4)
    node.uses(2, 6)
    assert node.watch.look() is True
    assert (node.asked, node.api.reads) == (1, 0)


def test_pods_of_claims_are_asked_for_once(node: Node) -> None:
    node.claim(1, 10, 1)
    node.claim(2, 30, 2)
    node.uses(1, 9)
    node.uses(2, 20)
    node.uses(9, 20)
    for _ in range(3):
        node.look()
    assert node.api.reads == 2


def test_pods_are_asked_for_again_when_another_one_uses_the_gpu(node: Node) -> None:
    ref = node.claim(1, 10, 1)
    node.uses(1, 11)
    node.look()
    node.api.objects[ref.uid]["status"]["reservedFor"].append(
        {"resource": "pods", "name": pod(2).name, "uid": pod(2).uid}
    )
    node.now = TELL_AGAIN_S
    node.uses(2, 30)
    assert node.look() == [pod(2)]
    assert node.api.reads == 2


def test_nobody_is_told_while_the_api_server_does_not_say_whose_claims_they_are(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(1, 11)
    node.api.down = True
    assert node.look() == []
    node.api.down = False
    assert node.look() == [pod(1)]


def test_process_table_that_cannot_be_read_is_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.claim(1, 10, 1)
    node.fault = ControlError("GPU is sulking")
    for _ in range(3):
        node.look()
    assert caplog.text.count("GPU is sulking") == 1


def test_what_is_known_of_a_claim_goes_with_it(node: Node) -> None:
    node.claim(1, 10, 1)
    node.uses(1, 11)
    node.look()
    (record,), node.records = node.records, []
    assert node.watch.look() is False
    node.records = [record]
    assert node.look() == [pod(1)]


# The thread.


def test_thread_sleeps_until_there_is_something_to_watch(node: Node) -> None:
    node.watch.start()
    try:
        node.claim(1, 10, 1)
        node.uses(1, 11)
        node.watch.wake()
        wait_until(lambda: node.told != [])
    finally:
        node.watch.stop()
    assert not node.watch.threads[0].is_alive()


def test_thread_finds_by_itself_what_another_instance_has_prepared(tmp_path: Path) -> None:
    node = Node(tmp_path, idle_s=0.01)
    node.watch.start()
    try:
        node.uses(1, 11)
        node.claim(1, 10, 1)
        wait_until(lambda: node.told != [])
    finally:
        node.watch.stop()


def test_thread_survives_what_goes_wrong(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.records = [None]  # type: ignore[list-item]
    node.watch.start()
    try:
        wait_until(lambda: "looking at the use of GPU memory failed" in caplog.text)
        assert node.watch.threads[0].is_alive()
    finally:
        node.watch.stop()
