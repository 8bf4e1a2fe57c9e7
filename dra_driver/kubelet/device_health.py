"""The kubelet's health service (``v1alpha1.DRAResourceHealth``): streams how the devices of this node are.

What that is decides who makes the service; here is only when it is told, and to how many.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import grpc

from dra_driver.kubelet.texts import one_line
from dra_driver.model.errors import DriverError
from dra_driver.model.health import DeviceHealth, Health
from dra_driver_api.kubelet import health_pb2, health_pb2_grpc

log = logging.getLogger(__name__)

STREAMS: Final = 8
"""Streams that may be open, each with a thread of its own. A kubelet opens one whenever it registers the driver."""

TIMEOUT_SECONDS: Final = 30
"""For how long the kubelet believes a message. Its own default, which is all that Kubernetes 1.34 knows."""

REPEAT_SECONDS: Final = 10.0
"""Between messages when nothing changes: two may be late. When the old driver of a rolling update leaves, the kubelet
forgets what the new one has told, so it is told again soon."""

Look = Callable[[], Sequence[DeviceHealth] | None]


class DeviceHealthService(health_pb2_grpc.DRAResourceHealthServicer):
    """Serves NodeWatchResources: all devices at once, when something changes, and now and then."""

    def __init__(self, look: Look, repeat_seconds: float = REPEAT_SECONDS) -> None:
        """look: all devices, or None as long as nobody knows them; called by each stream; may raise DriverError."""
        self._look = look
        self._repeat_seconds = repeat_seconds
        self._lock = threading.Lock()
        self._streams: set[threading.Event] = set()
        self._closed = False
        self._complaint = ""

    @property
    def streams(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    def changed(self) -> None:
        """Have every stream look and tell now. Returns at once."""
        with self._lock:
            for wake in self._streams:
                wake.set()

    def close(self) -> None:
        """End all streams, which gRPC would wait for, and refuse new ones. Idempotent."""
        self._closed = True
        self.changed()

    def NodeWatchResources(  # noqa: N802
        self, request: health_pb2.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.NodeWatchResourcesResponse]:
        """Each message lists all devices. Goes on until the client leaves or the driver stops."""
        wake = threading.Event()
        if not self._enter(wake, context):
            return
        try:
            # A client that leaves is noticed by nothing else while the stream waits.
            if context.add_callback(wake.set):
                yield from self._messages(wake, context)
        finally:
            with self._lock:
                self._streams.discard(wake)

    def _enter(self, wake: threading.Event, context: grpc.ServicerContext) -> bool:
        with self._lock:
            if not self._closed and len(self._streams) < STREAMS:
                self._streams.add(wake)
                return True
        if self._closed:
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details("the driver is stopping and opens no health stream")
        else:
            context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(f"{STREAMS} health streams are open already, as many as may be: close another first")
        return False

    def _messages(
        self, wake: threading.Event, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.NodeWatchResourcesResponse]:
        while context.is_active() and not self._closed:
            if message := self._message():
                yield message
            wake.wait(self._repeat_seconds)
            # Before the next look, so that what changes during that is looked at once more.
            wake.clear()

    def _message(self) -> health_pb2.NodeWatchResourcesResponse | None:
        """None when nothing can be told; the kubelet then takes the devices' health as unknown, which it is."""
        try:
            devices = self._look()
        except DriverError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                log.warning("the kubelet is not told how the devices are: %s", error)
            return None
        self._complaint = ""
        if devices is None:
            return None
        now = int(time.time())
        return health_pb2.NodeWatchResourcesResponse(devices=[_entry(device, now) for device in devices])


_STATUS: Final = {
    Health.UNKNOWN: health_pb2.UNKNOWN,
    Health.HEALTHY: health_pb2.HEALTHY,
    Health.UNHEALTHY: health_pb2.UNHEALTHY,
}


def _entry(found: DeviceHealth, now: int) -> health_pb2.DeviceHealth:
    return health_pb2.DeviceHealth(
        device=health_pb2.DeviceIdentifier(pool_name=found.pool, device_name=found.device),
        health=_STATUS[found.health],
        last_updated_time=now,
        health_check_timeout_seconds=TIMEOUT_SECONDS,
        message=one_line(found.message),
    )
