"""The node's MPS control daemons: how they are run, made from settings, when the first is needed."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from dra_driver.cluster.connection import Connection
from dra_driver.features import MPS_SUPPORT
from dra_driver.hostfs import DriverRoots
from dra_driver.model.mps import MpsDaemon, MpsFolders
from dra_driver.ports import MpsDaemons, NodeReader
from dra_driver.settings import MpsLauncher, Settings

if TYPE_CHECKING:
    from dra_driver.mps.process import ProcessLauncher

FOLDER: Final = "mps"
"""In the plugin's directory: the folders of the daemons."""


class NodeMpsDaemons:
    """Implements ports.MpsDaemons with what is made on the first call: most nodes never have such a daemon.

    roots: as they are now, since a driver container may come later than this process. Whether the gate is on matters to
    the search for what is left over, and to nothing else: a claim of before is served to its end.
    """

    def __init__(
        self, settings: Settings, roots: Callable[[], DriverRoots], connection: Connection, node: NodeReader
    ) -> None:
        self._root = settings.plugin_directory / FOLDER
        self._wanted = MPS_SUPPORT in settings.gates
        self._make = partial(self._daemons, settings, roots, connection, node)
        self._made: MpsDaemons | None = None
        self._processes: ProcessLauncher | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def check(self) -> None:
        """See ports.MpsDaemons."""
        self._get().check()

    def folders(self, daemon_id: str) -> MpsFolders:
        """See ports.MpsDaemons."""
        return self._get().folders(daemon_id)

    def start(self, daemon: MpsDaemon) -> None:
        """See ports.MpsDaemons."""
        self._get().start(daemon)

    def wait(self, daemon_id: str, timeout_s: float) -> None:
        """See ports.MpsDaemons."""
        self._get().wait(daemon_id, timeout_s)

    def serves(self, daemon_id: str) -> bool:
        """See ports.MpsDaemons."""
        return self._get().serves(daemon_id)

    def session(self, daemon_id: str) -> str:
        """See ports.MpsDaemons."""
        return self._get().session(daemon_id)

    def stop(self, daemon_id: str, timeout_s: float) -> None:
        """See ports.MpsDaemons."""
        self._get().stop(daemon_id, timeout_s)

    def present(self) -> Sequence[MpsDaemon]:
        """See ports.MpsDaemons. Where the gate is off, those that have a folder: the right to look may be gone."""
        return self._get().present() if self._wanted or self._has_folders() else ()

    def _has_folders(self) -> bool:
        try:
            return any(self._root.iterdir())
        except OSError:
            return False

    def close(self) -> None:
        """Start nothing again, wait for nothing. Daemons go on, as do the pods that they serve."""
        self._closing.set()
        with self._lock:
            if self._processes is not None:
                self._processes.close()

    def _get(self) -> MpsDaemons:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _daemons(
        self, settings: Settings, roots: Callable[[], DriverRoots], connection: Connection, node: NodeReader
    ) -> MpsDaemons:
        from dra_driver.cluster.deployments import ApiDeployments
        from dra_driver.mps.daemons import Daemons
        from dra_driver.mps.deployment import DeploymentLauncher
        from dra_driver.mps.manifest import DaemonPods
        from dra_driver.mps.mounts import KernelMounts, NoMounts
        from dra_driver.mps.process import ProcessLauncher
        from dra_driver.mps.tool import MpsTool

        pods = DaemonPods(
            node_name=settings.node_name,
            image=settings.image_name,
            pull_policy=settings.image_pull_policy,
            pull_secrets=settings.image_pull_secrets,
            service_account=settings.service_account_name,
            priority_class=settings.mps_daemon_priority_class,
        )
        by_deployment = settings.mps_launcher is MpsLauncher.DEPLOYMENT
        deployments = DeploymentLauncher(
            ApiDeployments(connection, settings.namespace),
            node,
            pods,
            roots,
            wanted=self._wanted and by_deployment,
        )
        root = roots().container_driver_root
        self._processes = ProcessLauncher(root)
        launchers = (deployments, self._processes) if by_deployment else (self._processes, deployments)
        # The processes of a simulated node need no memory of their own, and nobody need be root to run them.
        memory = NoMounts() if settings.simulated_node and not by_deployment else KernelMounts()
        return Daemons(self._root, MpsTool(root), launchers[0], launchers[1:], memory, closing=self._closing)
