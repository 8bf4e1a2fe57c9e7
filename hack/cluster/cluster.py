"""One cluster from start to end: the order in which its parts come up, and the handles that tests need.

Everything about it is below one directory; whoever knows the directory can go on with it (``Cluster.attach``).
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import yaml

from hack.cluster import build, cleanup, control_plane, network, node, objects, packages
from hack.cluster import driver as drivers
from hack.cluster.api import Api, condition
from hack.cluster.certificates import Authority
from hack.cluster.commands import run
from hack.cluster.control_plane import ControlPlane, Files
from hack.cluster.driver import Driver
from hack.cluster.errors import ClusterError, NotReady
from hack.cluster.machine import BINDS, Machine
from hack.cluster.network import Addresses
from hack.cluster.node import Node, Shared
from hack.cluster.plan import Plan

DIRECTORY: Final = Path("/tmp/dra-cluster")

_READY_S: Final = 60.0
_LOOK_S: Final = 0.1
_NOT_HERE: Final = (*BINDS, "/proc", "/sys", "/dev")


class Cluster:
    """A cluster below a directory. ``with Cluster(...) as cluster`` starts it and removes it again."""

    def __init__(
        self,
        directory: Path = DIRECTORY,
        plan: Plan | None = None,
        say: Callable[[str], None] | None = None,
        programs: Path | None = None,
    ) -> None:
        """say: is told what takes long. programs: a folder with those of this version, on a machine that cannot build
        them and has the packages that they need. Nothing is started yet.
        """
        self.directory = directory.absolute()
        self.plan = plan or Plan()
        self._given = programs
        self.files = Files(self.directory)
        self._say = say or (lambda text: None)
        self._state: dict[str, Any] = {}

    @classmethod
    def attach(cls, directory: Path = DIRECTORY) -> "Cluster":
        """The cluster that runs below a directory. Raises ClusterError when there is none."""
        try:
            state = json.loads((directory / cleanup.STATE).read_text(encoding="utf-8"))
            plan = Plan.read(state["plan"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"no cluster in {directory}: {error}; start one with: make cluster") from error
        found = cls(directory, plan)
        found._state = state
        if "slot" not in state:
            raise ClusterError(f"the cluster in {directory} was not started to the end; start it again")
        return found

    def up(self) -> "Cluster":
        """Build what is missing, remove what an earlier cluster here has left, start, wait until nodes are Ready.

        Raises ClusterError; what was started by then is kept for a look at its logs until ``down`` or the next ``up``.
        """
        self._check()
        programs = self._given or self._build()
        cleanup.remove(self.directory)
        for name in ("nodes", "control_plane", "api"):
            # Of an earlier start of this very object.
            self.__dict__.pop(name, None)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._keep(plan=asdict(self.plan))
        self._keep(programs=str(programs.resolve()), snapshotter=node.snapshotter(self.directory))
        plane = self.machine(control_plane.MACHINE)
        plane.boot()
        lock = build.cache() / "network.lock"
        addresses = network.connect(cleanup.link(self.directory), plane.init.pid, self.plan.nodes, lock)
        self._keep(slot=addresses.slot)
        authority = control_plane.write_credentials(self.files, addresses)
        self.control_plane.start_storage()
        self.start_apiserver(wait=False)
        images = node.images_archive(self.directory)
        with ThreadPoolExecutor() as pool:
            for prepared in [pool.submit(self._prepare, each, authority, images) for each in self.nodes]:
                prepared.result()
        self.control_plane.wait_ready(self.api)
        self.api.apply_all(objects.base())
        self.control_plane.start_controllers()
        for each in self.nodes:
            each.start_kubelet()
        self.wait_nodes_ready()
        self._wait_pods_allowed()
        return self

    def down(self, keep_logs: bool = False) -> None:
        """Remove it. Idempotent. Raises ClusterError."""
        cleanup.remove(self.directory, keep_logs)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """node-1, node-2, ..."""
        shared = Shared(self.machine(control_plane.MACHINE), self.programs, self.files, self.addresses)
        numbers = range(1, self.plan.nodes + 1)
        return tuple(Node(number, self.machine(f"node-{number}"), shared) for number in numbers)

    def node(self, name: str) -> Node:
        """A node by name. Raises ClusterError."""
        found = {each.name: each for each in self.nodes}
        if name not in found:
            raise ClusterError(f"no node {name!r}, only {', '.join(found)}")
        return found[name]

    @cached_property
    def control_plane(self) -> ControlPlane:
        """etcd, API server, controller manager, scheduler."""
        gates = {**control_plane.gates(self.plan.kubernetes), **self.plan.gates}
        return ControlPlane(self.machine(control_plane.MACHINE), self.programs, self.files, gates)

    @cached_property
    def api(self) -> Api:
        """The API server, for the administrator."""
        return Api(self.files.kubeconfig)

    @property
    def addresses(self) -> Addresses:
        """Its addresses."""
        return Addresses(self._state["slot"])

    @property
    def programs(self) -> Path:
        """The folder of its programs: kubectl, helm, ctr, nvidia-ctk and the others."""
        return Path(self._state["programs"])

    @property
    def logs(self) -> Path:
        """Logs of all components, one file each: ``<machine>-<process>.log``."""
        return self.directory / "logs"

    def machine(self, name: str) -> Machine:
        """A machine by name: ``control-plane``, or a node's."""
        group = f"{cleanup.cgroup(self.directory)}/{name}"
        return Machine(name, self.directory / name, self.logs, group)

    def start_apiserver(self, wait: bool = True) -> None:
        """Start the API server, after ``stop_apiserver``. Raises ClusterError."""
        apis = (*control_plane.default_apis(self.plan.kubernetes), *self.plan.apis)
        self.control_plane.start_apiserver(self.addresses, apis)
        if wait:
            self.control_plane.wait_ready(self.api)

    def stop_apiserver(self, number: int = signal.SIGKILL) -> None:
        """End the API server with a signal; all else runs on. Raises NotReady."""
        self.control_plane.stop_apiserver(number)

    def kubectl(self, *arguments: str, text: str | None = None, seconds: float = 60.0) -> str:
        """Run kubectl as administrator and return what it prints; ``text`` is its input. Raises ClusterError."""
        command = [str(self.programs / "kubectl"), f"--kubeconfig={self.files.kubeconfig}", *arguments]
        return run(command, seconds, text=text, env=self.environment())

    def helm(self, *arguments: str, seconds: float = 120.0) -> str:
        """Run Helm as administrator and return what it prints. Raises ClusterError."""
        return run([str(self.programs / "helm"), *arguments], seconds, env=self.environment())

    def environment(self) -> dict[str, str]:
        """Environment for programs that talk to this cluster."""
        path = f"{self.programs}:{os.environ.get('PATH', '')}"
        # What Helm keeps is the cluster's, and goes with it.
        helm = {
            name: str(self.directory / "helm") for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        }
        return {**os.environ, "KUBECONFIG": str(self.files.kubeconfig), "PATH": path, **helm}

    def apply(self, source: Path | str) -> None:
        """Apply all documents of a YAML file, or of a text. Raises ClusterError."""
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        self.api.apply_all(document for document in yaml.safe_load_all(text) if document)

    def import_images(self, archive: Path, nodes: Iterable[Node] | None = None) -> None:
        """Let pods run the images of an archive, on all nodes. Raises ClusterError."""
        for each in self.nodes if nodes is None else nodes:
            each.import_images(archive, self._state["snapshotter"])

    def driver(
        self,
        on: Node,
        *flags: str,
        gates: Mapping[str, bool] | None = None,
        scenario: str | None = drivers.SCENARIO,
        env: Mapping[str, str] | None = None,
        name: str = drivers.NAME,
    ) -> Driver:
        """A driver as host process of a node, not started yet. Raises ClusterError.

        scenario: the simulated GPUs, None for real ones. name: tells several on one node apart.
        """
        kubeconfig = drivers.write_kubeconfig(self.api, self.files, on)
        argv = drivers.command_line(on.name, kubeconfig, scenario, gates or {}, flags)
        return Driver(on, self.api, argv, {**drivers.environment(), **(env or {})}, name)

    def start_driver(
        self,
        on: Node,
        *flags: str,
        gates: Mapping[str, bool] | None = None,
        scenario: str | None = drivers.SCENARIO,
        env: Mapping[str, str] | None = None,
        name: str = drivers.NAME,
    ) -> Driver:
        """As ``driver``, started, its slices published, registered with the kubelet. Raises ClusterError."""
        found = self.driver(on, *flags, gates=gates, scenario=scenario, env=env, name=name)
        found.start()
        found.wait_published()
        found.wait_registered()
        return found

    def wait_nodes_ready(self, seconds: float = _READY_S) -> None:
        """Wait until all nodes are Ready. Raises NotReady."""
        wanted = {each.name for each in self.nodes}

        def ready() -> bool:
            found = self.api.get("/api/v1/nodes")["items"]
            return wanted == {
                each["metadata"]["name"] for each in found if condition(each, "Ready").get("status") == "True"
            }

        self.wait_for(ready, f"nodes {', '.join(sorted(wanted))} Ready", seconds)

    def wait_for(self, is_so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until something is so. Raises NotReady, with ``what`` in the text."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                raise NotReady(f"not within {seconds:g} s: {what}; logs: {self.logs}")
            time.sleep(_LOOK_S)

    def status(self) -> dict[str, dict[str, str]]:
        """Each process of each machine: ``running`` or how it ended."""
        names = [control_plane.MACHINE, *(each.name for each in self.nodes)]
        found: dict[str, dict[str, str]] = {}
        for machine in map(self.machine, names):
            on = machine.running
            found[machine.name] = {"machine": "running" if on else "down"}
            for process in machine.processes():
                code = machine.exit_code(process)
                found[machine.name][process] = "running" if on and code is None else f"ended ({code})"
        return found

    def __enter__(self) -> "Cluster":
        try:
            return self.up()
        except BaseException:
            self.down(keep_logs=True)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down(keep_logs=error is not None)

    def _prepare(self, each: Node, authority: Authority, images: Path) -> None:
        each.boot()
        gates = {**control_plane.gates(self.plan.kubernetes), **self.plan.gates}
        each.write_files(authority, gates, self._state["snapshotter"])
        each.start_containerd()
        self.import_images(images, [each])

    def _wait_pods_allowed(self) -> None:
        """Pods are refused until their namespace has its service account."""
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self.wait_for(lambda: self.api.find(path) is not None, "service account default", _READY_S)

    def _build(self) -> Path:
        packages.ensure(self._say)
        return build.ensure(self.plan.kubernetes, self._say)

    def _check(self) -> None:
        self.plan.check()
        if os.geteuid() != 0:
            raise ClusterError("a cluster needs root: it makes namespaces, mounts and network interfaces")
        if any(self.directory.resolve().is_relative_to(folder) for folder in _NOT_HERE):
            raise ClusterError(
                f"directory {self.directory}: must not be below {', '.join(_NOT_HERE)}; machines have their own"
            )

    def _keep(self, **facts: object) -> None:
        self._state |= facts
        fresh = self.directory / f"{cleanup.STATE}.new"
        fresh.write_text(json.dumps(self._state, indent=1), encoding="utf-8")
        fresh.replace(self.directory / cleanup.STATE)
