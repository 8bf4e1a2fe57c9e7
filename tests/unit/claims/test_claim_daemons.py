"""What a claim's daemons keep waiting, and for how long: no other instance, no longer than the kubelet does."""

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from dra_driver.claims import daemons as claim_daemons
from dra_driver.claims.daemons import ClaimDaemons
from dra_driver.claims.locks import ProcessTurn
from dra_driver.model.errors import MpsError
from dra_driver.model.mps import MpsDaemon
from tests.builders import config_entry, result
from tests.fakes.node import FakeMpsDaemons
from tests.unit.claims.conftest import Node
from tests.unit.claims.test_mps import MPS, U0, U1, id_of, mps

ONE, OTHER = (MpsDaemon(id=f"{name}-00000", devices=(uuid,)) for name, uuid in (("one", U0), ("other", U1)))


def other_instance(node: Node) -> tuple[Callable[[], None], list[str]]:
    """What has another instance work on claims, and how often it did."""
    worked: list[str] = []

    def work() -> None:
        turn = ProcessTurn(node.directory / "turn.lock", 0.05)
        with turn.take():
            worked.append("worked")
        turn.close()

    return work, worked


def test_other_instances_work_while_a_daemon_starts_starts_again_or_ends(node):
    claim = node.claim(1, [result()], MPS)
    node.mps.on_wait, worked = other_instance(node)
    node.mps.on_stop = node.mps.on_wait
    node.prepare(claim)
    assert len(worked) == 1
    node.mps.ready.clear()
    node.prepare(claim)
    assert len(worked) == 2
    node.lifecycle.unprepare(claim)
    assert len(worked) == 3


def test_other_instances_work_while_the_watch_starts_and_ends_daemons(node, monkeypatch):
    claim = node.claim(1, [result()], MPS)
    node.prepare(claim)
    (daemon,) = node.mps.started.values()
    work, worked = other_instance(node)
    node.mps.ready.clear()
    with monkeypatch.context() as patched:
        patched.setattr(node.mps, "start", lambda daemon: work())
        assert node.orphans.restart_daemons(claim)
    assert len(worked) == 1
    node.store.remove(claim.uid)
    node.mps.on_stop = work
    assert node.orphans.end_daemon(daemon)
    assert len(worked) == 2


def test_claim_without_mps_needs_no_mps_programs(node):
    node.mps.fail_check = [MpsError("nvidia-cuda-mps-control is not there")]
    assert node.prepare(node.claim(1, [result()])) == [("gpu-0", U0)]


def test_daemons_of_a_claim_have_one_time_together(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(claim_daemons, "time", SimpleNamespace(monotonic=lambda: now[0]))
    given: list[tuple[str, float]] = []

    class Slow(FakeMpsDaemons):
        def wait(self, daemon_id: str, timeout_s: float) -> None:
            given.append((daemon_id, timeout_s))
            now[0] += 20.0

        def stop(self, daemon_id: str, timeout_s: float) -> None:
            given.append((daemon_id, timeout_s))
            now[0] += 25.0

    daemons = ClaimDaemons(Slow())
    daemons.up([ONE, OTHER], now[0] + 10.0)
    assert given == [(ONE.id, 10.0), (OTHER.id, 0.0)]
    given.clear()
    daemons.down([ONE, OTHER])
    assert given == [(ONE.id, claim_daemons.DOWN_SECONDS), (OTHER.id, 1.0)]


def test_time_of_a_prepare_begins_with_the_call(node, monkeypatch):
    given: list[float] = []
    monkeypatch.setattr(node.mps, "wait", lambda daemon_id, timeout_s: given.append(timeout_s))
    before = time.monotonic()
    node.prepare(node.claim(1, [result()], MPS))
    assert claim_daemons.UP_SECONDS - (time.monotonic() - before) <= given[0] <= claim_daemons.UP_SECONDS


def test_daemon_that_does_not_end_keeps_no_other_of_its_claim_from_ending(node):
    entries = (config_entry(mps(), "a"), config_entry(mps(), "b"))
    claim = node.claim(1, [result("gpu-0", "a"), result("gpu-1", "b")], *entries)
    node.prepare(claim)
    node.mps.fail_stop = [MpsError("the second"), MpsError("the first")]
    with pytest.raises(MpsError, match="the first"):
        node.lifecycle.unprepare(claim)
    assert [what for what, _ in node.mps.calls][-2:] == ["stop", "stop"]
    node.mps.fail_stop = [MpsError("the first")]
    with pytest.raises(MpsError, match="the first"):
        node.lifecycle.unprepare(claim)
    assert node.mps.started.keys() == {id_of(claim, U0)}


def test_devices_of_no_daemon_get_no_folders():
    class Device:
        name, uuid = "gpu-1", U1

    assert ClaimDaemons(FakeMpsDaemons()).folders([ONE], [Device()]) == {}
