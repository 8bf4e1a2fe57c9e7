"""The driver as host process of a node, with the settings that a test needs: restarted only when they differ."""

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT, Driver
from hack.cluster.node import Node
from tests.e2e.node_view import NodeView
from tests.e2e.waiting import until

SCENARIO: Final = "a10gx4"
GATES: Final = {"TimeSlicingSettings": True}
DEVICE_CLASSES: Final = ROOT / "dra_driver/simulator/device_classes.yaml"
_PORT: Final = 8090


class HostDriver:
    """What runs on the node, if anything."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._cluster = cluster
        self._node = node
        self.view = NodeView(node)
        self._driver: Driver | None = None

    @property
    def current(self) -> Driver:
        """The driver of the last ``ensure``."""
        assert self._driver is not None
        return self._driver

    def ensure(
        self, scenario: str | Path = SCENARIO, gates: Mapping[str, bool] = GATES, flags: Sequence[str] = ()
    ) -> Driver:
        """The driver with this scenario, these gates and further flags, ready."""
        endpoint = f"--http-endpoint={self._node.address}:{_PORT}"
        wanted = self._cluster.driver(self._node, endpoint, *flags, gates=gates, scenario=str(scenario))
        if self._driver is not None and self._driver.running and self._driver.argv == wanted.argv:
            self.wait_ready()
            return self._driver
        self.stop()
        self._cluster.apply(DEVICE_CLASSES)
        self._driver = wanted
        wanted.start()
        self.wait_ready()
        return wanted

    def resume(self) -> None:
        """Start it again, should it not run."""
        if self._driver is not None and not self._driver.running:
            self._driver.start()
        self.wait_ready()

    def stop(self) -> None:
        """End it, if it runs."""
        if self._driver is not None and self._driver.running:
            self._driver.stop()

    def wait_ready(self) -> None:
        """Wait until it has devices, is registered with the kubelet and has published its slices."""
        until(self._ready, f"the driver to be ready; its log: {self._node.machine.log('driver')}")

    def page(self, path: str) -> str:
        """What its HTTP endpoint answers. Raises OSError, HTTPError among them."""
        with urllib.request.urlopen(f"http://{self._node.address}:{_PORT}{path}", timeout=5) as answer:
            content: bytes = answer.read()
        return content.decode("utf-8")

    def _ready(self) -> bool:
        try:
            self.page("/readyz")
        except urllib.error.HTTPError as refused:
            refused.close()
            return False
        return True
