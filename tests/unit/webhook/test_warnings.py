import pytest

from dra_driver.features import parse_gates
from dra_driver.webhook.judgement import judge
from dra_driver.webhook.reviews import answer, parse
from tests.unit.webhook.builders import config, encoded, parameters, request, review

ON = "TimeSlicingSettings=true"


def judged(document, gates=ON):
    return judge(parse(encoded(document)), parse_gates(gates))


def test_time_slicing_in_a_template_is_warned_about():
    verdict = judged(review(config(parameters()), resource="resourceclaimtemplates"))

    (warning,) = verdict.warnings
    assert verdict.refused == ""
    assert "a GPU of its own" in warning
    assert "resourceClaimName" in warning


def test_warnings_reach_the_client_whole():
    last = [config(None, driver="other.example.com")] * 31 + [config(parameters())]
    asked = parse(encoded(review(*last, resource="resourceclaimtemplates")))
    verdict = judge(asked, parse_gates(ON))

    assert tuple(answer(asked, verdict)["response"]["warnings"]) == verdict.warnings


def test_template_is_not_warned_about_where_claims_get_shares():
    document = review(config(parameters()), resource="resourceclaimtemplates")

    assert judged(document, f"{ON},ConsumableShares=true").warnings == ()


def test_config_that_fits_none_of_the_requests_is_warned_about():
    document = review(config(parameters(kind="MigDeviceConfig", sharing=None)))

    (warning,) = judged(document).warnings
    assert warning.endswith("parameters.kind: MigDeviceConfig fits none of the requests, so it changes nothing")


def test_time_slicing_of_a_mig_device_is_warned_about():
    mig = parameters({"strategy": "TimeSlicing"}, kind="MigDeviceConfig")

    (warning,) = judged(review(config(mig), requests=[request("gpu", deviceClassName="mig.nvidia.com")])).warnings

    assert warning.endswith("sharing.strategy: a MIG device has no time slice, so TimeSlicing changes nothing on it")


SHORT = parameters({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}})
TWO = [request("a"), request("b")]


@pytest.mark.parametrize(
    ("earlier", "later", "overridden"),
    [
        ([], [], True),
        (["a"], [], True),
        (["a"], ["a"], True),
        (["a"], ["b", "a"], True),
        ([], ["a"], False),
        (["a", "b"], ["a"], False),
        (["a"], ["b"], False),
    ],
)
def test_config_whose_devices_all_have_a_later_one_is_warned_about(earlier, later, overridden):
    document = review(config(SHORT, requests=earlier), config(parameters(), requests=later), requests=TWO)

    expected = "spec.devices.config[0]: has no effect: config[1] is for the same requests, and the later wins"
    assert judged(document).warnings == ((expected,) if overridden else ())


def test_config_of_an_alternative_is_overridden_by_one_for_its_request():
    requests = [{"name": "a", "firstAvailable": [{"name": "x", "deviceClassName": "big"}]}]
    document = review(config(SHORT, requests=["a/x"]), config(parameters(), requests=["a"]), requests=requests)

    assert "config[0]: has no effect" in judged(document).warnings[0]


def test_config_of_another_kind_overrides_nothing():
    both = [config(parameters()), config(parameters(None, kind="MigDeviceConfig"))]
    requests = [request("a"), request("b", deviceClassName="mig.nvidia.com")]

    assert judged(review(*both, requests=requests)).warnings == ()


def test_each_config_is_told_once_that_it_is_overridden():
    warnings = judged(review(*[config(parameters())] * 3)).warnings

    assert [text.partition(" is for")[0] for text in warnings] == [
        "spec.devices.config[0]: has no effect: config[1]",
        "spec.devices.config[1]: has no effect: config[2]",
    ]
