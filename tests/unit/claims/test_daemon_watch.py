"""The watch over MPS control daemons when things go wrong: nobody tells, nothing can be started or ended."""

import threading

import pytest

from dra_driver.claims.daemon_watch import DaemonWatch
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import ApiUnreachable, ControlError, MpsError
from dra_driver.model.mps import MpsDaemon
from tests.builders import claim_ref, config_entry, result
from tests.unit.claims.conftest import Node
from tests.unit.claims.test_mps import DEFAULT, EXCLUSIVE, MPS, U0, U1, id_of, mps, reasons, watch


def fail_to_search(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    searches = []

    def present():
        searches.append("search")
        raise ApiUnreachable("connection refused")

    monkeypatch.setattr(node.mps, "present", present)
    return searches


def test_daemon_that_ended_is_started_again_without_the_api_server(node, monkeypatch):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    fail_to_search(node, monkeypatch)
    node.mps.ready.clear()
    watching = watch(node)
    with pytest.raises(ApiUnreachable):
        watching.look()
    watching.look()
    assert node.mps.calls.count(("start", id_of(claim))) == 2
    assert reasons(node) == ["MPSDaemonRestarted"]


def test_search_that_failed_is_made_again_sooner_but_not_at_every_look(node, monkeypatch):
    searches = fail_to_search(node, monkeypatch)
    watching = watch(node)
    for _ in range(2):
        with pytest.raises(ApiUnreachable):
            watching.look()
        for _ in range(12):
            watching.look()
    assert len(searches) == 2
    monkeypatch.undo()
    for _ in range(121):
        watching.look()
    assert node.mps.looked_for == 1
    watching.look()
    assert node.mps.looked_for == 2


def test_daemon_that_cannot_be_started_again_is_told_once_for_each_reason(node, caplog):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    node.mps.ready.clear()
    node.mps.fail_start = [MpsError(why) for why in ("no", "other", "no", "no", "no")]
    watching = watch(node)
    for _ in range(6):
        watching.look()
    assert [r.message.rpartition(": ")[2] for r in caplog.records if "is not started again" in r.message] == [
        "no",
        "other",
        "no",
    ]
    assert reasons(node) == []
    watching.look()
    assert reasons(node) == ["MPSDaemonRestarted"]


def test_daemon_that_was_missing_at_the_first_look_alone_is_no_event(node):
    node.prepare(node.claim(1, [result()], MPS))
    ready = set(node.mps.ready)
    node.mps.ready.clear()
    watching = watch(node)
    watching.look()
    node.mps.ready |= ready
    watching.look()
    assert reasons(node) == []


def test_daemon_that_was_missing_at_one_look_and_came_back_as_another_is_told_of(node):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    watching = watch(node)
    watching.look()
    node.mps.ready.clear()
    watching.look()
    node.mps.ready.add(id_of(claim))
    node.mps.runs[id_of(claim)] = 1
    watching.look()
    assert reasons(node) == ["MPSDaemonRestarted"]


def test_only_the_daemon_that_ended_is_started_again(node):
    entries = (config_entry(mps(), "a"), config_entry(mps(), "b"))
    claim = node.claim(1, [result("gpu-0", "a"), result("gpu-1", "b")], *entries)
    node.prepare(claim)
    node.mps.ready.discard(id_of(claim, U1))
    node.mps.calls.clear()
    assert node.orphans.restart_daemons(claim)
    assert node.mps.calls == [("start", id_of(claim, U1))]
    node.mps.ready.add(id_of(claim, U1))
    assert not node.orphans.restart_daemons(claim)


def left_over(node: Node, number: int, uuid: str) -> MpsDaemon:
    daemon = MpsDaemon(id=f"{claim_ref(number).uid}-abcde", devices=(uuid,), gpus=(uuid,))
    node.mps.started[daemon.id] = daemon
    node.control.modes[uuid] = EXCLUSIVE
    return daemon


def test_daemon_without_a_claim_that_cannot_be_ended_keeps_no_other_from_ending(node):
    stuck = left_over(node, 7, U0)
    left_over(node, 8, U1)
    node.mps.fail_stop = [MpsError("its pod is still there")]
    watch(node).look()
    assert node.mps.started.keys() == {stuck.id}
    assert node.control.modes == {U0: EXCLUSIVE, U1: DEFAULT}


def test_card_that_cannot_be_given_back_keeps_no_other_of_its_daemon_from_it(node):
    left = MpsDaemon(id=f"{claim_ref(7).uid}-abcde", devices=(U0, U1), gpus=(U0, U1))
    node.mps.started[left.id] = left
    node.control.modes |= {U0: EXCLUSIVE, U1: EXCLUSIVE}
    node.control.fail_set_compute_mode = lambda uuid: ControlError("gone") if uuid == U0 else None
    watch(node).look()
    assert node.control.modes == {U0: EXCLUSIVE, U1: ComputeMode.DEFAULT}


def test_nothing_is_ended_before_recovery_is_done(node):
    left_over(node, 7, U0)
    ended = threading.Event()
    node.mps.on_stop = ended.set
    watching = DaemonWatch(node.store.records, node.edges.daemons, node.orphans, node.events, look_seconds=30.0)
    watching.start()
    try:
        assert not ended.wait(0.1)
        watching.begin()
        assert ended.wait(20.0)
    finally:
        watching.stop()
