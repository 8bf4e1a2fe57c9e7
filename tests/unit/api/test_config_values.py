"""What well-formed parameters come to."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dra_driver_api.config import (
    GpuConfig,
    Interval,
    MigDeviceConfig,
    MigTimeSlicing,
    Mode,
    Mps,
    MpsConfig,
    Quantity,
    TimeSlicing,
    TimeSlicingConfig,
    canonical,
    decode,
)
from tests.unit.api.configs import mps, raw, slicing

LONG = slicing(timeSlicingConfig={"interval": "Long"})


@pytest.mark.parametrize(
    ("name", "level"),
    [("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)],
    ids=str,
)
def test_interval_has_the_tools_number(name: str, level: int) -> None:
    sharing = decode(slicing(timeSlicingConfig={"interval": name})).sharing
    assert isinstance(sharing, TimeSlicing)
    assert sharing.time_slicing_config.interval.level == level


@pytest.mark.parametrize(
    "blocks",
    [
        {},
        {"timeSlicingConfig": None},
        {"timeSlicingConfig": {}},
        {"timeSlicingConfig": {"interval": None}},
        {"timeSlicingConfig": {"interval": "Default"}},
        {"mpsConfig": None},
    ],
    ids=["missing", "null-block", "empty-block", "null-interval", "written", "other-block-null"],
)
def test_interval_is_default_when_not_given(blocks: dict[str, Any]) -> None:
    wanted = GpuConfig(sharing=TimeSlicing(time_slicing_config=TimeSlicingConfig(interval=Interval.DEFAULT)))
    found = decode(slicing(**blocks))
    assert (found, hash(found), canonical(found)) == (wanted, hash(wanted), canonical(wanted))


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
@pytest.mark.parametrize(
    "blocks", [{}, {"mpsConfig": None}, {"mpsConfig": {}}, {"mpsConfig": {"multiUser": False}}], ids=str
)
def test_mps_settings_are_empty_when_not_given(kind: str, blocks: dict[str, Any]) -> None:
    assert decode(raw(kind, sharing={"strategy": "MPS", **blocks})).sharing == Mps(mps_config=MpsConfig())


@pytest.mark.parametrize("kind", [GpuConfig, MigDeviceConfig])
@pytest.mark.parametrize("fields", [{}, {"sharing": None}], ids=["absent", "null"])
def test_no_sharing_is_the_built_in_default(kind: type[GpuConfig | MigDeviceConfig], fields: dict[str, Any]) -> None:
    assert decode(raw(kind.__name__, **fields)) == kind()


def test_mig_time_slicing_forgets_mps_settings_even_out_of_range() -> None:
    found = decode(slicing("MigDeviceConfig", mpsConfig={"defaultActiveThreadPercentage": 150}))
    assert found == MigDeviceConfig(sharing=MigTimeSlicing())


def test_mps_fields_are_all_read() -> None:
    sharing = decode(
        mps(
            defaultActiveThreadPercentage=50,
            defaultPinnedDeviceMemoryLimit="10Gi",
            defaultPerDevicePinnedMemoryLimit={"1": "2Gi", "0": "512Mi"},
            multiUser=True,
        )
    ).sharing
    assert sharing == Mps(
        mps_config=MpsConfig(
            default_active_thread_percentage=50,
            default_pinned_device_memory_limit=Quantity.of(10 << 30),
            default_per_device_pinned_memory_limit=(("0", Quantity.of(1 << 29)), ("1", Quantity.of(2 << 30))),
            multi_user=True,
        )
    )


@pytest.mark.parametrize("percentage", [0, 100])
def test_active_thread_percentage_reaches_its_ends(percentage: int) -> None:
    sharing = decode(mps(defaultActiveThreadPercentage=percentage)).sharing
    assert isinstance(sharing, Mps)
    assert sharing.mps_config.default_active_thread_percentage == percentage


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"defaultPinnedDeviceMemoryLimit": "1Gi"}, {"defaultPinnedDeviceMemoryLimit": "1024Mi"}),
        ({"defaultPinnedDeviceMemoryLimit": "1Ki"}, {"defaultPinnedDeviceMemoryLimit": 1024}),
        ({"defaultPerDevicePinnedMemoryLimit": {}}, {"defaultPerDevicePinnedMemoryLimit": None}),
        (
            {"defaultPerDevicePinnedMemoryLimit": {"a": "1G", "b": "1"}},
            {"defaultPerDevicePinnedMemoryLimit": {"b": "1000m", "a": "1e9"}},
        ),
        ({"multiUser": None}, {}),
        ({"defaultActiveThreadPercentage": None}, {}),
    ],
    ids=["suffix", "number", "empty-map", "map-order", "null-multi-user", "null-percentage"],
)
def test_mps_settings_that_mean_the_same_are_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = decode(mps(**one)), decode(mps(**other))
    assert (first, hash(first), canonical(first)) == (second, hash(second), canonical(second))


@pytest.mark.parametrize(
    "form",
    [lambda value: value, json.dumps, lambda value: json.dumps(value).encode()],
    ids=["object", "text", "bytes"],
)
def test_parameters_decode_alike_in_every_form(form: Callable[[Any], Any]) -> None:
    assert decode(form(LONG)) == GpuConfig(
        sharing=TimeSlicing(time_slicing_config=TimeSlicingConfig(interval=Interval.LONG))
    )


def test_unknown_keys_are_dropped_when_lenient() -> None:
    newer = raw(
        sharing={
            "strategy": "TimeSlicing",
            "later": 1,
            "timeSlicingConfig": {"interval": "Long", "Interval": "Short"},
        },
        status={},
    )
    assert decode(newer, Mode.LENIENT) == decode(LONG)


def test_last_of_repeated_keys_counts_when_lenient() -> None:
    text = json.dumps(LONG).replace('"interval": "Long"', '"interval": "Short", "interval": "Long"')
    assert decode(text, Mode.LENIENT) == decode(LONG)


def test_parameters_are_left_alone() -> None:
    given = slicing(timeSlicingConfig=None, mpsConfig=None)
    decode(given)
    assert given == slicing(timeSlicingConfig=None, mpsConfig=None)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(decode(LONG), "sharing", None)  # noqa: B010


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (raw(), ""),
        (LONG, '{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}'),
        (slicing("MigDeviceConfig", mpsConfig={}), '{"strategy":"TimeSlicing"}'),
        (mps(), '{"mpsConfig":{},"strategy":"MPS"}'),
        (
            mps(
                multiUser=True,
                defaultActiveThreadPercentage=0,
                defaultPinnedDeviceMemoryLimit="0.5Gi",
                defaultPerDevicePinnedMemoryLimit={"1": "1M", "0": "1Gi"},
            ),
            (
                '{"mpsConfig":{"defaultActiveThreadPercentage":0,'
                '"defaultPerDevicePinnedMemoryLimit":{"0":"1Gi","1":"1000000"},'
                '"defaultPinnedDeviceMemoryLimit":"512Mi","multiUser":true},"strategy":"MPS"}'
            ),
        ),
    ],
    ids=["none", "time-slicing", "mig", "mps-empty", "mps-full"],
)
def test_canonical_text_is_sorted_and_tight(parameters: dict[str, Any], text: str) -> None:
    assert canonical(decode(parameters)) == text
