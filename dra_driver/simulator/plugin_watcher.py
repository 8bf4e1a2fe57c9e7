"""The kubelet's plugin manager: finds registration sockets, does the handshake, keeps connections to drivers.

Rules: ``pkg/kubelet/pluginmanager`` and ``pkg/kubelet/cm/dra/plugin`` of Kubernetes 1.36. Sockets are looked for
by polling instead of inotify. Nothing about pods here.
"""

import logging
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from dra_driver.model.errors import DriverError
from dra_driver_api import names
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc, registration_pb2, registration_pb2_grpc

log = logging.getLogger(__name__)

GET_INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
CALL_SECONDS = 45.0
"""How long the kubelet waits for a prepare or unprepare call."""

_FIRST_BACKOFF = 0.1
_LONGEST_BACKOFF = 5.0
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 1000))


class PluginError(DriverError):
    """A driver is not registered, cannot be reached, or answered with a gRPC error. Worded as the kubelet does."""

    kind = "plugin"


class Plugin:
    """One registered driver instance: its DRA service behind one connection."""

    def __init__(self, driver: str, endpoint: str) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.registered_at = time.monotonic()
        self.connected = False
        self._channel = grpc.insecure_channel(f"unix://{endpoint}", options=_CHANNEL_OPTIONS)
        self._channel.subscribe(self._changed, try_to_connect=True)
        self._stub = dra_pb2_grpc.DRAPluginStub(self._channel)

    def prepare(self, claims: Sequence[dra_pb2.Claim]) -> dra_pb2.NodePrepareResourcesResponse:
        """NodePrepareResources. Raises PluginError when the call itself fails."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
        try:
            return self._stub.NodePrepareResources(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise PluginError(f"NodePrepareResources: {_rpc_text(error)}") from error

    def unprepare(self, claims: Sequence[dra_pb2.Claim]) -> dra_pb2.NodeUnprepareResourcesResponse:
        """NodeUnprepareResources. Raises PluginError when the call itself fails."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
        try:
            return self._stub.NodeUnprepareResources(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise PluginError(f"NodeUnprepareResources: {_rpc_text(error)}") from error

    def close(self) -> None:
        """Drop the connection."""
        self.connected = False
        self._channel.close()

    def _changed(self, state: grpc.ChannelConnectivity) -> None:
        self.connected = state is grpc.ChannelConnectivity.READY


@dataclass(slots=True)
class _Socket:
    """A registration socket as last seen. ``identity`` tells a new file at the same path from the old one."""

    identity: tuple[int, int]
    plugin: Plugin | None = None
    retry_at: float = 0.0
    backoff: float = field(default=_FIRST_BACKOFF)


class PluginWatcher:
    """Keeps the set of registered drivers equal to the sockets in the registry directory."""

    def __init__(self, registry: Path, *, poll_seconds: float = 0.05) -> None:
        self._registry = registry
        self._poll_seconds = poll_seconds
        self._sockets: dict[Path, _Socket] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="plugin-watcher", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching and drop all connections. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for known in self._sockets.values():
            if known.plugin:
                known.plugin.close()
        self._sockets.clear()

    def plugin(self, driver: str) -> Plugin:
        """The instance to call: the latest that is connected, else the latest. Raises PluginError."""
        found = self._plugins(driver)
        if not found:
            raise PluginError(f"DRA driver {driver} is not registered")
        return next((plugin for plugin in reversed(found) if plugin.connected), found[-1])

    def connected(self, driver: str) -> bool:
        """Whether an instance of the driver holds its connection."""
        return any(plugin.connected for plugin in self._plugins(driver))

    def wait_registered(self, driver: str, timeout: float) -> bool:
        """Wait until the driver is registered, at most ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._plugins(driver)), timeout)

    def wait_deregistered(self, driver: str, timeout: float) -> bool:
        """Wait until no instance of the driver is registered any more."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._plugins(driver), timeout)

    def _plugins(self, driver: str) -> list[Plugin]:
        known = [entry.plugin for entry in list(self._sockets.values()) if entry.plugin]
        return sorted((p for p in known if p.driver == driver), key=lambda p: p.registered_at)

    def _watch(self) -> None:
        while not self._stopping.wait(self._poll_seconds):
            self.look()

    def look(self) -> None:
        """One pass over the directory."""
        found = self._identities()
        for path in [p for p, known in self._sockets.items() if found.get(p) != known.identity]:
            self._deregister(path)
        for path, identity in sorted(found.items()):
            known = self._sockets.setdefault(path, _Socket(identity))
            if known.plugin is None and time.monotonic() >= known.retry_at:
                self._register(path, known)

    def _identities(self) -> dict[Path, tuple[int, int]]:
        """Sockets whose names do not start with a dot."""
        found: dict[Path, tuple[int, int]] = {}
        try:
            entries = [path for path in self._registry.iterdir() if not path.name.startswith(".")]
        except OSError:
            return found
        for path in entries:
            try:
                facts = path.stat()
            except OSError:
                continue
            if stat.S_ISSOCK(facts.st_mode):
                found[path] = (facts.st_ino, facts.st_ctime_ns)
        return found

    def _deregister(self, path: Path) -> None:
        with self._changed:
            gone = self._sockets.pop(path)
            self._changed.notify_all()
        if gone.plugin:
            log.info("DRA driver %s is deregistered: %s is gone", gone.plugin.driver, path)
            gone.plugin.close()

    def _register(self, path: Path, known: _Socket) -> None:
        try:
            plugin = self._handshake(path)
        except grpc.RpcError as error:
            log.debug("registration at %s failed: %s", path, _rpc_text(error))
            plugin = None
        if plugin is None:
            known.retry_at = time.monotonic() + known.backoff
            known.backoff = min(known.backoff * 2, _LONGEST_BACKOFF)
            return
        log.info("DRA driver %s is registered, endpoint %s", plugin.driver, plugin.endpoint)
        with self._changed:
            known.plugin = plugin
            self._changed.notify_all()

    def _handshake(self, path: Path) -> Plugin | None:
        with grpc.insecure_channel(f"unix://{path}", options=_CHANNEL_OPTIONS) as channel:
            stub = registration_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(registration_pb2.InfoRequest(), timeout=GET_INFO_SECONDS)
            problem = self._problem(info)
            plugin = None if problem else Plugin(info.name, info.endpoint or str(path))
            status = registration_pb2.RegistrationStatus(plugin_registered=not problem, error=problem)
            try:
                stub.NotifyRegistrationStatus(status, timeout=NOTIFY_SECONDS)
            except grpc.RpcError as error:
                log.warning("telling %s about its registration failed: %s", path, _rpc_text(error))
        return plugin

    def _problem(self, info: registration_pb2.PluginInfo) -> str:
        """Why the kubelet would refuse a plugin, '' when it would not."""
        if info.type != names.PLUGIN_TYPE_DRA:
            return f"plugin type {info.type!r} is not {names.PLUGIN_TYPE_DRA!r}"
        if not info.name:
            return "DRA driver name is empty"
        if names.DRA_SERVICE_V1 not in info.supported_versions:
            offered = ", ".join(info.supported_versions) or "none"
            return f"none of the services {offered} is supported: {names.DRA_SERVICE_V1} is"
        if any(plugin.endpoint == info.endpoint for plugin in self._plugins(info.name)):
            return f"endpoint {info.endpoint} is already registered for DRA driver plugin {info.name}"
        return ""


def _rpc_text(error: grpc.RpcError) -> str:
    """A gRPC error as Go prints it."""
    if not isinstance(error, grpc.Call):
        return str(error)
    code = "".join(word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {code} desc = {error.details()}"
