"""Has NVML of a simulated node tell that processes of real containers use memory of its GPUs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from dra_driver.devices.driver_tree import STATE
from hack.cluster.cluster import Cluster
from hack.cluster.node import Node
from hack.cluster.node_files import RUNTIME_SOCKET
from tests.e2e.manifests import Json
from tests.e2e.node_view import NodeView
from tests.e2e.world import container_ids

FIRST_OF_NODE: Final = 1
"""A process of the node itself, in no pod."""
_SCHEME: Final = "containerd://"


class GpuUse:
    """The process tables of a node's GPUs. Process ids are the node's, as NVML gives them.

    The simulated node looks for cgroups of processes in a folder of its own: what is put there leads to the kernel's
    own files of the process, so that the driver reads the cgroup that kubelet and runtime really made.
    """

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._node = node
        self._ctr = str(cluster.programs / "ctr")
        self._tree = NodeView(node).tree
        self._made: set[Path] = set()

    def processes(self, pod: Json) -> list[int]:
        """All processes of a pod's containers. Raises ClusterError."""
        found = []
        for name in runtime_ids([pod]):
            command = [self._ctr, "--address", RUNTIME_SOCKET, "--namespace", "k8s.io", "tasks", "ps", name]
            _, *lines = self._node.machine.run(command).splitlines()
            found += [int(line.split()[0]) for line in lines]
        return sorted(found)

    def show(self, gpu_uuid: str, mebibytes: Mapping[int, int]) -> None:
        """Have these processes, and no others, use so much memory of a GPU each."""
        for pid in mebibytes:
            link = self._tree / "proc" / str(pid)
            if not link.is_symlink():
                link.symlink_to(f"/proc/{pid}")
            self._made.add(link)
        table = self._tree / STATE / gpu_uuid / "processes"
        fresh = table.with_suffix(".new")
        fresh.write_text("".join(f"{pid} {amount}\n" for pid, amount in mebibytes.items()), encoding="ascii")
        fresh.replace(table)
        self._made.add(table)

    def clear(self) -> None:
        """Nobody uses anything."""
        for path in self._made:
            path.unlink(missing_ok=True)
        self._made.clear()


def runtime_ids(pods: Iterable[Json]) -> list[str]:
    """Ids of the containers of pods, as the runtime has them."""
    return [found.removeprefix(_SCHEME) for found in container_ids(pods)]


def exceeded(metrics: str) -> float:
    """How often the driver has told of a pod that uses too much, by its metrics page."""
    (line,) = (line for line in metrics.splitlines() if line.startswith("nvidia_dra_memory_budget_exceeded_total"))
    return float(line.split()[-1])
