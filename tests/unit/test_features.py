import pytest

from dra_driver import features
from dra_driver.features import Scope, closest, parse_gates
from dra_driver.model.errors import SettingError


def error_of(text: str) -> str:
    with pytest.raises(SettingError) as caught:
        parse_gates(text)
    return str(caught.value)


def test_gates_have_their_defaults_when_nothing_is_set():
    assert parse_gates("").enabled == {
        "IMEXDaemonsWithDNSNames",
        "ComputeDomainCliques",
        "CrashOnNVLinkFabricErrors",
        "ContextualLogging",
        "LoggingBetaOptions",
    }


def test_known_gates_are_those_of_the_nvidia_driver():
    assert {gate.name for gate in features.GATES} == {
        "TimeSlicingSettings",
        "MPSSupport",
        "PassthroughSupport",
        "DynamicMIG",
        "NVMLDeviceHealthCheck",
        "DeviceMetadata",
        "DRAListTypeAttributes",
        "FabricManagerPartitioning",
        "ConsumableShares",
        "IMEXDaemonsWithDNSNames",
        "ComputeDomainCliques",
        "CrashOnNVLinkFabricErrors",
        "HostManagedIMEXDaemon",
        "ContextualLogging",
        "LoggingAlphaOptions",
        "LoggingBetaOptions",
    }


@pytest.mark.parametrize(
    "text",
    [
        "TimeSlicingSettings=true",
        "TimeSlicingSettings=true,",
        ",TimeSlicingSettings=true,,",
        " TimeSlicingSettings = true , MPSSupport=false\n",
        "TimeSlicingSettings=false,TimeSlicingSettings=true",
        "TimeSlicingSettings=1",
        "TimeSlicingSettings=T",
        "TimeSlicingSettings=TRUE",
    ],
)
def test_a_gate_is_on_when_the_text_says_so(text):
    assert "TimeSlicingSettings" in parse_gates(text)


@pytest.mark.parametrize("value", ["false", "0", "f", "F", "FALSE", "False"])
def test_a_gate_is_off_when_the_text_says_so(value):
    assert "LoggingBetaOptions" not in parse_gates(f"LoggingBetaOptions={value}")


def test_the_last_entry_wins_when_a_gate_is_named_twice():
    assert "TimeSlicingSettings" not in parse_gates("TimeSlicingSettings=true,TimeSlicingSettings=false")


def test_an_unknown_gate_names_the_near_one():
    message = error_of("TimeSlicing=true")

    assert "unknown feature gate TimeSlicing, did you mean TimeSlicingSettings?" in message


def test_an_unknown_gate_lists_all_gates():
    message = error_of("Frobnicate=true")

    assert all(gate.name in message for gate in features.GATES)
    assert "did you mean" not in message


@pytest.mark.parametrize("text", ["timeslicingsettings=true", "TIMESLICINGSETTINGS=true"])
def test_gate_names_in_the_wrong_case_are_unknown_but_recognised(text):
    assert "did you mean TimeSlicingSettings?" in error_of(text)


def test_a_gate_without_value_is_refused():
    assert "feature gate MPSSupport has no value" in error_of("MPSSupport")


@pytest.mark.parametrize("value", ["yes", "", "on", "2", "true=false"])
def test_a_value_that_is_no_bool_is_refused_and_shown(value):
    assert f'feature gate MPSSupport has value "{value}", must be true or false' in error_of(f"MPSSupport={value}")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("DynamicMIG", "PassthroughSupport"),
        ("DynamicMIG", "NVMLDeviceHealthCheck"),
        ("DynamicMIG", "MPSSupport"),
        ("PassthroughSupport", "NVMLDeviceHealthCheck"),
    ],
)
def test_exclusive_gates_are_refused_together_and_both_named(first, second):
    message = error_of(f"{second}=true,{first}=true")

    assert (
        f"feature gate validation failed: feature gate {first} is currently mutually exclusive with {second}" in message
    )


def test_device_metadata_needs_passthrough():
    assert "feature gate DeviceMetadata requires PassthroughSupport to also be enabled" in error_of(
        "DeviceMetadata=true"
    )


def test_device_metadata_is_accepted_with_passthrough():
    assert "DeviceMetadata" in parse_gates("DeviceMetadata=true,PassthroughSupport=true")


def test_cliques_need_dns_names():
    assert "ComputeDomainCliques requires IMEXDaemonsWithDNSNames" in error_of("IMEXDaemonsWithDNSNames=false")


def test_dns_names_can_be_off_together_with_cliques():
    gates = parse_gates("IMEXDaemonsWithDNSNames=false,ComputeDomainCliques=false")

    assert "IMEXDaemonsWithDNSNames" not in gates


def test_all_alpha_alone_is_refused_because_it_turns_on_exclusive_gates():
    message = error_of("AllAlpha=true")

    assert "mutually exclusive" in message
    assert "AllAlpha" in message


@pytest.mark.parametrize("order", ["{0},AllAlpha=true", "AllAlpha=true,{0}"])
def test_a_named_gate_beats_its_stage_in_any_order(order):
    gates = parse_gates(order.format("DynamicMIG=false,PassthroughSupport=false,DeviceMetadata=false"))

    assert "DynamicMIG" not in gates
    assert "TimeSlicingSettings" in gates


def test_all_beta_off_switches_beta_gates_off():
    gates = parse_gates("AllBeta=false")

    assert gates.enabled == frozenset()


def test_gates_that_this_version_does_not_act_on_are_told():
    gates = parse_gates("MPSSupport=true,DeviceMetadata=false,DRAListTypeAttributes=true,TimeSlicingSettings=true")

    assert gates.not_implemented == ("DRAListTypeAttributes",)


@pytest.mark.parametrize("text", ["HostManagedIMEXDaemon=true", "CrashOnNVLinkFabricErrors=true", ""])
def test_gates_of_compute_domains_are_ignored_silently(text):
    assert parse_gates(text).not_implemented == ()


def test_gates_write_themselves_in_the_form_that_is_read():
    gates = parse_gates("TimeSlicingSettings=true,ContextualLogging=false")

    assert parse_gates(str(gates)) == gates


def test_asking_for_a_gate_that_does_not_exist_is_a_programming_error():
    with pytest.raises(KeyError):
        assert "TimeSlicing" not in parse_gates("")


def test_time_slicing_mps_and_shares_are_built():
    built = {gate.name for gate in features.GATES if gate.scope is Scope.BUILT}
    assert built == {"TimeSlicingSettings", "MPSSupport", "ConsumableShares"}


def test_closest_gives_none_for_a_word_that_is_like_none():
    assert closest("zzz", ["alpha", "beta"]) is None
