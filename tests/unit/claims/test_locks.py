"""Locks by name, and turns between processes."""

import threading

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
