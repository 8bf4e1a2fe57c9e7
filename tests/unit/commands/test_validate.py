import io
import json
import sys
import textwrap

import pytest

from dra_driver.commands import files
from dra_driver.commands.main import main

CLAIM = """\
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaim
    metadata:
      name: trainer-gpu
    spec:
      devices:
        requests:
        - name: gpu
          exactly:
            deviceClassName: gpu.nvidia.com
        config:
        - requests: [gpu]
          opaque:
            driver: gpu.nvidia.com
            parameters:
              apiVersion: resource.nvidia.com/v1beta1
              kind: GpuConfig
              sharing:
                strategy: TimeSlicing
                timeSlicingConfig:
                  interval: Long
"""
CLAIM = textwrap.dedent(CLAIM)

TEMPLATE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu-each}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]
      config:
      - opaque:
          driver: gpu.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: GpuConfig
            sharing: {strategy: TimeSlicing}
"""

FLAT_TEMPLATE = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaimTemplate
metadata: {name: shared}
spec:
  spec:
    devices:
      requests: [{name: shared-gpu, deviceClassName: gpu.nvidia.com}]
      config:
      - requests: [shared-gpu]
        opaque:
          driver: gpu.nvidia.com
          parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: TimeSlicing}}
"""

CLASS = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: shared-gpu}
spec:
  extendedResourceName: nvidia.com/gpu
  config:
  - opaque:
      driver: gpu.nvidia.com
      parameters:
        apiVersion: resource.nvidia.com/v1beta1
        kind: GpuConfig
        sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Short}}
"""

ON = ("--feature-gates", "TimeSlicingSettings=true")


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Validates a text: the exit code, and the findings as (line, severity, path, message)."""
    monkeypatch.chdir(tmp_path)

    def run(text, *flags):
        (tmp_path / "manifest.yaml").write_text(text)
        code = main(["validate", "manifest.yaml", "-o", "json", *flags])
        report = json.loads(capsys.readouterr().out)
        return code, [(f["line"], f["severity"], f["path"], f["message"]) for f in report["findings"]]

    return run


def changed(old, new, text=CLAIM):
    assert old in text
    return text.replace(old, new)


def only(found):
    (finding,) = found
    return finding


@pytest.mark.parametrize(
    "text", [CLAIM, FLAT_TEMPLATE.replace("ResourceClaimTemplate", "X"), CLASS], ids=["claim", "other kind", "class"]
)
def test_a_good_manifest_has_no_problem(check, text):
    code, found = check(text, *ON)

    assert code == 0
    assert [finding for finding in found if finding[1] == "error"] == []


def test_a_good_claim_is_silent_when_the_gate_is_known_to_be_on(check):
    assert check(CLAIM, *ON) == (0, [])


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_claims_with_exactly_are_read_in_both_versions(check, version):
    text = changed("resource.k8s.io/v1", f"resource.k8s.io/{version}")

    assert check(text, *ON) == (0, [])


def test_a_v1beta1_template_has_its_fields_in_the_request(check):
    code, found = check(FLAT_TEMPLATE, *ON)

    assert code == 0
    assert only(found)[1] == "note"


def test_an_unknown_key_is_found_on_its_line(check):
    code, found = check(changed("interval: Long", "intervall: Long"), *ON)

    line, severity, path, message = only(found)
    assert (code, line, severity) == (1, 21, "error")
    assert path == "spec.devices.config[0].opaque.parameters.sharing.timeSlicingConfig.intervall"
    assert 'unknown field "sharing.timeSlicingConfig.intervall"' in message


def test_an_unknown_strategy_is_found_on_its_line(check):
    code, found = check(changed("TimeSlicing\n", "TimeSharing\n"), *ON)

    line, _, path, message = only(found)
    assert (code, line, path[-17:]) == (1, 19, ".sharing.strategy")
    assert "supported GPU sharing strategies: TimeSlicing, MPS" in message


def test_a_missing_key_is_found_on_the_line_of_its_parent(check):
    _, found = check(changed("          kind: GpuConfig\n", "          Kind: GpuConfig\n"), *ON)

    line, _, path, _ = only(found)
    assert (line, path) == (15, "spec.devices.config[0].opaque.parameters.kind")


def test_replicas_inside_the_config_are_explained(check):
    _, found = check(changed("interval: Long", "replicas: 4"), *ON)

    assert "consumable shares" in only(found)[3]


def test_lines_count_over_documents(check):
    text = f"# first\n---\n{CLAIM}---\n\n{changed('interval: Long', 'interval: Forever')}"

    _, found = check(text, *ON)

    assert only(found)[0] == 2 + 21 + 2 + 21


def test_a_config_that_names_no_request_of_the_claim_is_a_problem(check):
    code, found = check(changed("requests: [gpu]", "requests: [gpus]"), *ON)

    assert code == 1
    assert only(found) == (
        12,
        "error",
        "spec.devices.config[0].requests[0]",
        'the claim has no request "gpus", did you mean gpu?',
    )


@pytest.mark.parametrize("requests", ["requests: []", "requests: null", "requests:"])
def test_an_empty_request_list_means_all(check, requests):
    assert check(changed("requests: [gpu]", requests), *ON) == (0, [])


ALTERNATIVES = changed(
    "      exactly:\n        deviceClassName: gpu.nvidia.com\n",
    "      firstAvailable:\n"
    "      - {name: big, deviceClassName: gpu.nvidia.com}\n"
    "      - {name: small, deviceClassName: mig.nvidia.com}\n",
)


def test_an_alternative_can_be_named(check):
    assert check(changed("[gpu]", "[gpu/big]", ALTERNATIVES), *ON) == (0, [])


def test_an_alternative_that_does_not_exist_is_a_problem(check):
    _, found = check(changed("[gpu]", "[gpu/bigg]", ALTERNATIVES), *ON)

    assert "did you mean gpu/big?" in only(found)[3]


def test_a_config_that_covers_an_alternative_of_another_type_is_a_problem(check):
    code, found = check(ALTERNATIVES, *ON)

    assert code == 1
    assert 'cannot apply GpuConfig to a device of type "mig" (request: gpu/small' in only(found)[3]


def test_a_config_of_the_wrong_kind_is_a_problem_where_the_request_is_named(check):
    code, found = check(changed("deviceClassName: gpu.nvidia.com", "deviceClassName: mig.nvidia.com"), *ON)

    line, _, path, message = only(found)
    assert (code, line) == (1, 17)
    assert path.endswith("parameters.kind")
    assert 'cannot apply GpuConfig to a device of type "mig"' in message


def test_a_config_of_the_wrong_kind_for_all_requests_changes_nothing(check):
    text = changed("deviceClassName: gpu.nvidia.com", "deviceClassName: mig.nvidia.com")

    code, found = check(changed("requests: [gpu]", "requests: []", text), *ON)

    assert (code, only(found)[1]) == (0, "note")


def test_a_class_of_the_users_own_is_not_judged(check):
    assert check(changed("deviceClassName: gpu.nvidia.com", "deviceClassName: big-gpus"), *ON) == (0, [])


@pytest.mark.parametrize("driver", ["gpu.nvidia.co", "gpu.nvdia.com", "nvidia.com/gpu", "GPU.nvidia.com", "nvidia.com"])
def test_a_driver_name_that_is_almost_ours_is_a_problem(check, driver):
    code, found = check(changed("driver: gpu.nvidia.com", f"driver: {driver}"), *ON)

    line, _, path, message = only(found)
    assert (code, line, path) == (1, 14, "spec.devices.config[0].opaque.driver")
    assert "did you mean gpu.nvidia.com?" in message


@pytest.mark.parametrize(
    "driver", ["nic.example.com", "compute-domain.nvidia.com", "gpu.example.com", "gpu.amd.com", "gpu.intel.com"]
)
def test_configs_of_other_drivers_are_never_decoded(check, driver):
    text = changed("driver: gpu.nvidia.com", f"driver: {driver}")

    code, found = check(changed("kind: GpuConfig", "kind: Unheard", text), *ON)

    assert (code, only(found)[1]) == (0, "note")


def test_admin_access_with_sharing_is_a_problem(check):
    text = changed("        deviceClassName", "        adminAccess: true\n        deviceClassName")

    code, found = check(text, *ON)

    assert code == 1
    assert 'request "gpu" has adminAccess' in only(found)[3]


def test_admin_access_with_a_config_that_shares_nothing_is_fine(check):
    text = changed("        deviceClassName", "        adminAccess: true\n        deviceClassName")
    text = text[: text.index("          sharing:")]

    assert check(text, *ON) == (0, [])


def test_a_template_with_time_slicing_gets_a_hint_that_each_pod_has_its_own_gpu(check):
    code, found = check(TEMPLATE, *ON)

    line, severity, _, message = only(found)
    assert (code, line, severity) == (0, 14, "note")
    assert "a GPU of its own" in message
    assert "resourceClaimName" in message


def test_a_template_gets_no_hint_when_claims_can_share_a_gpu(check):
    assert check(TEMPLATE, "--feature-gates", "TimeSlicingSettings=true,ConsumableShares=true") == (0, [])


def test_the_gate_that_a_strategy_needs_is_noted_when_gates_are_not_known(check):
    code, found = check(CLAIM)

    assert (code, only(found)[1]) == (0, "note")
    assert "TimeSlicingSettings=true" in only(found)[3]


def test_a_gate_that_is_off_is_a_problem_in_the_words_of_the_event(check):
    code, found = check(CLAIM, "--feature-gates", "")

    assert code == 1
    assert "error validating GPU config: unknown GPU sharing strategy: TimeSlicing" in only(found)[3]
    assert "TimeSlicingSettings=true" in only(found)[3]


def test_bad_gates_are_wrong_usage(capsys, tmp_path):
    (tmp_path / "claim.yaml").write_text(CLAIM)

    assert main(["validate", str(tmp_path / "claim.yaml"), "--feature-gates", "TimeSlicing=true"]) == 2
    assert "did you mean TimeSlicingSettings?" in capsys.readouterr().err


MPS = CLAIM[: CLAIM.index("            timeSlicingConfig")].replace("TimeSlicing", "MPS")


def test_mps_is_noted_to_need_its_gate(check):
    code, found = check(MPS)

    assert (code, only(found)[1]) == (0, "note")
    assert "needs the driver's feature gate MPSSupport=true" in only(found)[3]


def test_mps_is_a_problem_in_the_words_of_the_event_when_its_gate_is_off(check):
    code, found = check(MPS, "--feature-gates", "TimeSlicingSettings=true")

    assert code == 1
    assert only(found)[3].startswith("error validating GPU config: unknown GPU sharing strategy: MPS; ")
    assert "MPSSupport=true" in only(found)[3]


def test_mps_is_fine_where_its_gate_is_on(check):
    assert check(MPS, "--feature-gates", "MPSSupport=true") == (0, [])


def test_two_daemons_for_one_claim_are_noted(check):
    request = MPS[MPS.index("    - name: gpu") : MPS.index("    config:")]
    entry = MPS[MPS.index("    - requests: [gpu]") :]
    text = MPS.replace(request, request + request.replace("gpu\n", "other\n", 1)) + entry.replace("[gpu]", "[other]")

    code, found = check(text, "--feature-gates", "MPSSupport=true")

    assert code == 0
    assert "an MPS control daemon of its own beside that of config[0]" in only(found)[3]


def test_mps_config_that_has_no_effect_has_no_daemon(check):
    entry = MPS[MPS.index("    - requests: [gpu]") :]

    _, found = check(MPS + entry, "--feature-gates", "MPSSupport=true")

    assert "has no effect: config[1]" in only(found)[3]


def test_a_device_class_is_checked(check):
    code, found = check(changed("Short", "short", CLASS), *ON)

    line, _, path, message = only(found)
    assert (code, line) == (1, 12)
    assert path == "spec.config[0].opaque.parameters.sharing.timeSlicingConfig.interval"
    assert "Default, Short, Medium, Long" in message


def test_requests_in_a_device_class_are_a_problem(check):
    _, found = check(changed("  - opaque:", "  - requests: [gpu]\n    opaque:", CLASS), *ON)

    assert "a DeviceClass has no requests" in only(found)[3]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("apiVersion: resource.nvidia.com/v1beta1\nkind: GpuConfig\nsharing: {strategy: Nope}\n", 3),
        ("apiVersion: resource.nvidia.com/v1alpha1\nkind: GpuConfig\n", 1),
        ("apiVersion: resource.nvidia.com/v1beta1\nkind: GpuConf\n", 2),
        ("kind: MigDeviceConfig\nsharing: {}\n", 1),
        ("apiVersion: resource.nvidia.com/v1beta1\nkind: GpuConfig\nspec: {}\n", 3),
    ],
    ids=["strategy", "version", "kind", "no version", "spec"],
)
def test_a_bare_config_is_checked(check, text, line):
    code, found = check(text, *ON)

    assert (code, only(found)[0], only(found)[1]) == (1, line, "error")


def test_a_good_bare_config_is_fine(check):
    assert check("apiVersion: resource.nvidia.com/v1beta1\nkind: GpuConfig\n", *ON) == (0, [])


def test_the_items_of_a_list_are_checked(check):
    items = textwrap.indent(changed("interval: Long", "interval: Forever"), "  ").replace("  api", "- api", 1)

    code, found = check(f"apiVersion: v1\nkind: List\nitems:\n{items}", *ON)

    line, _, path, _ = only(found)
    assert (code, line) == (1, 3 + 21)
    assert path.startswith("items[0].spec.devices.config[0]")


def test_json_is_read_even_with_tabs(check):
    text = (
        '{\n\t"apiVersion": "resource.nvidia.com/v1beta1",\n\t"kind": "GpuConfig",\n'
        '\t"sharing": {\n\t\t"strategy": "X"\n\t}\n}\n'
    )

    code, found = check(text, *ON)

    assert (code, only(found)[0], only(found)[2]) == (1, 5, "sharing.strategy")


def test_other_kinds_are_ignored_with_a_note(check):
    code, found = check("apiVersion: apps/v1\nkind: Deployment\nmetadata: {created: 2024-01-01}\n")

    assert (code, only(found)[1]) == (0, "note")
    assert "Deployment ignored" in only(found)[3]


@pytest.mark.parametrize("version", ["v1alpha3", "v2"])
def test_a_version_of_the_api_that_does_not_exist_is_a_problem(check, version):
    code, found = check(changed("resource.k8s.io/v1", f"resource.k8s.io/{version}"), *ON)

    assert (code, only(found)[0], only(found)[2]) == (1, 1, "apiVersion")


def test_a_misspelt_kind_is_a_problem(check):
    _, found = check(changed("kind: ResourceClaim", "kind: ResourceClaims"), *ON)

    assert "did you mean ResourceClaim?" in only(found)[3]


def test_a_flat_request_in_v1_is_a_problem(check):
    text = changed(
        "      exactly:\n        deviceClassName: gpu.nvidia.com\n", "      deviceClassName: gpu.nvidia.com\n"
    )

    code, found = check(text, *ON)

    assert (code, only(found)[0]) == (1, 9)
    assert "it belongs in exactly" in only(found)[3]


def test_devices_of_a_template_one_level_too_high_are_a_problem(check):
    code, found = check(changed("kind: ResourceClaim", "kind: ResourceClaimTemplate"), *ON)

    assert (code, only(found)[0], only(found)[2]) == (1, 6, "spec.devices")


def test_a_misspelt_field_beside_the_configs_is_a_problem(check):
    _, found = check(changed("    config:", "    configs:"), *ON)

    assert only(found)[3] == "unknown field, did you mean config?"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("    requests:\n", "    requests: x\n    was:\n", "spec.devices.requests"),
        ("      opaque:", "      opaqe:", "spec.devices.config[0]"),
        ("requests: [gpu]", "requests: gpu", "spec.devices.config[0].requests"),
        ("requests: [gpu]", "requests: [1]", "spec.devices.config[0].requests"),
    ],
)
def test_values_of_the_wrong_shape_are_problems(check, old, new, path):
    code, found = check(changed(old, new), *ON)

    assert code == 1
    assert path in [finding[2] for finding in found]


@pytest.mark.parametrize("parameters", ["null", "'{}'", "[]", "3"])
def test_parameters_that_are_no_object_are_a_problem(check, parameters):
    text = CLAIM[: CLAIM.index("          apiVersion: resource.nvidia")].replace(
        "parameters:", f"parameters: {parameters}"
    )

    code, found = check(text, *ON)

    assert (code, only(found)[0]) == (1, 15)


@pytest.mark.parametrize("document", ["- a", "just text", "3", "[]"])
def test_a_document_that_is_no_object_is_a_problem(check, document):
    code, found = check(document)

    assert (code, only(found)[1]) == (1, "error")


@pytest.mark.parametrize("text", ["", "---\n---\n", "# nothing\n", "null"])
def test_empty_documents_are_skipped(check, text):
    assert check(text) == (0, [])


def test_a_key_written_twice_is_found_on_its_second_line(check):
    text = changed("    strategy: TimeSlicing\n", "    strategy: MPS\n            strategy: TimeSlicing\n")

    code, found = check(text, *ON)

    assert (code, only(found)[0]) == (1, 20)
    assert "written twice" in only(found)[3]


def test_a_syntax_error_is_found_on_its_line_and_what_came_before_is_still_checked(check):
    code, found = check(f"{changed('Long', 'Forever')}---\na: [1\nb: 2\n", *ON)

    assert code == 1
    assert [finding[0] for finding in found] == [21, 24]


def test_a_helm_template_gets_a_hint(check):
    _, found = check("metadata:\n  name: {{ .Values.name }}\n")

    assert "helm template" in only(found)[3]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        "a: &a [*a]",
        "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
        "a: b\x00c",
        "? [a]\n: b",
        "a: !!python/object:os.system x",
        "%YAML 9.9\n---\na",
        "a: *nowhere",
        "kind: !!binary xxx",
    ],
    ids=["deep", "recursive", "bomb", "NUL", "list as key", "foreign tag", "version", "no anchor", "bad binary"],
)
def test_hostile_yaml_is_answered(check, text):
    code, found = check(text)

    assert code in (0, 1)
    assert len(found) == 1


def test_text_output_has_file_line_path_and_message(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "claim.yaml").write_text(changed("requests: [gpu]", "requests: [gpus]"))

    assert main(["validate", "claim.yaml", *ON]) == 1
    assert capsys.readouterr().out.splitlines() == [
        'claim.yaml:12: spec.devices.config[0].requests[0]: the claim has no request "gpus", did you mean gpu?',
        "1 file, 1 config of gpu.nvidia.com, 1 problem, 0 notes",
    ]


def test_notes_are_marked_in_text_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "claim.yaml").write_text(CLAIM)

    assert main(["validate", "claim.yaml"]) == 0
    assert capsys.readouterr().out.startswith("claim.yaml:19: note: spec.devices.config[0].")


def test_json_output_says_whether_all_is_well(tmp_path, capsys):
    (tmp_path / "claim.yaml").write_text(CLAIM)

    assert main(["validate", str(tmp_path / "claim.yaml"), "-o", "json", *ON]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "files": 1, "configs": 1, "findings": []}


def test_standard_input_is_read(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(changed("Long", "Forever").encode()), encoding="utf-8")
    )

    assert main(["validate", "-", *ON]) == 1
    assert capsys.readouterr().out.startswith("<stdin>:21: ")


def test_a_byte_order_mark_is_no_problem(check, tmp_path, capsys):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + CLAIM.encode())

    assert main(["validate", str(tmp_path / "bom.yaml"), *ON]) == 0


def test_a_missing_file_is_unreadable(tmp_path, capsys):
    assert main(["validate", str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml: cannot be read: No such file or directory" in capsys.readouterr().out


def test_a_directory_is_unreadable(tmp_path, capsys):
    assert main(["validate", str(tmp_path)]) == 2


@pytest.mark.parametrize("content", [b"\xff\xfea\x00", b"a: \xe9"])
def test_a_file_that_is_no_text_is_unreadable(tmp_path, capsys, content):
    (tmp_path / "x.yaml").write_bytes(content)

    assert main(["validate", str(tmp_path / "x.yaml")]) == 2
    assert "not UTF-8 text" in capsys.readouterr().out


def test_a_huge_file_is_unreadable(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    (tmp_path / "x.yaml").write_text("a" * 101)

    assert main(["validate", str(tmp_path / "x.yaml")]) == 2


def test_the_other_files_are_checked_when_one_is_unreadable(tmp_path, capsys):
    (tmp_path / "claim.yaml").write_text(changed("Long", "Forever"))

    assert main(["validate", str(tmp_path / "absent.yaml"), str(tmp_path / "claim.yaml"), *ON]) == 2
    assert "Forever" in capsys.readouterr().out


def test_no_file_is_wrong_usage(capsys):
    assert main(["validate"]) == 2
