"""Devices whose sharing was changed while claims hold them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.model.devices import Device
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.sharing.shares import ConsumableShares
from dra_driver.sharing.standing import Standing, consumed_shares, stand
from tests.builders import NODE, claim_ref, make_gpu, make_mig

GPU = make_gpu(0)


def held(device: Device = GPU, **more: Any) -> PreparedDevice:
    facts: dict[str, Any] = {
        "requests": ("gpu",),
        "pool": NODE,
        "device": device.name,
        "uuid": device.uuid,
        "gpu_uuid": device.physical.uuid,
        "cdi_ids": (),
    }
    return PreparedDevice(**(facts | more))


def record(number: int, *devices: PreparedDevice, state: ClaimState = ClaimState.COMPLETED) -> ClaimRecord:
    return ClaimRecord(claim=claim_ref(number), state=state, plan=Plan(devices=devices), prepared_at=0.0)


def standing(mode: str, records: Iterable[ClaimRecord]) -> Standing:
    return stand([GPU], {GPU.name: ConsumableShares.parse(mode)}, records)


WHOLE, SHARE = held(), held(share_id="s1")


@pytest.mark.parametrize("mode", ["4", "memory", "unlimited"])
def test_device_to_be_shared_is_withheld_while_a_claim_has_it_whole(mode: str) -> None:
    text = standing(mode, [record(1, WHOLE)]).withheld["gpu-0"]
    assert [word for word in (f"shared ({mode})", "held whole", "team-a/claim-1") if word not in text] == []


def test_device_to_be_whole_is_withheld_while_claims_have_shares_of_it() -> None:
    text = standing("disabled", [record(n, held(share_id=f"s{n}")) for n in range(1, 6)]).withheld["gpu-0"]
    assert "held by shares by live claims (team-a/claim-1, team-a/claim-2, team-a/claim-3 and 2 more)" in text


@pytest.mark.parametrize(("mode", "device"), [("4", SHARE), ("memory", SHARE), ("disabled", WHOLE)])
def test_device_held_as_it_is_to_be_shared_is_offered(mode: str, device: PreparedDevice) -> None:
    assert standing(mode, [record(1, device)]) == Standing(withheld={}, exceeded={})


@pytest.mark.parametrize("state", [ClaimState.STARTED, ClaimState.ENDING])
def test_claim_that_is_being_prepared_or_unprepared_holds_too(state: ClaimState) -> None:
    assert standing("4", [record(1, WHOLE, state=state)]).withheld


def test_admin_access_holds_nothing() -> None:
    watching = [record(1, held(admin_access=True)), record(2, held(admin_access=True, share_id="s"))]
    for mode in ("4", "disabled"):
        assert standing(mode, watching).withheld == {}


def test_other_card_under_the_same_name_is_not_held() -> None:
    assert standing("4", [record(1, held(uuid="GPU-other", gpu_uuid="GPU-other"))]).withheld == {}


def counted(number: int, shares: str = "1", **more: Any) -> PreparedDevice:
    """A share as the scheduler counts it."""
    return held(share_id=f"s{number}", consumed_capacity=(("memory", "0"), ("shares", shares)), **more)


def test_more_shares_in_use_than_there_are_now_is_told_and_nothing_withheld() -> None:
    records = [record(n, counted(n)) for n in range(8)]
    found = standing("4", records)
    assert found.withheld == {}
    assert "has 4 shares now and live claims hold 8" in found.exceeded["gpu-0"]
    assert standing("8", records).exceeded == {}


def test_shares_in_use_are_those_that_were_consumed() -> None:
    taken = counted(1, "3")
    assert standing("3", [record(1, taken)]).exceeded == {}
    assert "hold 6" in standing("3", [record(1, taken), record(2, taken)]).exceeded["gpu-0"]


def test_shares_without_a_number_take_the_place_of_those_that_have_one_since_the_scheduler_does_not_see_them() -> None:
    early = [record(n, held(share_id=f"s{n}", consumed_capacity=(("memory", "0"),))) for n in range(2)]
    late = [record(n, counted(n)) for n in range(2, 4)]
    assert standing("4", [*early, late[0]]) == Standing(withheld={}, exceeded={})
    text = standing("4", [*early, *late]).withheld["gpu-0"]
    assert "has 4 shares now and 4 are taken, 2 of them by claims of before" in text
    assert standing("4", late * 2) == Standing(withheld={}, exceeded={})


def test_device_without_a_number_of_shares_has_no_room_to_run_out_of() -> None:
    early = [record(n, held(share_id=f"s{n}")) for n in range(9)]
    for mode in ("memory", "unlimited"):
        assert standing(mode, early).withheld == {}
    unknown = replace(GPU, memory_bytes=None)
    assert stand([unknown], {GPU.name: ConsumableShares.parse("4")}, early).withheld == {}


MIG_CARD = make_gpu(0, mig_enabled=True)
MIGS = [make_mig(MIG_CARD, start) for start in range(2)]


@pytest.mark.parametrize("share", [None, "s1"], ids=["whole", "by share"])
@pytest.mark.parametrize("mode", ["disabled", "4"])
def test_devices_of_a_card_whose_mig_mode_was_changed_under_a_claim_are_withheld(mode: str, share: str | None) -> None:
    shares = dict.fromkeys((GPU.name, *(mig.name for mig in MIGS)), ConsumableShares.parse(mode))
    on_card = stand(MIGS, shares, [record(1, held(share_id=share))]).withheld
    assert on_card.keys() == {mig.name for mig in MIGS}
    assert f"is of GPU {GPU.uuid}, of which live claims (team-a/claim-1) hold gpu-0" in on_card[MIGS[0].name]
    assert stand([GPU], shares, [record(1, held(MIGS[1], share_id=share))]).withheld.keys() == {"gpu-0"}


def test_mig_devices_of_one_card_do_not_keep_each_other_from_being_offered() -> None:
    assert stand(MIGS, {}, [record(1, held(MIGS[0]))]).withheld == {}
    assert stand([GPU, make_gpu(1)], {}, [record(1, held(GPU))]).withheld == {}


@pytest.mark.parametrize(
    ("amount", "shares"), [("2", 2), ("1500m", 2), ("0", 0), ("-3", 1), ("nonsense", 1), ("", 1)], ids=repr
)
def test_odd_amounts_are_counted_and_break_nothing(amount: str, shares: int) -> None:
    assert consumed_shares(held(share_id="s", consumed_capacity=(("shares", amount),))) == shares
