"""What people read when their parameters are wrong."""

import json
from typing import Any

import pytest

from dra_driver_api.config import ConfigError, GpuConfig, Mode, decode
from tests.unit.api.configs import API_VERSION, mps, raw, slicing

DECODING = "error decoding config parameters: "
VALIDATING = "error validating GPU config: "


def refusal(parameters: Any, mode: Mode = Mode.STRICT) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        decode(parameters, mode)
    return caught.value


def sharing(kind: str = "GpuConfig", /, **fields: Any) -> dict[str, Any]:
    return raw(kind, sharing=fields)


def test_unknown_key_is_named_with_the_one_that_was_meant() -> None:
    error = refusal(slicing(timeSlicingConfig={"intervall": "Short"}))
    assert str(error) == (
        f'{DECODING}strict decoding error: unknown field "sharing.timeSlicingConfig.intervall" '
        '(did you mean "interval"?), known fields: interval'
    )
    assert error.path == ("sharing", "timeSlicingConfig", "intervall")


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        (slicing(timeSlicingConfig={"replicas": 4}), "sharing.timeSlicingConfig.replicas"),
        (slicing(replicas=4), "sharing.replicas"),
        (raw(replicas=4), "replicas"),
        (mps(replicas=4), "sharing.mpsConfig.replicas"),
        (slicing("MigDeviceConfig", replicas=4), "sharing.replicas"),
    ],
    ids=["block", "sharing", "top", "mps", "mig"],
)
def test_replicas_are_answered_with_consumable_shares(parameters: dict[str, Any], place: str) -> None:
    assert str(refusal(parameters)) == (
        f'{DECODING}strict decoding error: unknown field "{place}": '
        "the number of sharers comes from consumable shares, not from TimeSlicing"
    )


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (raw(Sharing={}), 'unknown field "Sharing" (did you mean "sharing"?)'),
        (raw(interval="Long"), 'unknown field "interval" (it belongs in "sharing.timeSlicingConfig")'),
        (raw(strategy="MPS"), 'unknown field "strategy" (it belongs in "sharing")'),
        (raw(timeSlicingConfig={}), 'unknown field "timeSlicingConfig" (it belongs in "sharing")'),
        (slicing(multiUser=True), 'unknown field "sharing.multiUser" (it belongs in "sharing.mpsConfig")'),
        (
            raw(spec={}),
            'unknown field "spec": configs have no metadata and no spec, known fields: apiVersion',
        ),
        (mps(multi_user=True), 'unknown field "sharing.mpsConfig.multi_user" (did you mean "multiUser"?)'),
        (slicing("MigDeviceConfig", timeSlicingConfig={}), "a MIG device has no time-slice interval"),
        (slicing("MigDeviceConfig", mpsConfig={"x": 1}), 'unknown field "sharing.mpsConfig.x", known fields'),
        (sharing("MigDeviceConfig", strategy="MPS", timeSlicingConfig={}), "no time-slice interval"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_unknown_key_gets_a_hint(parameters: dict[str, Any], words: str) -> None:
    assert words in str(refusal(parameters))


def test_unknown_key_is_told_before_other_faults() -> None:
    assert 'unknown field "sharing.mpsConfig.x"' in str(refusal(mps(defaultActiveThreadPercentage=200, x=1)))


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_unknown_strategy_lists_the_valid_ones(kind: str) -> None:
    error = refusal(sharing(kind, strategy="timeslicing"))
    assert str(error) == (
        f"{VALIDATING}unknown GPU sharing strategy: timeslicing, "
        "supported GPU sharing strategies: TimeSlicing, MPS (at sharing.strategy)"
    )
    assert error.path == ("sharing", "strategy")


@pytest.mark.parametrize("fields", [{}, {"strategy": None}, {"Strategy": "MPS"}], ids=str)
def test_missing_strategy_lists_the_valid_ones(fields: dict[str, Any]) -> None:
    assert "supported GPU sharing strategies: TimeSlicing, MPS" in str(refusal(raw(sharing=fields)))


@pytest.mark.parametrize("interval", ["short", "Extended", ""])
def test_unknown_interval_lists_the_valid_ones(interval: str) -> None:
    assert str(refusal(slicing(timeSlicingConfig={"interval": interval}))) == (
        f"{VALIDATING}unknown time-slice interval: {interval}, supported time-slice intervals: "
        "Default, Short, Medium, Long (at sharing.timeSlicingConfig.interval)"
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1, "active thread percentage must not be negative"), (101, "must not be greater than 100")],
)
def test_percentage_out_of_range_is_refused(value: int, words: str) -> None:
    error = refusal(mps(defaultActiveThreadPercentage=value))
    assert str(error).startswith(VALIDATING + "active thread percentage must not be ")
    assert f"{words}, found {value} (at sharing.mpsConfig.defaultActiveThreadPercentage)" in str(error)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (slicing(mpsConfig={}), "cannot use MpsConfig with the 'TimeSlicing' strategy"),
        (
            sharing(strategy="MPS", timeSlicingConfig={}),
            "cannot use TimeSlicingConfig with the 'MPS' strategy",
        ),
    ],
    ids=["mps-block", "time-slicing-block"],
)
def test_block_of_the_other_strategy_is_refused(parameters: dict[str, Any], words: str) -> None:
    assert str(refusal(parameters)).startswith(VALIDATING + words)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (raw(sharing=[]), "sharing: want an object, found a list"),
        (raw(sharing="TimeSlicing"), 'sharing: want an object, found "TimeSlicing"'),
        (sharing(strategy=3), "sharing.strategy: want one of TimeSlicing, MPS, found 3"),
        (slicing(timeSlicingConfig="Long"), 'sharing.timeSlicingConfig: want an object, found "Long"'),
        (slicing(timeSlicingConfig={"interval": 3}), "want one of Default, Short, Medium, Long, found 3"),
        (mps(defaultActiveThreadPercentage=True), "want an integer, found true"),
        (mps(defaultActiveThreadPercentage="50"), 'want an integer, found "50"'),
        (mps(defaultActiveThreadPercentage=50.0), "want an integer, found 50.0"),
        (mps(multiUser="yes"), 'sharing.mpsConfig.multiUser: want true or false, found "yes"'),
        (mps(multiUser=1), "sharing.mpsConfig.multiUser: want true or false, found 1"),
        (mps(defaultPinnedDeviceMemoryLimit="ten"), 'such as 512Mi or 10Gi, found "ten"'),
        (mps(defaultPinnedDeviceMemoryLimit=True), "such as 512Mi or 10Gi, found true"),
        (mps(defaultPerDevicePinnedMemoryLimit=["1Gi"]), "to quantity, found a list"),
        (
            mps(defaultPerDevicePinnedMemoryLimit={"0": "1Gi", "1": None}),
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.1: want a Kubernetes quantity",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_value_of_another_kind_is_refused(parameters: dict[str, Any], words: str) -> None:
    message = str(refusal(parameters))
    assert message.startswith(DECODING)
    assert words in message


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, 'field "apiVersion" is missing, valid: '),
        ({"kind": "GpuConfig"}, 'field "apiVersion" is missing, valid: '),
        ({"apiVersion": API_VERSION}, 'field "kind" is missing, valid: '),
        ({"apiVersion": API_VERSION, "kind": ""}, 'field "kind" is missing, valid: '),
        ({"apiVersion": API_VERSION, "Kind": "GpuConfig"}, 'field "kind" is missing (found "Kind"), valid: '),
        (
            {"apiVersion": "gpu.nvidia.com/v1alpha1", "kind": "GpuConfig"},
            'apiVersion "gpu.nvidia.com/v1alpha1"',
        ),
        (raw("gpuconfig"), 'unknown kind "gpuconfig" (did you mean "GpuConfig"?)'),
        ({"apiVersion": API_VERSION, "kind": ["GpuConfig"]}, "kind: want a string, found a list"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_wrong_type_lists_the_valid_ones(parameters: dict[str, Any], words: str) -> None:
    message = str(refusal(parameters))
    assert message.startswith(DECODING)
    assert words in message
    assert f"valid: apiVersion {API_VERSION} with kind GpuConfig or MigDeviceConfig" in message


@pytest.mark.parametrize("kind", ["VfioDeviceConfig", "ComputeDomainChannelConfig", "ComputeDomainDaemonConfig"])
def test_kind_of_another_device_is_not_recognized(kind: str) -> None:
    assert str(refusal(raw(kind))) == (
        f'runtime object is not a recognized configuration: kind "{kind}", valid kinds: GpuConfig, MigDeviceConfig'
    )


def test_repeated_key_is_refused_with_its_path() -> None:
    text = json.dumps(slicing()).replace('"strategy":', '"strategy": "MPS", "strategy":')
    error = refusal(text)
    assert str(error) == f'{DECODING}strict decoding error: duplicate field "sharing.strategy"'
    assert error.path == ("sharing", "strategy")


@pytest.mark.parametrize("form", ["text", "bytes", "object"])
def test_parameters_over_the_limit_are_refused_with_their_size(form: str) -> None:
    text = json.dumps(raw(sharing=None), separators=(",", ":"))
    text = text[:-1] + ',"x":"' + "y" * (10241 - len(text) - 7) + '"}'
    given = {"text": text, "bytes": text.encode(), "object": json.loads(text)}[form]
    assert str(refusal(given)) == f"{DECODING}the parameters are 10241 bytes long, the limit is 10240"


def test_parameters_at_the_limit_are_read() -> None:
    text = json.dumps(raw())
    assert decode(text + " " * (10240 - len(text))) == GpuConfig()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (None, "there are no parameters"),
        ("", "not valid JSON"),
        ("null", "found null"),
        ("[]", "found a list"),
        ('"x"', 'found "x"'),
        (b"\xff\xfe", "not valid JSON: 'utf-8' codec"),
        ('{"x": NaN}', "NaN is not a JSON number"),
        ('{"x": -Infinity}', "-Infinity is not a JSON number"),
        ({"x": float("inf")}, "not valid JSON"),
        ('{"x":' * 2000, "nested too deeply"),
        ("[" * 10000, "nested too deeply"),
        ('{"x": ' + "9" * 5000 + "}", "not valid JSON"),
        ({"x": {1, 2}}, "not valid JSON"),
        (raw("\ud800"), "not valid JSON"),
        (json.dumps(raw("\ud800")), "not valid JSON"),
        ([raw()], "found a list"),
    ],
    ids=[
        "none", "empty", "null", "list", "text", "bytes", "nan", "infinity", "infinite-float", "deep-object",
        "deep-list", "huge-number", "set", "surrogate", "escaped-surrogate", "not-a-mapping",
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", list(Mode))
def test_input_that_is_no_json_object_is_refused(parameters: Any, words: str, mode: Mode) -> None:
    message = str(refusal(parameters, mode))
    assert message.startswith(DECODING)
    assert words in message


@pytest.mark.parametrize("text", ["x\ny", "x" * 5000, "\x1b[31m", "\u202e"], ids=["newline", "long", "escape", "bidi"])
def test_error_is_one_short_printable_line(text: str) -> None:
    for parameters in (
        raw(text),
        raw(**{text: 1}),
        sharing(strategy=text),
        mps(defaultPinnedDeviceMemoryLimit=text),
    ):
        message = str(refusal(parameters))
        assert message.isprintable()
        assert len(message) <= 400


def test_field_names_of_python_are_no_keys() -> None:
    assert 'unknown field "sharing.time_slicing_config"' in str(refusal(slicing(time_slicing_config={})))


def test_brackets_in_texts_are_no_nesting() -> None:
    assert 'unknown field "x"' in str(refusal(raw(x='["' * 40)))


@pytest.mark.parametrize(("depth", "words"), [(31, 'unknown field "x"'), (32, "nested too deeply")])
def test_nesting_has_a_fixed_limit(depth: int, words: str) -> None:
    text = json.dumps(raw(x=0)).replace('"x": 0', '"x": ' + "[" * depth + "]" * depth)
    assert words in str(refusal(text))
