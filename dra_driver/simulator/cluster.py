"""A cluster of one node without hardware: API server, scheduler, kubelet, and the driver as a process.

Everything lives below one directory. What happens on it is decided elsewhere.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import yaml

from dra_driver.model.errors import DriverError, SettingError
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.kinds import NODES, PODS, RESOURCE_SLICES, kind_of
from dra_driver.simulator.kubelet import Kubelet
from dra_driver.simulator.plugin_watcher import PluginError
from dra_driver.simulator.process import DriverProcess
from dra_driver.simulator.scheduler import Scheduler
from dra_driver.simulator.statuses import StatusError
from dra_driver_api.names import DRIVER_NAME

Json = dict[str, Any]
T = TypeVar("T")

_POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Where the parts of a node meet, below one directory."""

    root: Path

    @property
    def registry(self) -> Path:
        """The kubelet's ``plugins_registry``."""
        return self.root / "registry"

    @property
    def plugins(self) -> Path:
        """The kubelet's ``plugins``."""
        return self.root / "plugins"

    @property
    def plugin(self) -> Path:
        """The driver's own directory."""
        return self.plugins / DRIVER_NAME

    @property
    def cdi(self) -> Path:
        """Where CDI specs are written and read."""
        return self.root / "cdi"

    @property
    def kubeconfig(self) -> Path:
        """The driver's way to the API server."""
        return self.root / "kubeconfig"

    @property
    def log(self) -> Path:
        """What the driver prints."""
        return self.root / "driver.log"


class Timeout(DriverError):
    """Something did not happen in time; the text says what."""

    kind = "timeout"


class SimulatedCluster:
    """One node, as a context manager that ends all it has started."""

    def __init__(self, root: Path, *, simulated_node: str = "h200x2", node_name: str = "node-a") -> None:
        """root: an empty directory, its path short enough for sockets. simulated_node: '' means real GPUs."""
        self.paths = NodePaths(root.absolute())
        self.node_name = node_name
        self.api = ApiServer()
        self.store = self.api.store
        self.scheduler = Scheduler(self.store)
        self.kubelet = Kubelet(self.store, node_name, self.paths.registry, [self.paths.cdi])
        self.driver: DriverProcess | None = None
        self._simulated_node = simulated_node
        self._driver_started = 0.0

    def __enter__(self) -> "SimulatedCluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything but the driver; what was started is ended again if that fails half-way."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        for directory in (self.paths.registry, self.paths.plugins, self.paths.cdi):
            directory.mkdir(parents=True, exist_ok=True)
        self.api.start()
        self.api.kubeconfig(self.paths.kubeconfig)
        self.store.create(NODES, {"metadata": {"name": self.node_name}})
        self.apply(resources.files(__package__).joinpath("device_classes.yaml").read_text(encoding="utf-8"))
        self.scheduler.start()
        self.kubelet.start()

    def stop(self) -> None:
        """End what was started, the driver first. Idempotent."""
        self.stop_driver()
        self.kubelet.stop()
        self.scheduler.stop()
        self.api.stop()

    # The driver.

    def start_driver(self, *flags: str, gates: str = "") -> DriverProcess:
        """Start the driver; flags are added to those that every node needs."""
        paths = self.paths
        common = [
            f"--node-name={self.node_name}",
            f"--kubeconfig={paths.kubeconfig}",
            f"--cdi-root={paths.cdi}",
            f"--kubelet-registrar-directory-path={paths.registry}",
            f"--kubelet-plugins-directory-path={paths.plugins}",
            f"--feature-gates={gates}",
        ]
        if self._simulated_node:
            common.append(f"--simulated-node={self._simulated_node}")
        self._driver_started = time.monotonic()
        self.driver = DriverProcess([*common, *flags], paths.log)
        self.driver.start()
        return self.driver

    def stop_driver(self) -> None:
        """Stop the driver as a node's update would. Idempotent."""
        if self.driver is not None:
            self.driver.stop()
            self.driver = None

    def wait_ready(self, timeout: float) -> None:
        """Wait until the kubelet has registered this driver process and its slices are complete.

        Raises Timeout, or DriverError when the driver ended.
        """
        self.wait_for(lambda: self._registered() and self.devices(), timeout, "the driver to register and publish")

    def _registered(self) -> bool:
        try:
            return self.kubelet.plugins.plugin(DRIVER_NAME).registered_at > self._driver_started
        except PluginError:
            return False

    def devices(self) -> list[Json]:
        """The published devices of the node, [] while slices are missing."""
        slices = [s["spec"] for s in self.store.find(RESOURCE_SLICES, fields=f"spec.driver={DRIVER_NAME}")]
        if not slices or len(slices) != slices[0]["pool"]["resourceSliceCount"]:
            return []
        return [device for spec in slices for device in spec.get("devices") or []]

    # The cluster.

    def apply(self, text: str) -> list[Json]:
        """Create the objects of a YAML text, or bring existing ones to this state. Returns them as stored."""
        return [self._apply(obj) for obj in yaml.safe_load_all(text) if obj]

    def _apply(self, obj: Json) -> Json:
        kind = kind_of(obj.get("apiVersion", ""), obj.get("kind", ""))
        if kind is None:
            raise SettingError(f"this cluster knows no {obj.get('kind')} of {obj.get('apiVersion')}")
        try:
            return self.store.create(kind, obj)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            return self.store.replace(kind, obj)

    def delete(self, objects: Sequence[Json]) -> None:
        """Delete objects, pods before what they use; those that are gone already count as deleted."""
        for obj in sorted(objects, key=lambda o: bool(o["kind"] != PODS.kind)):
            kind, metadata = kind_of(obj["apiVersion"], obj["kind"]), obj["metadata"]
            try:
                if kind is not None:
                    self.store.delete(kind, metadata["name"], metadata.get("namespace", ""))
            except StatusError as error:
                if error.status != 404:
                    raise

    def gone(self, objects: Sequence[Json]) -> bool:
        """Whether none of these objects is left."""
        for obj in objects:
            kind, metadata = kind_of(obj["apiVersion"], obj["kind"]), obj["metadata"]
            if kind and self.store.find(
                kind, metadata.get("namespace", ""), fields=f"metadata.name={metadata['name']}"
            ):
                return False
        return True

    def wait_for(self, look: Callable[[], T], timeout: float, what: str) -> T:
        """Wait until ``look`` gives something true. Raises Timeout naming ``what``, or when the driver ended."""
        end = time.monotonic() + timeout
        while True:
            if found := look():
                return found
            if self.driver is not None:
                self.driver.check()
            left = end - time.monotonic()
            if left <= 0:
                tail = self.driver.log_tail() if self.driver else "the driver is not started"
                raise Timeout(f"waited {timeout:.0f} s in vain for {what}; the driver's log ends with: {tail}")
            self.store.wait_change(self.store.version, min(left, _POLL_SECONDS))
