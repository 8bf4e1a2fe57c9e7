"""What holds for all input."""

import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dra_driver_api.config import ConfigError, GpuConfig, MigDeviceConfig, Mode, MpsConfig, canonical, decode
from tests.unit.api.configs import API_VERSION, raw

FIELDS = ["apiVersion", "kind", "sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "x"]
MPS_FIELDS = [info.alias or "" for info in MpsConfig.model_fields.values()]
KEYS = st.sampled_from(FIELDS + MPS_FIELDS) | st.text(max_size=5)
WORDS = st.sampled_from(["GpuConfig", "MigDeviceConfig", "TimeSlicing", "MPS", "Long", "1Gi", API_VERSION])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=5)

SUFFIXES = st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"])
QUANTITIES = st.integers(0, 10**6) | st.builds("{}{}".format, st.integers(0, 10**6), SUFFIXES)
MPS = st.fixed_dictionaries(
    {},
    optional={
        "defaultActiveThreadPercentage": st.none() | st.integers(0, 100),
        "defaultPinnedDeviceMemoryLimit": st.none() | QUANTITIES,
        "defaultPerDevicePinnedMemoryLimit": st.none() | st.dictionaries(st.text("019ab-", max_size=4), QUANTITIES),
        "multiUser": st.none() | st.booleans(),
    },
)
INTERVALS = st.none() | st.sampled_from(["Default", "Short", "Medium", "Long"])
SLICING = st.fixed_dictionaries({}, optional={"interval": INTERVALS})
GPU_SHARING = st.fixed_dictionaries(
    {"strategy": st.just("TimeSlicing")},
    optional={"timeSlicingConfig": st.none() | SLICING, "mpsConfig": st.none()},
) | st.fixed_dictionaries(
    {"strategy": st.just("MPS")}, optional={"mpsConfig": st.none() | MPS, "timeSlicingConfig": st.none()}
)
MIG_SHARING = st.fixed_dictionaries(
    {"strategy": st.sampled_from(["TimeSlicing", "MPS"])}, optional={"mpsConfig": st.none() | MPS}
)
VALID = st.builds(lambda sharing: raw(sharing=sharing), st.none() | GPU_SHARING) | st.builds(
    lambda sharing: raw("MigDeviceConfig", sharing=sharing), st.none() | MIG_SHARING
)


def outcome(parameters: Any, mode: Mode) -> GpuConfig | MigDeviceConfig | ConfigError:
    """What decoding comes to; any other exception is the test's failure."""
    try:
        return decode(parameters, mode)
    except ConfigError as error:
        return error


def is_sound(found: GpuConfig | MigDeviceConfig | ConfigError) -> bool:
    """A config, or an error of one short line."""
    return not isinstance(found, ConfigError) or (str(found).isprintable() and len(str(found)) <= 400)


@given(OBJECTS, st.sampled_from(Mode))
def test_any_object_is_read_or_refused(parameters: dict[str, Any], mode: Mode) -> None:
    assert is_sound(outcome(parameters, mode))


@given(st.sampled_from(["GpuConfig", "MigDeviceConfig"]), JSON, st.sampled_from(Mode))
@example("GpuConfig", {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": 1e999}}, Mode.STRICT)
@example("GpuConfig", {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 10**40}}, Mode.STRICT)
def test_any_sharing_is_read_or_refused(kind: str, sharing: Any, mode: Mode) -> None:
    assert is_sound(outcome(raw(kind, sharing=sharing), mode))


@given(st.sampled_from(["TimeSlicing", "MPS"]), OBJECTS, OBJECTS, st.sampled_from(Mode))
def test_any_blocks_are_read_or_refused(strategy: str, block: Any, others: Any, mode: Mode) -> None:
    name = "mpsConfig" if strategy == "MPS" else "timeSlicingConfig"
    assert is_sound(outcome(raw(sharing={**others, "strategy": strategy, name: block}), mode))


@given(st.binary(max_size=200) | st.text(max_size=200), st.sampled_from(Mode))
def test_any_text_is_read_or_refused(parameters: str | bytes, mode: Mode) -> None:
    assert is_sound(outcome(parameters, mode))


@given(VALID)
def test_canonical_text_decodes_to_the_same_config(parameters: dict[str, Any]) -> None:
    config = decode(parameters)
    text = canonical(config)
    again = decode(raw(config.kind, sharing=json.loads(text) if text else None))
    assert (again, canonical(again)) == (config, text)


@given(VALID)
def test_both_modes_agree_on_valid_parameters(parameters: dict[str, Any]) -> None:
    assert decode(parameters, Mode.LENIENT) == decode(parameters, Mode.STRICT)


@given(VALID, VALID)
def test_canonical_texts_are_equal_just_when_configs_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    assume(one["kind"] == other["kind"])
    first, second = decode(one), decode(other)
    assert (first == second) == (canonical(first) == canonical(second))


@given(VALID, st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_a_key_more_is_refused_and_named(parameters: dict[str, Any], key: str) -> None:
    assume(key not in ("apiVersion", "kind", "sharing"))
    with pytest.raises(ConfigError) as caught:
        decode({**parameters, key: None})
    assert caught.value.path == (key,)
