"""One kubelet's folders with instances of this driver, and with another driver of its name."""

from collections.abc import Callable
from pathlib import Path

from dra_driver.claims.instance import Instance
from dra_driver.kubelet.other_driver import CONDITION, OtherDriver
from dra_driver.kubelet.plugin import KubeletPlugin, Sockets, WatchTimes
from dra_driver.observe.readiness import Conditions
from tests.fakes.cluster import FakeEvents
from tests.fakes.other_driver import OtherDraDriver
from tests.grpc.helpers import Remembering, Service, services

TIMES = WatchTimes(poll=0.02, longest_wait=0.05, unasked=60)


class Clock:
    """Two seconds pass between looks, and more when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


class Ours:
    """One instance of this driver: its locks, its sockets, its look for others."""

    def __init__(self, root: Path, pod_uid: str, refuse: bool) -> None:
        plugins = root / "plugins" / "gpu.nvidia.com"
        self.instance = Instance(plugins, shared=bool(pod_uid))
        self.events, self.conditions, self.clock = FakeEvents(), Conditions(()), Clock()
        sockets = Sockets.of(root / "registry", plugins, pod_uid or None)
        self.other = OtherDriver(
            sockets, self.conditions, self.events, refuse=refuse, sole=self.instance.may_publish, clock=self.clock
        )
        offered = services(Service())
        self.plugin = KubeletPlugin(
            sockets, offered, Remembering(), self.conditions, TIMES, stand_aside=self.other.in_the_way
        )
        self.registration, self.dra = sockets.registration, sockets.dra

    def condition(self, name: str = CONDITION) -> tuple[bool, str]:
        """Of /readyz; holding without a word where it was never stated."""
        found = self.conditions.report()["conditions"].get(name, {"ok": True, "message": ""})
        return found["ok"], found["message"]

    def stop(self) -> None:
        self.plugin.stop(0)
        self.instance.close()


MakeOurs = Callable[..., Ours]
MakeOther = Callable[..., OtherDraDriver]
