import pytest
from prometheus_client.parser import text_string_to_metric_families

import dra_driver
from dra_driver.model.errors import BadConfig, ControlTimeout, DriverError
from dra_driver.observe.metrics import ERROR_KINDS, NullRecorder, PrometheusRecorder
from dra_driver.ports import Recorder

DRIVER = {"driver": "gpu.nvidia.com"}


def scrape(recorder: PrometheusRecorder) -> str:
    return recorder.exposition("")[0].decode()


def value(recorder: PrometheusRecorder, name: str, **labels: str) -> float | None:
    return recorder.registry.get_sample_value(f"nvidia_dra_{name}", DRIVER | labels)


@pytest.fixture
def recorder() -> PrometheusRecorder:
    return PrometheusRecorder("node-a")


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("nvidia_dra_requests", "counter", {"driver", "operation"}),
        ("nvidia_dra_request_duration_seconds", "histogram", {"driver", "operation"}),
        ("nvidia_dra_requests_inflight", "gauge", {"driver", "operation"}),
        ("nvidia_dra_prepared_devices", "gauge", {"node", "driver", "device_type"}),
        ("nvidia_dra_node_prepare_errors", "counter", {"driver", "error_type"}),
        ("nvidia_dra_node_unprepare_errors", "counter", {"driver", "error_type"}),
    ],
)
def test_metric_has_the_type_and_labels_of_nvidias_driver(
    recorder: PrometheusRecorder, name: str, kind: str, labels: set[str]
) -> None:
    family = next(f for f in text_string_to_metric_families(scrape(recorder)) if f.name == name)

    assert family.type == kind
    assert all(set(sample.labels) - {"le"} == labels for sample in family.samples)


def test_duration_buckets_are_those_of_nvidias_driver(recorder: PrometheusRecorder) -> None:
    families = text_string_to_metric_families(scrape(recorder))
    samples = next(f for f in families if f.name == "nvidia_dra_request_duration_seconds").samples

    bounds = [s.labels["le"] for s in samples if s.labels.get("operation") == "prepare" and "le" in s.labels]

    assert bounds == ["0.05", "0.1", "0.2", "0.4", "0.8", "1.6", "3.2", "6.4", "12.8", "+Inf"]


@pytest.mark.parametrize("operation", ["prepare", "unprepare"])
def test_operations_are_there_from_the_first_scrape(recorder: PrometheusRecorder, operation: str) -> None:
    assert value(recorder, "requests_total", operation=operation) == 0
    assert value(recorder, "request_duration_seconds_count", operation=operation) == 0
    assert value(recorder, "requests_inflight", operation=operation) == 0


def test_no_series_of_creation_times(recorder: PrometheusRecorder) -> None:
    assert "_created" not in scrape(recorder)


def test_success_is_counted_and_timed(recorder: PrometheusRecorder) -> None:
    recorder.observe_call("prepare", 0.06)

    assert value(recorder, "requests_total", operation="prepare") == 1
    assert value(recorder, "request_duration_seconds_bucket", operation="prepare", le="0.05") == 0
    assert value(recorder, "request_duration_seconds_bucket", operation="prepare", le="0.1") == 1


def test_inflight_goes_up_and_down(recorder: PrometheusRecorder) -> None:
    recorder.inflight("prepare", 1)
    recorder.inflight("prepare", 1)
    recorder.inflight("prepare", -1)

    assert value(recorder, "requests_inflight", operation="prepare") == 1


def test_failed_prepares_are_told_apart_by_kind(recorder: PrometheusRecorder) -> None:
    recorder.prepare_error(BadConfig.kind)
    recorder.prepare_error(ControlTimeout.kind)

    assert value(recorder, "node_prepare_errors_total", error_type="prepare_devices") == 2
    failures = {"operation": "prepare"}
    assert value(recorder, "request_failures_total", error_type="bad_config", **failures) == 1
    assert value(recorder, "request_failures_total", error_type="gpu_control_timeout", **failures) == 1


def test_failed_unprepare_is_counted(recorder: PrometheusRecorder) -> None:
    recorder.unprepare_error("cdi")

    assert value(recorder, "node_unprepare_errors_total", error_type="unprepare_devices") == 1
    assert value(recorder, "request_failures_total", operation="unprepare", error_type="cdi") == 1


def test_failure_is_no_success(recorder: PrometheusRecorder) -> None:
    recorder.prepare_error("cdi")

    assert value(recorder, "requests_total", operation="prepare") == 0


def test_unknown_kind_counts_as_internal_so_that_series_stay_few(recorder: PrometheusRecorder) -> None:
    before = scrape(recorder).count("nvidia_dra_request_failures_total{")

    recorder.prepare_error("default/claim-17")

    assert scrape(recorder).count("nvidia_dra_request_failures_total{") == before
    assert value(recorder, "request_failures_total", operation="prepare", error_type=DriverError.kind) == 1


def test_every_kind_of_the_error_tree_is_there_from_the_first_scrape(recorder: PrometheusRecorder) -> None:
    assert {"internal", "bad_config", "gpu_control_timeout", "api_unreachable"} <= set(ERROR_KINDS)
    for kind in ERROR_KINDS:
        assert value(recorder, "request_failures_total", operation="prepare", error_type=kind) == 0


def test_prepared_devices_are_set_by_type(recorder: PrometheusRecorder) -> None:
    recorder.prepared_devices({"gpu": 2, "mig": 1})

    assert value(recorder, "prepared_devices", node="node-a", device_type="gpu") == 2
    assert value(recorder, "prepared_devices", node="node-a", device_type="mig") == 1


def test_prepared_devices_of_a_type_that_is_no_longer_named_are_zero(recorder: PrometheusRecorder) -> None:
    recorder.prepared_devices({"gpu": 2})
    recorder.prepared_devices({})

    assert value(recorder, "prepared_devices", node="node-a", device_type="gpu") == 0


def test_device_type_that_is_not_known_counts_as_unknown(recorder: PrometheusRecorder) -> None:
    recorder.prepared_devices({"tpu": 3})

    assert value(recorder, "prepared_devices", node="node-a", device_type="unknown") == 3


def test_process_and_build_are_exposed(recorder: PrometheusRecorder) -> None:
    assert recorder.registry.get_sample_value("process_resident_memory_bytes")
    assert value(recorder, "build_info", version=dra_driver.__version__) == 1


def test_two_recorders_do_not_share_counts(recorder: PrometheusRecorder) -> None:
    other = PrometheusRecorder("node-b")

    other.observe_call("prepare", 1)

    assert value(recorder, "requests_total", operation="prepare") == 0


def test_null_recorder_takes_everything() -> None:
    recorder: Recorder = NullRecorder()

    recorder.observe_call("prepare", 1)
    recorder.inflight("prepare", 1)
    recorder.prepare_error("cdi")
    recorder.unprepare_error("cdi")
    recorder.prepared_devices({"gpu": 1})


def test_memory_beyond_a_budget_is_counted_from_zero(recorder: PrometheusRecorder) -> None:
    assert value(recorder, "memory_budget_exceeded_total") == 0

    recorder.memory_budget_exceeded()

    assert value(recorder, "memory_budget_exceeded_total") == 1
