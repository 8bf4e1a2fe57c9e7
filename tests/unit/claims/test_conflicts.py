"""Who may have a device beside whom: whole, by shares, with which config, and how many on one GPU."""

from typing import Any

import pytest

from dra_driver.claims.conflicts import check_against_others, check_clients, check_within_claim
from dra_driver.model.errors import DeviceBusy
from dra_driver.model.plan import PreparedDevice
from dra_driver.model.records import ClaimState, Holder
from dra_driver_api.config import canonical, decode
from tests.builders import NODE, claim_ref, gpu_config, gpu_uuid, time_slicing

US = claim_ref(99)
U0 = gpu_uuid(0)


def device(share: str | None = None, config: Any = None, **more: Any) -> PreparedDevice:
    facts: dict[str, Any] = {
        "requests": ("gpu",),
        "pool": NODE,
        "device": "gpu-0",
        "uuid": U0,
        "gpu_uuid": U0,
        "cdi_ids": (),
        "share_id": share,
        "sharing": canonical(decode(config)) if config else "",
    }
    return PreparedDevice(**(facts | more))


def mig(number: int, share: str | None = None) -> PreparedDevice:
    return device(share, device=f"gpu-0-mig-1g18gb-19-{number}", uuid=f"MIG-{number}")


def holder(held: PreparedDevice, number: int = 1) -> Holder:
    return Holder(claim=claim_ref(number), state=ClaimState.COMPLETED, device=held)


LONG, SHORT, DEFAULT = time_slicing("Long"), time_slicing("Short"), time_slicing("Default")
BARE = gpu_config({"strategy": "TimeSlicing"})


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (None, None),
        (None, gpu_config()),
        (LONG, LONG),
        (DEFAULT, BARE),
        (BARE, gpu_config({"strategy": "TimeSlicing", "timeSlicingConfig": {}})),
    ],
    ids=["none", "none and empty", "equal", "default and not given", "not given and empty"],
)
def test_shares_live_together_when_their_normalised_configs_are_equal(held: Any, wanted: Any) -> None:
    check_against_others(US, [device("b", wanted)], [holder(device("a", held))])


@pytest.mark.parametrize(
    ("held", "wanted", "words"),
    [
        (LONG, SHORT, "it has TimeSlicing (interval Long), this claim asks for TimeSlicing (interval Short)"),
        (None, DEFAULT, "it has no sharing config, this claim asks for TimeSlicing (interval Default)"),
        (DEFAULT, None, "it has TimeSlicing (interval Default), this claim asks for no sharing config"),
    ],
    ids=["other interval", "none and default", "default and none"],
)
def test_shares_with_other_configs_are_refused_naming_the_holder_and_both_configs(
    held: Any, wanted: Any, words: str
) -> None:
    with pytest.raises(DeviceBusy) as caught:
        check_against_others(US, [device("b", wanted)], [holder(device("a", held))])
    assert f"conflicting configuration with already prepared claim {claim_ref(1)}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(("held", "wanted"), [(None, "b"), ("a", None), (None, None)])
def test_device_that_either_has_whole_is_not_shared(held: str | None, wanted: str | None) -> None:
    with pytest.raises(DeviceBusy, match="already allocated to different claim team-a/claim-1"):
        check_against_others(US, [device(wanted)], [holder(device(held))])


@pytest.mark.parametrize("share", [None, "m"])
def test_admin_access_on_either_side_is_no_conflict(share: str | None) -> None:
    check_against_others(US, [device("b", LONG)], [holder(device(share, admin_access=True))])
    check_against_others(US, [device(share, admin_access=True)], [holder(device("a", LONG))])


def test_two_shares_of_one_device_in_one_claim_are_fine_and_must_agree() -> None:
    check_within_claim(US, [device("a", LONG), device("b", LONG)])
    with pytest.raises(DeviceBusy, match=r"different sharing on device gpu-0: TimeSlicing \(interval Long\) and no"):
        check_within_claim(US, [device("a", LONG), device("b")])


@pytest.mark.parametrize("shares", ["aa", "aab", "aba", "abb"])
def test_share_that_a_claim_has_twice_is_refused_whichever_it_is(shares: str) -> None:
    with pytest.raises(DeviceBusy, match="device gpu-0 is allocated twice to claim"):
        check_within_claim(US, [device(share) for share in shares])


def test_claim_may_have_many_shares_of_one_device_and_the_same_ids_on_others() -> None:
    check_within_claim(US, [device(f"s{number}") for number in range(48)])
    check_within_claim(US, [device("a"), device("a", device="gpu-1", uuid="GPU-1", gpu_uuid="GPU-1")])


def test_config_of_mps_is_told_in_short() -> None:
    mps = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}
    with pytest.raises(DeviceBusy, match=r"asks for MPS \(.*defaultActiveThreadPercentage 50"):
        check_against_others(US, [device("b", gpu_config(mps))], [holder(device("a"))])


# The ceiling.


def test_claim_beyond_the_ceiling_is_refused_by_its_number_and_the_setting() -> None:
    holders = [holder(device(f"s{number}"), number) for number in range(3)]
    check_clients(US, [device("new")], holders, 4)
    with pytest.raises(DeviceBusy) as caught:
        check_clients(US, [device("new")], holders, 3)
    wanted = ("gpu-0", f"client number 4 of GPU {U0}", "at most 3", "--max-clients-per-gpu=3", str(US))
    assert [word for word in wanted if word not in str(caught.value)] == []


def test_clients_of_all_mig_devices_of_a_gpu_count() -> None:
    holders = [holder(mig(number % 2, f"s{number}"), number) for number in range(3)]
    with pytest.raises(DeviceBusy, match="client number 5"):
        check_clients(US, [mig(3, "x"), mig(3, "y")], holders, 4)


def test_admin_access_own_claim_and_other_cards_do_not_count() -> None:
    holders = [
        holder(device("m", admin_access=True)),
        Holder(claim=US, state=ClaimState.STARTED, device=device("old")),
    ]
    check_clients(US, [device("new"), device("look", admin_access=True)], holders, 1)


def test_devices_that_are_not_shared_have_no_ceiling() -> None:
    check_clients(US, [mig(6)], [holder(mig(number), number) for number in range(6)], 1)
