"""Field cases on preparing and unpreparing claims: what fails, what it costs others, what is left of it."""

from typing import Any

import pytest

from dra_driver.model.records import ClaimState
from tests.builders import config_entry, result, time_slicing
from tests.cases.driver import U0, U1, Driver, cards, node, nothing_left, set_call
from tests.grpc import helpers

DEFAULT = config_entry(time_slicing("Default"), "gpu")
LONG = config_entry(time_slicing("Long"), "gpu")
ADMIN: dict[str, Any] = {"adminAccess": True}

NO_SLICES = {"gpu": 0, "exitCode": 3, "stderr": "Failed to set timeslice: Not Supported"}


def broken_tool(**behaviour: object) -> dict[str, object]:
    return {"behaviours": [{"exitCode": 1, "stderr": "broken", **behaviour}]}


# 13


@pytest.fixture
def mixed(stopped: Driver) -> Driver:
    """gpu-0 has no time-slice control, gpu-1 has."""
    stopped.scenario = node(tool={"behaviours": [NO_SLICES]})
    stopped.start()
    return stopped


def test_card_without_time_slices_serves_a_claim_that_asks_for_none(mixed: Driver) -> None:
    claim = mixed.claim("plain", [result()])
    assert mixed.prepare(claim)
    assert mixed.unprepare(claim) == [""]
    assert mixed.tool_calls() == []


@pytest.mark.parametrize("config", [DEFAULT, LONG], ids=["Default", "Long"])
def test_card_without_time_slices_fails_the_claim_that_asks_naming_the_card(
    mixed: Driver, config: dict[str, object]
) -> None:
    text = mixed.refusal(mixed.claim("sliced", [result()], config))
    assert U0 in text
    assert "Not Supported" in text
    assert nothing_left(mixed)


def test_card_with_time_slices_is_served_beside_one_without(mixed: Driver) -> None:
    mixed.refusal(mixed.claim("sliced", [result("gpu-0")], LONG))
    assert mixed.prepare(mixed.claim("other", [result("gpu-1")], LONG))
    assert mixed.time_slice(U1) == 3


def test_tool_that_hangs_costs_its_claim_the_time_limit_and_no_other_claim(stopped: Driver) -> None:
    stopped.scenario = node(tool={"behaviours": [{"gpu": 0, "calls": [1], "hang": True}]})
    stopped.start("--gpu-tool-timeout=2")
    text = stopped.refusal(stopped.claim("hanging", [result("gpu-0")], LONG))
    assert "no end within 2 s" in text
    assert nothing_left(stopped)
    assert stopped.prepare(stopped.claim("other", [result("gpu-1")], LONG))


# 16


def test_second_claim_on_a_card_is_refused_naming_the_first(driver: Driver) -> None:
    driver.prepare(driver.claim("first", [result()]))
    second = driver.claim("second", [result()])
    assert "default/first" in driver.refusal(second)
    assert driver.held() == {"first": (U0,)}
    assert len(driver.files()) == 1


@pytest.mark.parametrize(("first", "second"), [(ADMIN, {}), ({}, ADMIN)], ids=["holder", "newcomer"])
def test_admin_access_on_either_side_shuts_nobody_out(
    driver: Driver, first: dict[str, Any], second: dict[str, Any]
) -> None:
    driver.prepare(driver.claim("first", [result(**first)]))
    assert driver.prepare(driver.claim("second", [result(**second)]))


def test_claim_that_is_half_prepared_keeps_others_off_its_card(stopped: Driver) -> None:
    # Nobody knows what a tool that hung has done to the card, so the card is kept.
    stopped.scenario = node(tool={"behaviours": [{"hang": True}]})
    stopped.start("--gpu-tool-timeout=0.5")
    stopped.refusal(stopped.claim("first", [result()], LONG))
    assert [record.state for record in stopped.records()] == [ClaimState.STARTED]
    text = stopped.refusal(stopped.claim("second", [result()]))
    assert "default/first" in text
    assert "not finished" in text


# 18


def test_failed_prepares_leave_no_trace_once_their_claims_are_gone(stopped: Driver) -> None:
    stopped.scenario = node(cards(U0, U1, "GPU-2"))
    stopped.start()
    stopped.stop()
    size = (stopped.plugin / "state.db").stat().st_size
    stopped.start()
    claims = [stopped.claim(f"claim-{number}", [result(f"gpu-{number}")], LONG) for number in range(3)]
    in_the_way = [stopped.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.yaml" for claim in claims]
    for claim, path in zip(claims, in_the_way, strict=True):
        path.mkdir()  # the spec can be neither written nor, when that failed, removed
        stopped.refusal(claim)
    for claim, path in zip(claims, in_the_way, strict=True):
        path.rmdir()
        stopped.delete(claim)
    assert {record.state for record in stopped.records()} == {ClaimState.STARTED}

    assert stopped.unprepare(claims[0]) == [""]
    assert set(stopped.held()) == {"claim-1", "claim-2"}
    stopped.restart()  # each start begins with a sweep
    stopped.wait_for(lambda: nothing_left(stopped))
    assert [stopped.time_slice(uuid) for uuid in (U0, U1, "GPU-2")] == [0, 0, 0]
    stopped.stop()
    assert (stopped.plugin / "state.db").stat().st_size == size


# 20


def test_unprepare_works_without_claim_and_api_server_as_often_as_asked(driver: Driver) -> None:
    claim = driver.claim("deleted", [result()], LONG)
    driver.prepare(claim)
    driver.delete(claim)
    driver.api.stop()
    never_seen = helpers.claim("00000000-0000-4000-9000-000000000099")
    assert [driver.unprepare(asked) for asked in (claim, claim, never_seen)] == [[""]] * 3
    assert nothing_left(driver)
    assert driver.time_slice(U0) == 0


# 22


def test_pod_of_two_drivers_can_go_though_we_were_never_asked_to_prepare(driver: Driver) -> None:
    good, unasked = driver.claim("good", [result()]), driver.claim("unasked", [result("gpu-1")])
    driver.prepare(good)
    assert driver.unprepare(unasked, good) == ["", ""]
    assert nothing_left(driver)


def test_each_claim_of_a_batch_has_its_own_answer(driver: Driver) -> None:
    good = driver.claim("good", [result()])
    unallocated = driver.claim("unallocated", None)
    deleted = driver.claim("deleted", [result("gpu-1")])
    driver.delete(deleted)
    answers = driver.call_prepare(unallocated, good, deleted)
    assert [device.device_name for device in answers[good.uid].devices] == ["gpu-0"]
    assert "not allocated" in answers[unallocated.uid].error
    assert "default/deleted" in answers[deleted.uid].error
    assert driver.held() == {"good": (U0,)}


# 88


def test_pods_can_go_while_the_nvidia_driver_is_unloaded(stopped: Driver) -> None:
    stopped.start()
    claim = stopped.claim("running", [result()], LONG)
    stopped.prepare(claim)
    stopped.stop()
    unloaded = {"nvml": {"notLoadableScans": 10**6}}
    stopped.scenario = node(failures=unloaded, tool={"missing": True})
    stopped.start(wait=False)
    assert stopped.unprepare(claim) == [""]
    assert nothing_left(stopped)
    assert stopped.tool_calls() == [set_call(U0, 3)]
