import pytest

from dra_driver.claims.configs import effective_sharing
from dra_driver.features import parse_gates
from dra_driver.model.claims import AllocatedDevice, ConfigSource, OpaqueConfig
from dra_driver.model.errors import BadConfig
from dra_driver.webhook.judgement import judge
from dra_driver.webhook.reviews import parse
from dra_driver_api.config import decode
from tests.builders import make_gpu
from tests.unit.webhook.builders import config, encoded, parameters, request, review, spec

ON = "TimeSlicingSettings=true"
VERSIONS = ["v1", "v1beta1", "v1beta2"]
RESOURCES = ["resourceclaims", "resourceclaimtemplates"]


def judged(document, gates=ON):
    return judge(parse(encoded(document)), parse_gates(gates))


def with_alternatives(*alternatives):
    return [{"name": "gpu", "firstAvailable": [{"name": n, "deviceClassName": c} for n, c in alternatives]}]


# What is checked.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", RESOURCES)
def test_good_config_passes_in_every_version(version, resource):
    assert judged(review(config(parameters()), version=version, resource=resource)).refused == ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("resource", "path"),
    [("resourceclaims", "spec.devices.config[0]"), ("resourceclaimtemplates", "spec.spec.devices.config[0]")],
)
def test_misspelt_key_is_refused_with_its_path_in_every_version(version, resource, path):
    wrong = config(parameters({"strategy": "TimeSlicing", "timeSlicingConfig": {"intervall": "Short"}}))

    verdict = judged(review(wrong, version=version, resource=resource))

    assert verdict.reason == "Invalid"
    assert verdict.refused.startswith(
        f"1 configs failed to validate: {path}.opaque.parameters.sharing.timeSlicingConfig.intervall: "
        'error decoding config parameters: strict decoding error: unknown field "sharing.timeSlicingConfig.intervall"'
    )


@pytest.mark.parametrize("strategy", ["TimeSlicing", "MPS"])
def test_strategy_whose_gate_is_off_is_refused_in_the_words_of_a_prepare(strategy):
    sharing = {"strategy": strategy}
    refused = judged(review(config(parameters(sharing))), gates="").refused

    with pytest.raises(BadConfig) as at_prepare:
        effective_sharing(*allocated(parameters(sharing)), strategies={})
    words = str(at_prepare.value).partition(" (device ")[0]
    assert f"unknown GPU sharing strategy: {strategy}; " in words
    assert refused.endswith(words)


def allocated(given):
    """Arguments of ``effective_sharing`` for a whole GPU whose claim has this config."""
    entry = OpaqueConfig(source=ConfigSource.CLAIM, requests=(), parameters=given, index=0)
    return AllocatedDevice(request="gpu", device="gpu-0", pool="node-a"), make_gpu(), [(entry, decode(given))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "want an object with apiVersion and kind"),
        ([], "want an object with apiVersion and kind"),
        ({}, 'field "apiVersion" is missing'),
        (parameters(kind="GpuConf"), 'unknown kind "GpuConf" (did you mean "GpuConfig"?)'),
        (parameters({"strategy": "TimeSharing"}), "unknown GPU sharing strategy: TimeSharing, supported"),
        (parameters({"strategy": "TimeSlicing", "timeSlicingConfig": {"replicas": 4}}), "consumable shares"),
        (parameters({"strategy": "TimeSlicing", "mpsConfig": {}}), "cannot use MpsConfig with the 'TimeSlicing'"),
        (parameters(None, padding="x" * 11_000), "the limit is 10240"),
        (parameters(None, kind="VfioDeviceConfig"), 'not a recognized configuration: kind "VfioDeviceConfig"'),
        (parameters(None, kind="ComputeDomainChannelConfig"), "not a recognized configuration"),
    ],
)
def test_parameters_that_a_prepare_refuses_are_refused(given, said):
    refused = judged(review(config(given))).refused

    assert refused.startswith("1 configs failed to validate: spec.devices.config[0].opaque.parameters")
    assert said in refused


def test_config_of_the_wrong_kind_for_the_request_it_names_is_refused():
    document = review(
        config(parameters(kind="GpuConfig"), requests=["gpu"]),
        requests=[request("gpu", deviceClassName="mig.nvidia.com")],
    )

    assert 'cannot apply GpuConfig to a device of type "mig"' in judged(document).refused


def test_sharing_with_admin_access_is_refused():
    document = review(config(parameters()), requests=[request("gpu", adminAccess=True)])

    assert 'request "gpu" has adminAccess' in judged(document).refused


def test_every_wrong_config_is_counted_and_named():
    wrong = config(parameters({"strategy": "X"}))

    refused = judged(review(wrong, config(parameters()), wrong)).refused

    assert refused.startswith("2 configs failed to validate: spec.devices.config[0].")
    assert "; spec.devices.config[2]." in refused
    assert "config[1]" not in refused


# What is left alone.


@pytest.mark.parametrize("driver", ["gpu.example.com", "compute-domain.nvidia.com", "gpu.nvidia.co", ""])
@pytest.mark.parametrize("given", [None, {"anything": ["goes"]}, parameters({"strategy": "X"})])
def test_configs_of_other_drivers_are_not_looked_at(driver, given):
    verdict = judged(review(config(given, driver=driver), config(parameters())))

    assert (verdict.refused, verdict.warnings) == ("", ())


@pytest.mark.parametrize("devices", [None, [], {"config": None}, {"config": [None, 3]}])
def test_form_of_the_claim_is_left_to_the_api_server(devices):
    document = review()
    document["request"]["object"]["spec"]["devices"] = devices

    assert judged(document).refused == ""


def test_fields_and_requests_of_versions_to_come_are_left_alone():
    document = review(config(parameters(), requests=["gpu"]), requests=[{"name": "gpu", "someday": {}}])
    document["request"]["object"]["spec"]["devices"]["later"] = {}

    assert judged(document).refused == ""


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_pass_without_an_object(operation):
    assert judged(review(operation=operation, object=None)).refused == ""


def test_create_without_an_object_is_a_bad_request():
    verdict = judged(review(object=None))

    assert (verdict.refused, verdict.reason) == ("CREATE without an object", "BadRequest")


@pytest.mark.parametrize(
    "resource",
    [
        {"group": "", "version": "v1", "resource": "pods"},
        {"group": "resource.k8s.io", "version": "v1", "resource": "resourceslices"},
        {"group": "resource.k8s.io", "version": "v1alpha3", "resource": "resourceclaims"},
        {"group": "x" * 10_000, "version": "v1", "resource": "resourceclaims"},
    ],
    ids=["pods", "slices", "old version", "long"],
)
def test_resource_that_was_never_asked_for_is_a_bad_request(resource):
    document = review()
    document["request"]["resource"] = resource

    verdict = judged(document)

    assert verdict.reason == "BadRequest"
    assert verdict.refused.startswith("want resourceclaims or resourceclaimtemplates of resource.k8s.io")
    assert len(verdict.refused) <= 400


def update(old, new, resource="resourceclaims"):
    def wrap(found):
        return {"metadata": {"name": "c"}, "spec": {"spec": found} if resource != "resourceclaims" else found}

    return review(operation="UPDATE", resource=resource, object=wrap(new), oldObject=wrap(old))


@pytest.mark.parametrize("resource", RESOURCES)
def test_update_that_leaves_a_wrong_spec_as_it_is_passes_so_that_finalizers_can_go(resource):
    wrong = spec(config(parameters({"strategy": "X"})))

    assert judged(update(wrong, wrong, resource)).refused == ""


def test_update_to_a_wrong_spec_is_refused():
    good, wrong = spec(config(parameters())), spec(config(parameters({"strategy": "X"})))

    assert "unknown GPU sharing strategy: X" in judged(update(good, wrong)).refused


# Whatever comes, an answer that is short and soon there.


def test_a_thousand_blocks_are_refused_without_looking_at_all_of_them():
    refused = judged(review(*[config(parameters({"strategy": "X"}))] * 1000)).refused

    assert "spec.devices.config: 1000 entries, at most 32 are allowed" in refused
    assert refused.endswith("and 25 more")
    assert len(refused) < 4000


def test_names_and_requests_without_end_are_not_compared_with_each_other():
    names = [f"{'a' * 100}{number}" for number in range(5000)]
    wrong = config(parameters(), requests=names)
    document = review(*[wrong] * 32, requests=[request(name) for name in names])

    assert "5000 entries, at most 32 are allowed" in judged(document).refused


def test_alternatives_without_end_are_not_compared():
    alternatives = with_alternatives(*[(f"{'a' * 60}{number}", "gpu.nvidia.com") for number in range(20_000)])

    assert (
        'the claim has no request "aaa"'
        in judged(review(config(parameters(), requests=["aaa"]), requests=alternatives)).refused
    )


def test_every_unknown_name_of_every_config_is_told_in_an_answer_that_stays_short():
    names = [f"{'b' * 60}{number}" for number in range(32)]
    many = [
        with_alternatives(*[(f"{'c' * 60}{n}", "gpu.nvidia.com") for n in range(8)])[0] | {"name": n} for n in names
    ]
    wrong = config(parameters(), requests=[f"{'a' * 60}{number}" for number in range(32)])

    refused = judged(review(*[wrong] * 32, requests=many)).refused

    assert refused.startswith("32 configs failed to validate: ")
    assert refused.endswith(f"and {32 * 32 - 8} more")
    assert len(refused) < 6000
