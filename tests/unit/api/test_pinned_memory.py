"""Pinned memory limits, as the MPS control daemon is told them."""

from typing import Any

import pytest

from dra_driver_api.config import ConfigError, Mps, MpsConfig, decode, pinned_memory_limits
from tests.unit.api.configs import mps

A, B = "GPU-aaaa", "GPU-bbbb"


def config(default: str | None = None, **limits: str) -> MpsConfig:
    fields: dict[str, Any] = {"defaultPerDevicePinnedMemoryLimit": {k.strip("_"): v for k, v in limits.items()}}
    if default is not None:
        fields["defaultPinnedDeviceMemoryLimit"] = default
    sharing = decode(mps(**fields)).sharing
    assert isinstance(sharing, Mps)
    return sharing.mps_config


@pytest.mark.parametrize(
    ("text", "limit"),
    [("1Gi", "1024M"), ("10Mi", "10M"), ("10M", "9M"), ("1G", "953M"), ("1048576", "1M"), ("2097151", "1M")],
)
def test_limit_is_whole_mebibytes_rounded_down(text: str, limit: str) -> None:
    assert pinned_memory_limits(config(text), [A]) == {A: limit}


def test_no_limits_come_of_no_settings() -> None:
    assert pinned_memory_limits(config(), [A, B]) == {}


def test_default_goes_to_every_device_in_order() -> None:
    assert list(pinned_memory_limits(config("1Gi"), [B, A]).items()) == [(A, "1024M"), (B, "1024M")]


def test_entry_of_a_uuid_overrides_the_default() -> None:
    assert pinned_memory_limits(config("1Gi", **{B: "2Gi"}), [A, B]) == {A: "1024M", B: "2048M"}


def test_entry_of_an_index_counts_uuids_in_text_order() -> None:
    assert pinned_memory_limits(config(_0="1Gi"), [B, A]) == {A: "1024M"}


@pytest.mark.parametrize("index", ["1", "+1", "001"])
def test_index_is_read_as_a_decimal_integer(index: str) -> None:
    assert pinned_memory_limits(config(**{index: "1Gi"}), [A, B]) == {B: "1024M"}


def test_uuid_wins_over_an_index_of_the_same_device() -> None:
    assert pinned_memory_limits(config(_0="1Gi", **{A: "2Gi"}), [A]) == {A: "2048M"}


def test_default_is_not_looked_at_without_devices() -> None:
    assert pinned_memory_limits(config("1k"), []) == {}


@pytest.mark.parametrize(
    ("block", "uuids", "words"),
    [
        (config("1M"), [A], "invalid limit: default value set too low: 1M"),
        (config("0"), [A], "invalid limit: default value set too low: 0"),
        (config("-1Gi"), [A], "invalid limit: default value set too low: -1Gi"),
        (config(_0="1M"), [A], "invalid limit: value set too low: 0: 1M"),
        (config(**{A: "1024Ki", B: "1k"}), [A, B], f"invalid limit: value set too low: {B}: 1k"),
        (config(_2="1Gi"), [A, B], "invalid device: invalid device index: 2"),
        (config(**{"-1": "1Gi"}), [A, B], "invalid device: invalid device index: -1"),
        (config(_0="1Gi"), [], "invalid device: invalid device index: 0"),
        (config(**{"GPU-cccc": "1Gi"}), [A], "invalid device: unable to parse key as an integer: GPU-cccc"),
        (config(**{"1.0": "1Gi"}), [A], "invalid device: unable to parse key as an integer: 1.0"),
        (config(**{"1_0": "1Gi"}), [A], "invalid device: unable to parse key as an integer: 1_0"),
        (config(**{"9" * 19: "1Gi"}), [A], "invalid device: unable to parse key as an integer: 999"),
        (config(**{"": "1Gi"}), [A], "invalid device: unable to parse key as an integer: "),
    ],
    ids=["default", "zero", "negative", "by-index", "by-uuid", "index", "minus", "none", "uuid", "fraction",
         "underscore", "huge", "empty"],
)  # fmt: skip
def test_limit_that_cannot_be_set_is_refused(block: MpsConfig, uuids: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pinned_memory_limits(block, uuids)
    assert str(caught.value).startswith(words)
