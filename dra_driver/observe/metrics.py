"""Prometheus metrics of the driver, under the names dashboards for NVIDIA's DRA driver already use.

Recording only: serving them is in ``observe.http``. No label ever carries a claim, pod or namespace name, so
the number of series does not grow with use.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

import dra_driver
from dra_driver.model.errors import DriverError, LockTimeout
from dra_driver_api import names

PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"
OPERATIONS: Final = (PREPARE, UNPREPARE)
"""Values of label ``operation``, those of NVIDIA's driver."""

DURATION_BUCKETS: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
"""Upper bounds in seconds of ``request_duration_seconds``, those of NVIDIA's driver."""

DEVICE_TYPES: Final = (names.TYPE_GPU, names.TYPE_MIG, names.TYPE_VFIO, "unknown")
"""Values of label ``device_type``; a type that is not listed counts as ``unknown``."""

PREPARE_ERROR_TYPES: Final = ("lock_acquire", "prepare_devices", "publish_resources")
UNPREPARE_ERROR_TYPES: Final = ("lock_acquire", "unprepare_devices", "publish_resources")
"""Values of label ``error_type`` in the two error counters of NVIDIA's driver.

A claim or GPU that another call held for too long counts as ``lock_acquire``; every other failure of a claim as
``prepare_devices`` or ``unprepare_devices``. Nothing is published while claims are prepared, so that series stays
at 0 for alerts that name it. What went wrong is told by ``nvidia_dra_request_failures_total``, with
``DriverError.kind`` as its ``error_type``.
"""


def _kinds(error: type[DriverError]) -> Iterator[str]:
    yield error.kind
    for subclass in error.__subclasses__():
        yield from _kinds(subclass)


ERROR_KINDS: Final = tuple(sorted(set(_kinds(DriverError))))
"""Every ``DriverError.kind`` of the tree; any other text counts as ``internal``."""


def _stage(kind: str, otherwise: str) -> str:
    return LockTimeout.kind if kind == LockTimeout.kind else otherwise


class NullRecorder:
    """A ``ports.Recorder`` that keeps nothing."""

    def observe_call(self, operation: str, seconds: float) -> None:
        """Nothing."""

    def inflight(self, operation: str, change: int) -> None:
        """Nothing."""

    def prepare_error(self, kind: str) -> None:
        """Nothing."""

    def unprepare_error(self, kind: str) -> None:
        """Nothing."""

    def prepared_devices(self, counts: Mapping[str, int]) -> None:
        """Nothing."""


class PrometheusRecorder:
    """``ports.Recorder`` over a registry of its own; all its series are there from the first scrape."""

    def __init__(self, node_name: str) -> None:
        """``node_name``: value of label ``node``."""
        # Process-wide in the library; "_created" series are not in NVIDIA's driver and double the output.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._node = node_name
        self._refresh: Callable[[], None] | None = None
        self._make_request_metrics()
        self._make_error_metrics()
        self._make_process_metrics()

    def _make_request_metrics(self) -> None:
        by_operation = ("driver", "operation")
        self._requests = Counter(
            "nvidia_dra_requests_total",
            "Claims prepared or unprepared with success.",
            by_operation,
            registry=self.registry,
        )
        self._durations = Histogram(
            "nvidia_dra_request_duration_seconds",
            "Time taken to prepare or unprepare one claim with success, waiting for locks included.",
            by_operation,
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self._inflight = Gauge(
            "nvidia_dra_requests_inflight",
            "Claims being prepared or unprepared at this moment.",
            by_operation,
            registry=self.registry,
        )
        self._prepared = Gauge(
            "nvidia_dra_prepared_devices",
            "Devices held by prepared claims on this node.",
            ("node", "driver", "device_type"),
            registry=self.registry,
        )
        for operation in OPERATIONS:
            for metric in (self._requests, self._durations, self._inflight):
                metric.labels(names.DRIVER_NAME, operation)
        self.prepared_devices({})

    def _make_error_metrics(self) -> None:
        self._prepare_errors = Counter(
            "nvidia_dra_node_prepare_errors_total",
            "Claims that could not be prepared, by the stage that failed.",
            ("driver", "error_type"),
            registry=self.registry,
        )
        self._unprepare_errors = Counter(
            "nvidia_dra_node_unprepare_errors_total",
            "Claims that could not be unprepared, by the stage that failed.",
            ("driver", "error_type"),
            registry=self.registry,
        )
        self._failures = Counter(
            "nvidia_dra_request_failures_total",
            "Claims that could not be prepared or unprepared, by the kind of error.",
            ("driver", "operation", "error_type"),
            registry=self.registry,
        )
        self._over_budget = Counter(
            "nvidia_dra_memory_budget_exceeded_total",
            "Times that a claim was told to use more memory of a shared GPU than it asked for, once a minute each.",
            ("driver",),
            registry=self.registry,
        )
        self._over_budget.labels(names.DRIVER_NAME)
        for stage in PREPARE_ERROR_TYPES:
            self._prepare_errors.labels(names.DRIVER_NAME, stage)
        for stage in UNPREPARE_ERROR_TYPES:
            self._unprepare_errors.labels(names.DRIVER_NAME, stage)
        for operation in OPERATIONS:
            for kind in ERROR_KINDS:
                self._failures.labels(names.DRIVER_NAME, operation, kind)

    def _make_process_metrics(self) -> None:
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        build = Gauge(
            "nvidia_dra_build_info",
            "Always 1; the labels tell the driver and its version.",
            ("driver", "version"),
            registry=self.registry,
        )
        build.labels(names.DRIVER_NAME, dra_driver.__version__).set(1)

    def observe_call(self, operation: str, seconds: float) -> None:
        """One claim done with success; ``operation`` is ``prepare`` or ``unprepare``."""
        self._requests.labels(names.DRIVER_NAME, operation).inc()
        self._durations.labels(names.DRIVER_NAME, operation).observe(seconds)

    def inflight(self, operation: str, change: int) -> None:
        """+1 when work on a claim begins, -1 when it ends, whatever came of it."""
        self._inflight.labels(names.DRIVER_NAME, operation).inc(change)

    def prepare_error(self, kind: str) -> None:
        """A claim could not be prepared; see ``PREPARE_ERROR_TYPES`` for how it is counted."""
        self._prepare_errors.labels(names.DRIVER_NAME, _stage(kind, "prepare_devices")).inc()
        self._failure(PREPARE, kind)

    def unprepare_error(self, kind: str) -> None:
        """A claim could not be unprepared; see ``UNPREPARE_ERROR_TYPES`` for how it is counted."""
        self._unprepare_errors.labels(names.DRIVER_NAME, _stage(kind, "unprepare_devices")).inc()
        self._failure(UNPREPARE, kind)

    def memory_budget_exceeded(self) -> None:
        """The users of a claim were told that it uses more of a GPU's memory than it may."""
        self._over_budget.labels(names.DRIVER_NAME).inc()

    def _failure(self, operation: str, kind: str) -> None:
        known = kind if kind in ERROR_KINDS else DriverError.kind
        self._failures.labels(names.DRIVER_NAME, operation, known).inc()

    def prepared_devices(self, counts: Mapping[str, int]) -> None:
        """The whole picture, device type -> number of devices: a type that is absent has 0."""
        totals = dict.fromkeys(DEVICE_TYPES, 0)
        for device_type, count in counts.items():
            totals[device_type if device_type in totals else "unknown"] += count
        for device_type, count in totals.items():
            self._prepared.labels(self._node, names.DRIVER_NAME, device_type).set(count)

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """Call ``refresh`` before each exposition: for what is read from elsewhere and not counted here."""
        self._refresh = refresh

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text in the format that an ``Accept`` header asks for, and its content type."""
        if self._refresh is not None:
            self._refresh()
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
