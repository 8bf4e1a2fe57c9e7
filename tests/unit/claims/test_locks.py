"""Locks by name, and turns between processes."""

import threading
from contextlib import ExitStack

import pytest

from dra_driver.claims.locks import KeyedLocks, ProcessTurn
from dra_driver.model.errors import LockTimeout


def test_a_held_key_times_out_naming_it():
    locks = KeyedLocks("claim", wait_seconds=0.01)
    failures = []

    def other():
        try:
            with locks.hold(["a"]):
                pass
        except LockTimeout as error:
            failures.append(str(error))

    with locks.hold(["a"]):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert failures == ["claim a is still being worked on by another call after 0.01 s"]


def test_keys_leave_nothing_behind_also_after_a_timeout():
    locks = KeyedLocks("GPU", wait_seconds=0.01)
    with locks.hold(["a", "b", "a"]), pytest.raises(LockTimeout), locks.hold(["b"]):
        pass
    assert locks._locks == {}


def test_opposite_orders_do_not_deadlock():
    locks = KeyedLocks("GPU")

    def run(keys):
        for _ in range(200):
            with locks.hold(keys):
                pass

    threads = [threading.Thread(target=run, args=(keys,)) for keys in (["a", "b"], ["b", "a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_a_turn_is_shared_inside_and_exclusive_outside(tmp_path):
    first, second = ProcessTurn(tmp_path / "turn"), ProcessTurn(tmp_path / "turn", wait_seconds=0.05)
    with (
        first.take(),
        first.take(),
        pytest.raises(LockTimeout, match="another instance of the driver held"),
        second.take(),
    ):
        pass
    with second.take():
        pass
    first.close()
    second.close()


def test_callers_that_wait_for_the_turn_wait_side_by_side(tmp_path):
    first, second = ProcessTurn(tmp_path / "turn"), ProcessTurn(tmp_path / "turn", wait_seconds=0.2)
    failures = []

    def attempt():
        try:
            with second.take():
                pass
        except LockTimeout as error:
            failures.append(error)

    with first.take():
        threads = [threading.Thread(target=attempt) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(1.0)
        assert not any(thread.is_alive() for thread in threads)
    assert len(failures) == 8
    first.close()
    second.close()


def test_a_busy_process_lets_no_call_join_while_another_process_waits(tmp_path):
    busy, waiting = ProcessTurn(tmp_path / "turn"), ProcessTurn(tmp_path / "turn")
    stop, got = threading.Event(), threading.Event()

    def load():
        while not stop.is_set():
            with busy.take():
                stop.wait(0.01)

    def want():
        with waiting.take():
            got.set()

    threads = [threading.Thread(target=load) for _ in range(4)] + [threading.Thread(target=want)]
    for thread in threads:
        thread.start()
    assert got.wait(20)
    stop.set()
    for thread in threads:
        thread.join()
    assert not busy.taken
    busy.close()
    waiting.close()


def test_a_paused_turn_can_be_had_by_another_process(tmp_path):
    one, other = ProcessTurn(tmp_path / "turn.lock"), ProcessTurn(tmp_path / "turn.lock")
    with one.take() as turn:
        with turn.paused():
            assert (one.taken, one.in_use) == (False, True)
            with other.take():
                assert other.taken
        assert one.taken
        assert turn.held
    assert (one.taken, one.in_use) == (False, False)


def test_a_turn_that_is_not_had_again_after_a_pause_is_not_given_back_twice(tmp_path):
    one, other = ProcessTurn(tmp_path / "turn.lock", 0.05), ProcessTurn(tmp_path / "turn.lock", 0.05)
    with ExitStack() as stack:
        turn = stack.enter_context(one.take())
        with pytest.raises(LockTimeout), turn.paused():
            stack.enter_context(other.take())
        assert not turn.held
    assert not one.taken
    assert not other.taken
    assert not one.in_use
    with one.take():
        assert one.taken


def test_a_pause_of_one_call_leaves_the_turn_with_the_others(tmp_path):
    turn = ProcessTurn(tmp_path / "turn.lock")
    with turn.take(), turn.take() as second:
        with second.paused():
            assert turn.taken
        assert turn.taken
