"""Devices that claims hold and that are gone, and MIG devices that were made in their place."""

from dataclasses import replace
from typing import Any, Final

import pytest

from dra_driver.model.devices import Device, MigDevice
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState
from dra_driver.sharing.shares import ConsumableShares
from dra_driver.sharing.standing import Standing, stand
from tests.builders import NODE, claim_ref, make_gpu, make_mig

CARD: Final = make_gpu(0, mig_enabled=True)
SMALL: Final = [make_mig(CARD, start) for start in range(4)]
MEDIA: Final = make_mig(CARD, 1, uuid="MIG-media", profile="1g.18gb+me", profile_id=20)
LARGER: Final = make_mig(CARD, 0, uuid="MIG-larger", profile="2g.35gb", profile_id=14, placement_size=2)


def record(device: Device, number: int = 1, **more: Any) -> ClaimRecord:
    prepared = PreparedDevice(
        requests=("gpu",),
        pool=NODE,
        device=device.name,
        uuid=device.uuid,
        gpu_uuid=device.physical.uuid,
        cdi_ids=(),
        **more,
    )
    return ClaimRecord(
        claim=claim_ref(number), state=ClaimState.COMPLETED, plan=Plan(devices=(prepared,)), prepared_at=0.0
    )


def test_held_device_that_is_gone_is_told_with_its_claims() -> None:
    records = [record(SMALL[0], number, share_id=f"s{number}") for number in (1, 2)]
    (text,) = stand(SMALL[1:], {}, records).lost.values()
    assert f"device {SMALL[0].name} ({SMALL[0].uuid}) is not on this node any more" in text
    assert "live claims (team-a/claim-1, team-a/claim-2) hold it: delete their pods" in text


def test_held_device_that_was_made_anew_under_its_name_is_told() -> None:
    assert stand([replace(SMALL[0], uuid="MIG-new")], {}, [record(SMALL[0])]).lost.keys() == {SMALL[0].uuid}


@pytest.mark.parametrize("others", [[], [SMALL[0]]], ids=["nobody holds it", "on the node and not offered"])
def test_device_that_nobody_misses_is_not_told(others: list[Device]) -> None:
    records = [record(SMALL[0])] if others else [record(SMALL[1])]
    assert stand(SMALL[1:], {}, records, others) == Standing()


def test_device_that_an_administrator_looks_at_is_not_told() -> None:
    assert stand([], {}, [record(make_gpu(0), admin_access=True)]) == Standing()


@pytest.mark.parametrize("mode", ["disabled", "4"])
@pytest.mark.parametrize(("held", "made"), [(SMALL[1], MEDIA), (SMALL[0], LARGER), (LARGER, SMALL[0])])
def test_device_that_was_made_where_a_claim_holds_another_is_withheld(
    held: MigDevice, made: MigDevice, mode: str
) -> None:
    share = None if mode == "disabled" else "s1"
    shares = {made.name: ConsumableShares.parse(mode)}
    text = stand([made], shares, [record(held, share_id=share)]).withheld[made.name]
    assert f"device {made.name} was made where {held.name} was, which live claims (team-a/claim-1) hold" in text


def test_devices_of_other_places_and_cards_and_the_one_that_is_held_are_offered() -> None:
    elsewhere = [*SMALL[1:], make_mig(make_gpu(1, mig_enabled=True), 0, profile="1g.18gb+me", profile_id=20)]
    assert stand([*SMALL, elsewhere[-1]], {}, [record(SMALL[0])]).withheld == {}
    assert stand(elsewhere, {}, [record(SMALL[0])]).withheld == {}


def test_device_of_the_same_name_is_left_to_the_scheduler() -> None:
    assert stand([replace(SMALL[0], uuid="MIG-new")], {}, [record(SMALL[0])]).withheld == {}
