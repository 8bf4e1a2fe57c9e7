"""The story of docs/kubelet.md, played on the first node of a cluster of hack/cluster that has no driver."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_driver_api import names
from hack.cluster import control_plane, images
from hack.cluster import driver as drivers
from hack.cluster.api import Json
from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT, Driver
from hack.trace import audit, events
from hack.trace.events import Event

REGISTRY: Final = "/var/lib/kubelet/trace"
KUBELET_REGISTRY: Final = "/var/lib/kubelet/plugins_registry"

_RELAY: Final = "trace"
_CLASSES: Final = ROOT / "dra_driver/simulator/device_classes.yaml"
_NAMESPACE: Final = "/namespaces/default"
_PODS: Final = f"/api/v1{_NAMESPACE}/pods"
_CLAIMS: Final = f"/apis/{names.RESOURCE_API_VERSION}{_NAMESPACE}/resourceclaims"
_PATIENCE_S: Final = 120.0
_SETTLE_S: Final = 1.0
_WIPED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A title, when it began, in seconds since 1970, and what happened."""

    title: str
    began: float
    events: Sequence[Event]


class Story:
    """Plays on a cluster that is up. Raises ClusterError, also when something is waited for in vain."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._node = cluster.nodes[0]
        self._machine = self._node.machine
        self._audit = cluster.directory / "control-plane" / "audit.log"
        self._began = 0.0

    def play(self) -> Iterator[Scene]:
        """Scene by scene. What it has made is removed at the end; the API server goes on writing its log."""
        self._audited()
        self._cluster.apply(_CLASSES)
        with ExitStack() as made:
            made.enter_context(self._relay())
            yield from self._scenes(made)

    def _scenes(self, made: ExitStack) -> Iterator[Scene]:
        driver = self._driver(slicing=True)
        made.callback(lambda: driver.running and driver.stop())
        # Before the driver stops: pods leave only while it runs.
        made.callback(self._delete, _CLAIMS, "shared", "refused")
        made.callback(self._delete, _PODS, "first", "second", "third", "refused")
        scene = self._scene
        yield scene("The driver starts", lambda: self._start(driver))
        yield scene("A pod with a claim, then a second pod with the same claim", lambda: self._share("first", "second"))
        yield scene("The driver is restarted while they run", lambda: self._start(driver, driver.stop))
        yield scene("The driver is killed and started again", lambda: self._start(driver, driver.kill))
        yield scene("The kubelet is restarted", self._restart_kubelet)
        yield scene("A third pod with that claim", lambda: self._share("third"))
        yield scene("The pods go, one after the other", lambda: self._delete(_PODS, "third", "second", "first"))
        driver.stop()
        driver = self._driver(slicing=False)
        self._begin()
        self._start(driver)
        yield scene("A claim that the driver refuses: the gate TimeSlicingSettings is off", self._refuse)
        yield scene("The pod of that claim goes", lambda: self._delete(_PODS, "refused"))
        yield scene("The driver stops and stays away", lambda: self._stay_away(driver))

    def _scene(self, title: str, action: Callable[[], object]) -> Scene:
        self._begin()
        action()
        time.sleep(_SETTLE_S)
        return Scene(title, self._began, self._happened())

    def _begin(self) -> None:
        self._began = time.time()

    def _start(self, driver: Driver, end: Callable[[], object] | None = None) -> None:
        if end:
            end()
        driver.start()
        driver.wait_published()
        self._wait_told("NotifyRegistrationStatus")
        self._wait_told("NodeWatchResources", who=events.ANSWER)

    def _share(self, *pods: str) -> None:
        self._cluster.api.apply(_claim("shared"))
        for name in pods:
            self._cluster.api.apply(_pod(name, "shared"))
            self._wait(partial(self._runs, name), f"pod {name} to run")

    def _restart_kubelet(self) -> None:
        self._node.restart_kubelet()
        self._wait_told("NotifyRegistrationStatus")
        self._wait_told("NodeWatchResources", who=events.ANSWER)
        self._wait_told("create resourceslices")

    def _refuse(self) -> None:
        self._cluster.api.apply(_claim("refused"))
        self._cluster.api.apply(_pod("refused", "refused"))
        self._wait_told("NodePrepareResources", 3)

    def _stay_away(self, driver: Driver) -> None:
        driver.stop()
        self._wait(lambda: not driver.slices(), "the kubelet to remove the slices", _WIPED_S)

    def _delete(self, collection: str, *names_: str) -> None:
        for name in names_:
            path = f"{collection}/{name}"
            self._cluster.api.delete(path)
            self._wait(partial(self._gone, path), f"{name} to go")

    def _gone(self, path: str) -> bool:
        return self._cluster.api.find(path) is None

    def _runs(self, pod: str) -> bool:
        states = (self._cluster.api.get(f"{_PODS}/{pod}").get("status") or {}).get("containerStatuses") or [{}]
        return all("running" in each.get("state", {}) for each in states)

    def _driver(self, *, slicing: bool) -> Driver:
        flag = f"--kubelet-registrar-directory-path={REGISTRY}"
        return self._cluster.driver(self._node, flag, gates={"TimeSlicingSettings": slicing})

    @contextmanager
    def _relay(self) -> Iterator[None]:
        """The relay as process of the node, which sees the node's files at the usual paths."""
        plugin = f"/var/lib/kubelet/plugins/{names.DRIVER_NAME}"
        folders = (plugin, f"{plugin}/simulated-node/var/log", "/var/run/cdi")
        relay = [sys.executable, "-m", "hack.trace", "relay", REGISTRY, "--output=json"]
        self._machine.log(_RELAY).unlink(missing_ok=True)
        self._machine.start(
            _RELAY, [*relay, *(f"--files={each}" for each in folders)], drivers.environment(), cwd=str(ROOT)
        )
        try:
            self._wait(self._machine.path(REGISTRY).is_dir, f"the relay to make {REGISTRY}")
            yield
        finally:
            self._machine.end(_RELAY)

    def _audited(self) -> None:
        """Have the API server write its audit log: it is started again as it was, with two flags more."""
        plane = self._cluster.control_plane.machine
        process = plane.processes()[control_plane.API_SERVER]
        argv = Path(f"/proc/{process.pid}/cmdline").read_text("utf-8").rstrip("\0").split("\0")
        policy = self._audit.with_name("audit-policy.json")
        policy.write_text(json.dumps(audit.POLICY), encoding="utf-8")
        flags = [f"--audit-policy-file={policy}", f"--audit-log-path={self._audit}"]
        self._cluster.stop_apiserver()
        self._audit.unlink(missing_ok=True)
        plane.start(control_plane.API_SERVER, [*(each for each in argv if "--audit-" not in each), *flags])
        self._cluster.control_plane.wait_ready(self._cluster.api)
        self._cluster.wait_nodes_ready()

    def _happened(self) -> list[Event]:
        """Since this scene began."""
        told = [*events.load(_lines(self._machine.log(_RELAY))), *audit.events(_lines(self._audit))]
        return [event for event in told if event.at >= self._began]

    def _wait_told(self, beginning: str, times: int = 1, who: str = "") -> None:
        def told() -> bool:
            found = [event for event in self._happened() if event.what.startswith(beginning)]
            return sum(who in ("", event.who) for event in found) >= times

        self._wait(told, f"{times} times {beginning!r} in the record")

    def _wait(self, is_so: Callable[[], Any], what: str, seconds: float = _PATIENCE_S) -> None:
        self._cluster.wait_for(lambda: bool(is_so()), what, seconds)


def _lines(path: Path) -> list[str]:
    """Whole lines; the last one may be being written."""
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


def _claim(name: str) -> Json:
    parameters = {
        "apiVersion": names.CONFIG_API_VERSION,
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
    }
    request = {"name": "gpu", "exactly": {"deviceClassName": names.DRIVER_NAME}}
    config = {"requests": ["gpu"], "opaque": {"driver": names.DRIVER_NAME, "parameters": parameters}}
    return {
        "apiVersion": names.RESOURCE_API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request], "config": [config]}},
    }


def _pod(name: str, claim: str) -> Json:
    container = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sleep", "100000"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
