"""Stands between a kubelet and a driver: each socket of the driver has one here, which passes every call on.

The driver registers in a directory of its own. The kubelet is led to sockets here, by the one change that is made: the
endpoint in the answer to GetInfo. Sockets here come and go with the driver's, and its connection is lost when that is.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

from dra_driver.kubelet.sockets import SocketServer, target
from dra_driver_api.kubelet import registration_pb2
from hack.trace import events
from hack.trace.events import Event

_GET_INFO: Final = "/pluginregistration.Registration/GetInfo"
_WORKERS: Final = 32
_LOOK_S: Final = 0.02
_RETIRE_S: Final = 1.0
_LONGEST_S: Final = 365 * 24 * 3600.0
_CHANNEL: Final = (("grpc.use_local_subchannel_pool", 1), ("grpc.client_idle_timeout_ms", 2**31 - 1))

Record = Callable[[Event], None]
Swap = Callable[[str, bytes], bytes]


class Relay:
    """All drivers that register in a directory. Runs in the caller's thread."""

    def __init__(self, registry: Path, kubelet_registry: Path, record: Record) -> None:
        """registry: where drivers register; made here. kubelet_registry: the kubelet's ``plugins_registry``.

        record: is called from many threads.
        """
        self._registry = registry
        self._kubelet_registry = kubelet_registry
        self._record = record
        self._pairs: dict[str, _Pair] = {}
        self._leaving: list[_Pair] = []

    def run(self, stopping: threading.Event) -> None:
        """Until told to stop. Raises StateError, SettingError when a socket cannot be had."""
        self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            while not stopping.wait(_LOOK_S):
                self._look()
        finally:
            for pair in [*self._pairs.values(), *self._leaving]:
                pair.close()

    def _look(self) -> None:
        found = {path.name: _identity(path) for path in self._registry.glob("*-reg.sock") if path.name[0] != "."}
        for name, pair in list(self._pairs.items()):
            if found.get(name) != pair.identity:
                self._say(f"takes socket {name} away" if name not in found else f"puts another socket {name} in place")
                pair.unregister()
                self._leaving.append(self._pairs.pop(name))
        for name, identity in found.items():
            if identity and name not in self._pairs:
                self._say(f"has socket {name}")
                self._end_those_who_leave(name)
                self._pairs[name] = _Pair(self._registry / name, identity, self._kubelet_registry, self._record)
        for pair in [*self._pairs.values(), *self._leaving]:
            pair.look()

    def _end_those_who_leave(self, name: str) -> None:
        """Sockets of the same names come anew."""
        for pair in [each for each in self._leaving if each.name == name]:
            pair.close()
            self._leaving.remove(pair)

    def _say(self, what: str) -> None:
        self._record(Event(at=time.time(), who=events.DRIVER, what=what))


class _Pair:
    """A registration socket, and the DRA socket that it speaks of."""

    def __init__(self, source: Path, identity: tuple[int, int], kubelet_registry: Path, record: Record) -> None:
        self.name = source.name
        self.identity = identity
        self._record = record
        self._source = source
        self._dra_here = source.with_name(source.name.replace("-reg.sock", "-dra.sock"))
        self._dra: _Side | None = None
        self._lock = threading.Lock()
        self._registration = _Side(source, kubelet_registry / source.name, record, self._lead_here)

    def look(self) -> None:
        """Hang up on the kubelet if the driver has hung up."""
        if self._dra is not None and self._dra.lost.is_set():
            self._record(Event(at=time.time(), who=events.DRIVER, what="closes its DRA connection"))
            self._close_dra()

    def unregister(self) -> None:
        """The driver's registration socket is gone: take ours away. Calls may go on."""
        self._registration.close()

    def close(self) -> None:
        """End all of it."""
        self.unregister()
        self._close_dra()

    def _lead_here(self, method: str, content: bytes) -> bytes:
        if method != _GET_INFO:
            return content
        info = registration_pb2.PluginInfo.FromString(content)
        with self._lock:
            if self._dra is None:
                self._dra = _Side(Path(info.endpoint or self._source), self._dra_here, self._record)
        info.endpoint = str(self._dra_here)
        return info.SerializeToString()

    def _close_dra(self) -> None:
        with self._lock:
            side, self._dra = self._dra, None
        if side is not None:
            side.close()


class _Side(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """One socket of the driver's and ours for it. Every method is passed on, as bytes."""

    def __init__(self, source: Path, here: Path, record: Record, swap: Swap | None = None) -> None:
        """swap: makes the answer that the kubelet is given of a method and the driver's answer."""
        self.lost = threading.Event()
        self._record = record
        self._swap = swap
        self._connected = False
        self._channel = grpc.insecure_channel(target(source), options=_CHANNEL)
        self._open: Any = self._channel.stream_stream
        self._channel.subscribe(self._changed, try_to_connect=True)
        self._server = SocketServer(here, lambda server: server.add_generic_rpc_handlers((self,)), _WORKERS)
        self._server.start()

    def close(self) -> None:
        """Take the socket away and hang up. Idempotent."""
        self._server.remove_file()
        self._server.stop(_RETIRE_S if not self.lost.is_set() else 0)
        self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """A call without a stream is, on the wire, a stream of one message."""
        return grpc.stream_stream_rpc_method_handler(partial(self._pass_on, handler_call_details.method))

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            self._connected = True
        elif self._connected:
            self.lost.set()

    def _pass_on(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        call = _Call(method, self._record)
        passed = self._open(method)(call.requests(requests), timeout=_limit(context))
        context.add_callback(passed.cancel)
        try:
            for content in passed:
                call.answered(content)
                yield self._swap(method, content) if self._swap else content
            call.ended("")
        except grpc.RpcError:
            call.ended(f"{passed.code().name}: {passed.details()}")
            context.abort(passed.code(), passed.details())


class _Call:
    """Records a call: one event for a call with one answer, else one for each message."""

    def __init__(self, method: str, record: Record) -> None:
        self._method = method
        self._record = record
        self._name = events.call_name(method)
        self._began = time.time()
        self._clock = time.monotonic()
        self._asked: list[str] = []
        self._answers: list[str] = []
        self._stream = events.is_stream(method)

    def requests(self, contents: Iterator[bytes]) -> Iterator[bytes]:
        """The same contents, noted."""
        # gRPC raises a bare exception here when the call is over before all requests have come.
        with suppress(grpc.RpcError):
            for content in contents:
                self._asked.append(events.request_text(self._method, content))
                if self._stream:
                    self._tell(events.CALL, self._began, self._what())
                yield content

    def answered(self, content: bytes) -> None:
        text = events.answer_text(self._method, content) or "{}"
        if self._stream:
            self._tell(events.ANSWER, time.time(), self._name, text)
        else:
            self._answers.append(text)

    def ended(self, error: str) -> None:
        """error: '' for success."""
        if self._stream:
            self._tell(events.ANSWER, time.time(), f"end of {self._name}", error)
            return
        took = round((time.monotonic() - self._clock) * 1000, 1)
        self._tell(events.CALL, self._began, self._what(), error or ", ".join(self._answers), took)

    def _what(self) -> str:
        return " ".join([self._name, *filter(None, self._asked)])

    def _tell(self, who: str, at: float, what: str, answer: str = "", took: float | None = None) -> None:
        self._record(Event(at=at, who=who, what=what, answer=answer, ms=took))


def _limit(context: grpc.ServicerContext) -> float | None:
    """Seconds that the kubelet gives a call. Without a limit gRPC says a number that it cannot take itself."""
    seconds = context.time_remaining()
    return seconds if seconds is not None and seconds < _LONGEST_S else None


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a socket from one that was at the same path before, and may have had the same inode."""
    with suppress(OSError):
        found = path.lstat()
        return found.st_ino, found.st_ctime_ns
    return None
