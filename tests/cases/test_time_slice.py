"""Field cases on sharing a card in turns: who shares with whom, and who may set the turns back."""

from importlib import resources
from pathlib import Path

import pytest
import yaml

from dra_driver.commands.main import main
from tests.builders import config_entry, gpu_config, result, time_slicing
from tests.cases.driver import U0, Driver, nothing_left, set_call

LONG = config_entry(time_slicing("Long"), "gpu")

# The forms of a shared claim that people have in their repositories: as written today, and as written for v1beta1.
PARAMETERS = "{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: TimeSlicing%s}}"
FORMS = {
    "v1": (
        "resource.k8s.io/v1",
        "{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}",
        PARAMETERS % ", timeSlicingConfig: {interval: Long}",
    ),
    "v1beta1 flat, no interval": (
        "resource.k8s.io/v1beta1",
        "{name: gpu, deviceClassName: gpu.nvidia.com}",
        PARAMETERS % "",
    ),
}

# 58


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_old_and_new_forms_of_a_shared_claim_are_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: tuple[str, str, str], kind: str
) -> None:
    version, request, parameters = form
    opaque = f"{{driver: gpu.nvidia.com, parameters: {parameters}}}"
    devices = f"{{devices: {{requests: [{request}], config: [{{requests: [gpu], opaque: {opaque}}}]}}}}"
    spec = devices if kind == "ResourceClaim" else f"{{spec: {devices}}}"
    manifest = tmp_path / "claim.yaml"
    manifest.write_text(f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: trainer-gpu}}, spec: {spec}}}\n")
    assert main(["validate", "--feature-gates=TimeSlicingSettings=true", str(manifest)]) == 0
    assert "error" not in capsys.readouterr().out


def test_template_that_asks_for_time_slicing_is_told_that_nothing_is_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = resources.files("dra_driver.simulator").joinpath("examples", "claim-template.yaml").read_text()
    template = next(obj for obj in yaml.safe_load_all(example) if obj["kind"] == "ResourceClaimTemplate")
    opaque = {"driver": "gpu.nvidia.com", "parameters": time_slicing("Long")}
    template["spec"]["spec"]["devices"]["config"] = [{"opaque": opaque}]
    manifest = tmp_path / "template.yaml"
    manifest.write_text(yaml.safe_dump(template))
    main(["validate", "--feature-gates=TimeSlicingSettings=true", str(manifest)])
    assert "ResourceClaim" in capsys.readouterr().out


@pytest.mark.parametrize(
    "sharing",
    [
        {"strategy": "TimeSlicing"},
        {"strategy": "TimeSlicing", "timeSlicingConfig": {}},
        {"strategy": "TimeSlicing", "timeSlicingConfig": None},
        {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": None}},
    ],
    ids=["no block", "empty block", "null block", "null interval"],
)
def test_time_slicing_without_an_interval_means_default(driver: Driver, sharing: dict[str, object]) -> None:
    driver.prepare(driver.claim("shared-gpu", [result()], config_entry(gpu_config(sharing), "gpu")))
    assert driver.tool_calls() == [set_call(U0, 0)]


# 61


def test_slice_stays_until_the_last_sharer_leaves_whatever_a_monitor_does(driver: Driver) -> None:
    monitor = driver.claim("monitor", [result(adminAccess=True)])
    first = driver.claim("first", [result(shareID="00000000-0000-4000-a000-000000000001")], LONG)
    last = driver.claim("last", [result(shareID="00000000-0000-4000-a000-000000000002")], LONG)
    for claim in (monitor, first, last):
        driver.prepare(claim)
    assert driver.unprepare(first) == [""]
    assert driver.time_slice(U0) == 3
    driver.restart()
    assert driver.unprepare(last) == [""]
    assert driver.time_slice(U0) == 0
    assert driver.tool_calls() == [set_call(U0, 3), set_call(U0, 0)]
    assert list(driver.held()) == ["monitor"]


# --gpu-control=observe


def test_observing_driver_gives_a_claim_what_its_card_has_already(stopped: Driver) -> None:
    stopped.start("--gpu-control=observe")
    claim = stopped.claim("default", [result()], config_entry(time_slicing("Default"), "gpu"))
    assert stopped.prepare(claim)
    assert stopped.unprepare(claim) == [""]
    assert stopped.tool_calls() == []


def test_observing_driver_refuses_what_it_would_have_to_set(stopped: Driver) -> None:
    stopped.start("--gpu-control=observe")
    assert "--gpu-control=observe" in stopped.refusal(stopped.claim("long", [result()], LONG))
    assert stopped.tool_calls() == []
    assert nothing_left(stopped)
