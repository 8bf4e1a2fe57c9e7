"""The driver as a process of a node, the fast way to try a change: no image, no DaemonSet.

It has the node's files and network, and a service account with the rights of ``objects.DRIVER_RIGHTS``.
"""

import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dra_driver import settings
from dra_driver.commands.parser import parse
from dra_driver.model.errors import SettingError
from hack.cluster import kubeconfigs, objects
from hack.cluster.api import Api
from hack.cluster.control_plane import Files
from hack.cluster.errors import ApiRefused, ClusterError, NotReady
from hack.cluster.machine import PATH
from hack.cluster.node import Node
from hack.cluster.objects import Json
from hack.cluster.processes import LOOK_S, Process

ROOT: Final = Path(__file__).resolve().parents[2]
SCENARIO: Final = "h200x2"
NAME: Final = "driver"

_TOKEN_S: Final = 7 * 24 * 3600
_STOP_S: Final = 30.0
_PUBLISH_S: Final = 60.0
_REGISTER_S: Final = 30.0
_SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404


class Driver:
    """A driver process on a node. ``start`` runs it with the command line it was made with, again if need be."""

    def __init__(self, node: Node, api: Api, argv: Sequence[str], env: Mapping[str, str], name: str = NAME) -> None:
        self.node = node
        self.argv = tuple(argv)
        self.name = name
        self._api = api
        self._env = dict(env)

    @property
    def process(self) -> Process:
        """The process as it was started last."""
        return self.node.machine.processes()[self.name]

    @property
    def log(self) -> Path:
        """Its output, of all starts."""
        return self.node.machine.log(self.name)

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self.name in self.node.machine.processes() and self.process.alive()

    def start(self) -> Process:
        """Start it. Raises ClusterError."""
        return self.node.machine.start(self.name, self.argv, self._env, cwd=str(ROOT))

    def stop(self) -> int:
        """SIGTERM and wait; its exit code."""
        return self.node.machine.end(self.name, signal.SIGTERM, _STOP_S)

    def kill(self) -> int:
        """SIGKILL and wait; its exit code."""
        return self.node.machine.end(self.name, signal.SIGKILL, _STOP_S)

    def restart(self) -> Process:
        """Stop and start."""
        self.stop()
        return self.start()

    def slices(self) -> list[Json]:
        """The ResourceSlices that this node's driver has published."""
        fields = f"spec.driver={objects.DRIVER},spec.nodeName={self.node.name}"
        found: list[Json] = self._api.get(_SLICES, fieldSelector=fields)["items"]
        return found

    def wait_published(self, seconds: float = _PUBLISH_S) -> list[Json]:
        """Wait until its pool is whole; the slices. Raises ClusterError when the driver ends, NotReady."""
        deadline = time.monotonic() + seconds
        while not is_whole(slices := self.slices()):
            self.node.machine.check(self.name)
            if time.monotonic() > deadline:
                raise NotReady(f"the driver on {self.node.name} published {len(slices)} slices within {seconds:g} s")
            time.sleep(5 * LOOK_S)
        return slices

    def wait_registered(self, seconds: float = _REGISTER_S) -> None:
        """Wait until the kubelet has registered it. Raises ClusterError when the driver ends, NotReady."""
        path = f"/api/v1/nodes/{self.node.name}/proxy/metrics"
        deadline = time.monotonic() + seconds
        while not is_registered(self._api.raw("GET", path).decode("utf-8")):
            self.node.machine.check(self.name)
            if time.monotonic() > deadline:
                raise NotReady(f"the kubelet of {self.node.name} registered no {objects.DRIVER} within {seconds:g} s")
            time.sleep(5 * LOOK_S)


def is_registered(metrics: str, name: str = objects.DRIVER) -> bool:
    """Whether a kubelet's metrics count a socket of a driver among the plugins that it has registered."""
    line = rf'^plugin_manager_total_plugins{{[^}}]*{re.escape(name)}[^}}]*"actual_state_of_world"}} [1-9]'
    return re.search(line, metrics, re.MULTILINE) is not None


def is_whole(slices: Sequence[Json]) -> bool:
    """Whether slices of one pool are all there are in its newest generation."""
    pools = [each["spec"]["pool"] for each in slices]
    newest = max((pool["generation"] for pool in pools), default=0)
    counts = [pool["resourceSliceCount"] for pool in pools if pool["generation"] == newest]
    return bool(counts) and len(counts) == counts[0]


def command_line(
    node: str, kubeconfig: Path, scenario: str | None, gates: Mapping[str, bool], flags: Sequence[str] = ()
) -> list[str]:
    """How the driver is started from the checkout. Its other files are where a node has them."""
    argv = [sys.executable, "-m", "dra_driver", "run", f"--node-name={node}", f"--kubeconfig={kubeconfig}"]
    argv.append("--cdi-root=/var/run/cdi")
    if scenario:
        argv.append(f"--simulated-node={scenario}")
    if gates:
        argv.append("--feature-gates=" + ",".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items())))
    return [*argv, *flags]


def check(argv: Sequence[str]) -> None:
    """Raises ClusterError with the driver's own words when it would not take a command line of ``command_line``."""
    try:
        settings.load(parse(argv[argv.index("run") :]), {})
    except SettingError as error:
        raise ClusterError(f"driver: {error}") from error


def environment() -> dict[str, str]:
    """What a driver from the checkout finds its modules by."""
    return {"PATH": PATH, "PYTHONUNBUFFERED": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'api'}"}


def write_kubeconfig(api: Api, files: Files, node: Node) -> Path:
    """Service account, rights, a token of the node's for a week, and the kubeconfig with it. Raises ApiRefused."""
    api.apply_all(objects.driver())
    account = f"/api/v1/namespaces/{objects.DRIVER_NAMESPACE}/serviceaccounts/{objects.DRIVER_ACCOUNT}"
    answer = _patiently(api, f"{account}/token", objects.token_request(_TOKEN_S, node.name))
    authority = (files.pki / "ca.crt").read_text(encoding="ascii")
    document = kubeconfigs.with_token(api.server, authority, objects.DRIVER_ACCOUNT, answer["status"]["token"])
    return kubeconfigs.keep(node.machine.directory / "driver.kubeconfig", document)


def _patiently(api: Api, path: str, body: Json) -> Json:
    """The API server's own cache may not know the account yet."""
    for _ in range(20):
        try:
            return api.request("POST", path, body)
        except ApiRefused as refused:
            if refused.status not in (_NOT_FOUND, _CONFLICT):
                raise
        time.sleep(5 * LOOK_S)
    return api.request("POST", path, body)
