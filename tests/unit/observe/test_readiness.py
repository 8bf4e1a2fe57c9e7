import logging
import threading

import pytest

from dra_driver.observe.readiness import Conditions, Liveness


def test_required_condition_is_not_yet_ok_until_it_is_stated() -> None:
    conditions = Conditions(["devices"])

    assert not conditions.ready
    assert conditions.report()["conditions"]["devices"]["message"] == "not yet"


def test_ready_when_all_required_conditions_hold() -> None:
    conditions = Conditions(["devices", "slices"])

    conditions.set("devices", True)
    assert not conditions.ready
    conditions.set("slices", True)

    assert conditions.ready
    assert conditions.report()["ready"] is True


def test_not_ready_when_a_condition_that_was_not_required_fails() -> None:
    conditions = Conditions([])

    conditions.set("registration", False, "refused")

    assert not conditions.ready


def test_report_names_the_reason() -> None:
    conditions = Conditions(["slices"])

    conditions.set("slices", False, "HTTP 403")

    found = conditions.report()["conditions"]["slices"]
    assert (found["ok"], found["message"]) == (False, "HTTP 403")


def test_since_stays_when_only_the_message_changes() -> None:
    conditions = Conditions(["slices"])
    first = conditions.report()["conditions"]["slices"]["since"]

    conditions.set("slices", False, "HTTP 403")

    assert conditions.report()["conditions"]["slices"]["since"] == first
    assert first.endswith("Z")


def test_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    conditions = Conditions(["slices"])

    for _ in range(3):
        conditions.set("slices", False, "HTTP 403")

    assert caplog.messages == ["condition slices does not hold: HTTP 403"]


def test_change_of_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    conditions = Conditions(["slices"])

    conditions.set("slices", False, "HTTP 403")
    conditions.set("slices", False, "HTTP 500")

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_conditions_take_statements_from_many_threads() -> None:
    conditions = Conditions(f"c{n}" for n in range(8))

    def flip(name: str) -> None:
        for i in range(200):
            conditions.set(name, bool(i % 2))

    threads = [threading.Thread(target=flip, args=(f"c{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert conditions.ready


def test_liveness_names_the_thread_that_ended() -> None:
    liveness, end = Liveness(), threading.Event()
    lasting = threading.Thread(target=end.wait, name="lasting")
    ended = threading.Thread(target=lambda: None, name="ended")
    for thread in (lasting, ended):
        thread.start()
    liveness.watch(lasting, ended)
    ended.join()

    dead = liveness.dead()
    end.set()
    lasting.join()

    assert dead == ("ended",)
