"""Field cases on opaque configs, each with the case's own input, from the kubelet's call to the card."""

import pytest

from tests.builders import config_entry, gpu_config, result, time_slicing
from tests.cases.driver import U0, U1, Driver, nothing_left, set_call

NIC = {"driver": "nic.example.com", "pool": "fabric", "device": "eth1", "request": "n"}


def sharing(**block: object) -> dict[str, object]:
    return gpu_config({"strategy": "TimeSlicing", "timeSlicingConfig": block})


# 1


def test_refused_strategy_names_its_gate_and_costs_no_other_claim(stopped: Driver) -> None:
    stopped.gates = ""
    stopped.start()
    text = stopped.refusal(stopped.claim("wants-slices", [result()], config_entry(time_slicing("Long"), "gpu")))
    assert "error validating GPU config: unknown GPU sharing strategy: TimeSlicing" in text
    assert "TimeSlicingSettings=true" in text
    assert nothing_left(stopped)
    assert stopped.tool_calls() == []
    assert stopped.prepare(stopped.claim("wants-none", [result()]))


def test_misspelt_strategy_lists_the_valid_ones_and_names_no_gate(stopped: Driver) -> None:
    stopped.gates = ""
    stopped.start()
    text = stopped.refusal(
        stopped.claim("typo", [result()], config_entry(gpu_config({"strategy": "TimeSlice"}), "gpu"))
    )
    assert "unknown GPU sharing strategy: TimeSlice, supported GPU sharing strategies: TimeSlicing, MPS" in text
    assert "TimeSlicingSettings" not in text


def test_mps_with_its_gate_off_names_its_gate(driver: Driver) -> None:
    text = driver.refusal(driver.claim("wants-mps", [result()], config_entry(gpu_config({"strategy": "MPS"}), "gpu")))
    assert "unknown GPU sharing strategy: MPS" in text
    assert "MPSSupport" in text


# 3, 5


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (sharing(intervall="Short"), ["intervall", "interval"]),
        (sharing(replicas=4), ["replicas", "consumable shares"]),
    ],
    ids=["typo", "replicas"],
)
def test_unknown_key_is_refused_by_name_before_anything_is_touched(
    driver: Driver, config: dict[str, object], said: list[str]
) -> None:
    text = driver.refusal(driver.claim("typo", [result()], config_entry(config, "gpu")))
    assert [word for word in said if word not in text] == []
    assert nothing_left(driver)
    assert driver.tool_calls() == []


# 7


@pytest.mark.parametrize("requests", [{}, {"requests": []}, {"requests": None}], ids=["absent", "empty", "null"])
def test_config_without_requests_reaches_every_device_of_the_claim(driver: Driver, requests: dict[str, object]) -> None:
    results = [result("gpu-0", "a"), result("gpu-1", "b")]
    driver.prepare(driver.claim("both", results, config_entry(time_slicing("Short")) | requests))
    assert driver.tool_calls() == [set_call(U0, 1), set_call(U1, 1)]


# 8


def test_claim_shared_with_another_driver_gets_our_devices_only(driver: Driver) -> None:
    configs = [
        config_entry({"apiVersion": "nic.example.com/v1", "kind": "NoSuchKind"}, "n", driver="nic.example.com"),
        config_entry(time_slicing("Long"), "g"),
    ]
    (device,) = driver.prepare(driver.claim("both-drivers", [result("gpu-0", "g"), NIC], *configs))
    assert (device.device_name, list(device.request_names)) == ("gpu-0", ["g"])
    assert driver.tool_calls() == [set_call(U0, 3)]


def test_claim_of_another_driver_alone_is_an_empty_success(driver: Driver) -> None:
    claim = driver.claim("nic-only", [NIC], config_entry({"kind": "NoSuchKind"}, driver="nic.example.com"))
    assert driver.prepare(claim) == []
    assert driver.unprepare(claim) == [""]
    assert nothing_left(driver)


# 10


@pytest.mark.parametrize(
    ("second", "interval"),
    [(("Long", "FromClass"), 1), (("Medium", "FromClaim"), 2)],
    ids=["class after claim", "claim after claim"],
)
def test_only_the_winning_config_reaches_the_card(driver: Driver, second: tuple[str, str], interval: int) -> None:
    later, source = second
    configs = [
        config_entry(time_slicing("Short"), "gpu"),
        config_entry(time_slicing(later), "gpu", source=source),
    ]
    driver.prepare(driver.claim("two-configs", [result()], *configs))
    assert driver.tool_calls() == [set_call(U0, interval)]


def test_config_of_an_unknown_source_is_refused_naming_the_known_ones(driver: Driver) -> None:
    config = config_entry(time_slicing("Short"), "gpu", source="FromNamespace")
    text = driver.refusal(driver.claim("odd-source", [result()], config))
    assert "'FromNamespace', must be one of FromClass, FromClaim" in text
