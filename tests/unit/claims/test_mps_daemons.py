"""Claims with MPS daemons: time and turns that calls share, claims of several daemons, what the watch takes for new."""

import time
from dataclasses import replace

import pytest

from dra_driver.claims import daemons as claim_daemons
from dra_driver.claims import lifecycle
from dra_driver.claims.daemons import DOWN_SECONDS, ClaimDaemons
from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import ControlError, DeviceBusy, LockTimeout, MpsError
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.model.records import ClaimState
from tests.builders import claim_ref, config_entry, make_gpu, make_inventory, make_mig, result
from tests.fakes.node import FakeMpsDaemons
from tests.unit.claims.conftest import Node
from tests.unit.claims.test_mps import EXCLUSIVE, MPS, U0, U1, id_of, mps, reasons, watch

A, B = MpsDaemon(id="a-00000", devices=(U0,)), MpsDaemon(id="b-00000", devices=(U1,))


class Clock:
    """Stands for the module ``time``, ``ahead`` seconds ahead of it."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class TimedDaemons(FakeMpsDaemons):
    """Each wait and stop takes ten seconds of the clock; ``given`` is the time that each had."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.given: list[float] = []

    def wait(self, daemon_id: str, timeout_s: float) -> None:
        self._pass(timeout_s)
        super().wait(daemon_id, timeout_s)

    def stop(self, daemon_id: str, timeout_s: float) -> None:
        self._pass(timeout_s)
        super().stop(daemon_id, timeout_s)

    def _pass(self, timeout_s: float) -> None:
        self.given.append(timeout_s)
        self.clock.ahead += 10


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(claim_daemons, "time", made)
    monkeypatch.setattr(lifecycle, "time", made)
    return made


def two(node: Node) -> tuple[ClaimRef, str, str]:
    """A prepared claim, and the ids of its two daemons."""
    claim = node.claim(
        1, [result("gpu-0", "a"), result("gpu-1", "b")], config_entry(mps(), "a"), config_entry(mps(), "b")
    )
    node.prepare(claim)
    return claim, id_of(claim, U0), id_of(claim, U1)


def started(node: Node, daemon_id: str) -> int:
    return node.mps.calls.count(("start", daemon_id))


# Time.


def test_daemons_of_one_call_share_the_time_that_it_has(clock):
    timed = TimedDaemons(clock)
    ClaimDaemons(timed).up([A, B], clock.monotonic() + 15)
    assert timed.given == [pytest.approx(15, abs=1), pytest.approx(5, abs=1)]


def test_wait_after_the_deadline_is_one_look(clock):
    timed = TimedDaemons(clock)
    ClaimDaemons(timed).up([A], clock.monotonic() - 5)
    assert timed.given == [0.0]


def test_daemons_that_end_share_the_time_too_and_each_has_some(clock):
    timed = TimedDaemons(clock)
    ClaimDaemons(timed).down([A, B, A, B])
    assert timed.given[:2] == [pytest.approx(DOWN_SECONDS, abs=1), pytest.approx(DOWN_SECONDS - 10, abs=1)]
    assert timed.given[3] == 1.0


def test_failure_of_long_ago_does_not_count_against_the_same_claim_prepared_anew(node, clock):
    claim = node.claim(1, [result()], MPS)
    for _ in range(2):
        node.prepare(claim)
        node.mps.fail_stop = [MpsError("its pod is still there")]
        with pytest.raises(MpsError, match="still there"):
            node.lifecycle.unprepare(claim)
        node.lifecycle.unprepare(claim)
        clock.ahead += 3600
    assert reasons(node) == []


# Turns, and other instances.


def test_neither_turn_nor_card_is_held_while_a_daemon_ends(node):
    claim, other = node.claim(1, [result()], MPS), node.claim(2, [result("gpu-1")], MPS)
    node.prepare(claim)
    done: list[object] = []

    def meanwhile() -> None:
        assert not node.turn.taken
        done.append(node.prepare(other))

    node.mps.on_stop = meanwhile
    node.lifecycle.unprepare(claim)
    assert done == [[("gpu-1", U1)]]


def test_no_turn_is_held_while_a_daemon_without_a_claim_ends(node):
    left = MpsDaemon(id=f"{claim_ref(7).uid}-abcde", devices=(U0,), gpus=(U0,))
    taken: list[bool] = []
    node.mps.on_stop = lambda: taken.append(node.turn.taken)
    assert node.orphans.end_daemon(left)
    assert taken == [False]


def test_no_turn_is_held_while_a_daemon_is_started_again(node, monkeypatch):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.ready.clear()
    taken: list[bool] = []
    monkeypatch.setattr(node.mps, "start", lambda daemon: taken.append(node.turn.taken))
    assert node.orphans.restart_daemons(claim)
    assert taken == [False]


def test_prepare_that_another_instance_is_undoing_meanwhile_is_no_success(node):
    claim = node.claim(1, [result()], MPS)

    def undone_elsewhere() -> None:
        node.store.put(replace(node.store.get(claim.uid), state=ClaimState.ENDING))

    node.mps.on_wait = undone_elsewhere
    with pytest.raises(LockTimeout, match="by another instance"):
        node.prepare(claim)
    assert claim.uid not in node.cdi.files


# Several daemons, and parts of cards.


def test_second_prepare_starts_the_one_of_two_daemons_that_is_gone(node):
    claim, first, second = two(node)
    del node.mps.started[second]
    node.prepare(claim)
    assert node.mps.started.keys() == {first, second}


def test_one_of_two_daemons_that_ended_is_started_again_and_the_other_is_not(node):
    _, first, second = two(node)
    watching = watch(node)
    watching.look()
    node.mps.ready.discard(second)
    watching.look()
    watching.look()
    assert (started(node, first), started(node, second)) == (1, 2)
    assert reasons(node) == ["MPSDaemonRestarted"]


def test_container_of_a_mig_device_meets_its_daemon(node):
    mig = make_mig(make_gpu(0, mig_enabled=True))
    node.inventory = make_inventory(1, (mig,))
    claim = node.claim(1, [result(mig.name)], config_entry(mps("MigDeviceConfig")))
    node.prepare(claim)
    at = f"/mps/{id_of(claim, mig.uuid)}"
    assert node.cdi.daemons[claim.uid] == {mig.name: MpsFolders(pipe=f"{at}/pipe", shm=f"{at}/shm")}


# What the watch takes for a new run.


def test_daemon_first_seen_while_it_does_not_serve_is_no_event_when_it_does(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    watching = watch(node)
    node.mps.ready.clear()
    watching.look()
    node.mps.ready.add(id_of(claim))
    watching.look()
    assert reasons(node) == []


# What is read of cards, and said of them.


def test_only_cards_are_asked_for_their_mode_when_a_mig_device_is_given_back(node):
    mig = make_mig(make_gpu(0, mig_enabled=True))
    node.inventory = make_inventory(1, (mig,))
    claim = node.claim(1, [result(mig.name)], config_entry(mps("MigDeviceConfig")))
    node.prepare(claim)
    node.lifecycle.unprepare(claim)
    assert mig.uuid not in node.control.reads


@pytest.mark.parametrize(("first", "second"), [((), (MPS,)), ((MPS,), ())])
def test_claim_without_a_config_is_not_told_of_a_strategy_that_it_lacks(node, first, second):
    node.prepare(node.claim(1, [result()], *first))
    with pytest.raises(DeviceBusy, match="already allocated to different claim") as caught:
        node.prepare(node.claim(2, [result()], *second))
    assert "never both" not in str(caught.value)


def test_card_that_cannot_be_set_back_does_not_keep_a_pod_whose_daemon_never_ends(node, monkeypatch):
    monkeypatch.setattr(lifecycle, "_GIVE_UP_SECONDS", 0.0)
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.fail_stop = [MpsError("its pod is still there")]
    node.control.fail_set_compute_mode = lambda uuid: ControlError("not permitted")
    node.lifecycle.unprepare(claim)
    assert node.store.get(claim.uid) is None
    assert node.control.modes[U0] is EXCLUSIVE
    assert reasons(node) == ["MPSDaemonLeft"]
