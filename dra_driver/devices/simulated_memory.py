"""Memory limits and processes of a simulated node's GPUs. Implements ports.GpuMemory.

Whether limits are known is the scenario's ``driver.memoryLimits``. Processes are what a test or an admin writes into
``var/state/<uuid>/processes`` of the tree, a line each: process id and MiB, or ``-`` where NVML could not tell.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dra_driver.devices.nvml_calls import FunctionMissing
from dra_driver.devices.simulated import SimulatedNode
from dra_driver.devices.simulated_cards import Card
from dra_driver.model.devices import GpuProcess
from dra_driver.model.errors import ControlError, ControlGone, DriverNotReady


class SimulatedMemory:
    """epoch: the node's, as of its settings."""

    def __init__(self, node: SimulatedNode, epoch: Callable[[], str]) -> None:
        self._node = node
        self.epoch = epoch

    def check_memory_limits(self, gpu_uuid: str) -> None:
        """See ports.GpuMemory."""
        with self._card(gpu_uuid, "memory limits cannot be read") as card:
            self._node.call("memoryLimits", card.position)
            if not self._node.scenario.driver.memory_limits:
                raise FunctionMissing("memoryLimits: not in this driver (simulated)")

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        """See ports.GpuMemory."""
        with self._card(gpu_uuid, "processes cannot be read") as card:
            self._node.call("processes", card.position)
            lines = (self._node.state.text(gpu_uuid, "processes") or "").splitlines()
            return tuple(_process(*line.split()) for line in lines)

    @contextmanager
    def _card(self, gpu_uuid: str, problem: str) -> Iterator[Card]:
        try:
            card = self._node.card(gpu_uuid) if self._node.loaded else None
            if card is None:
                raise ControlGone("no such GPU on this node any more")
            yield card
        except DriverNotReady as error:
            raise ControlGone(f"GPU {gpu_uuid}: {problem}: {error}") from error
        except ControlError as error:
            raise type(error)(f"GPU {gpu_uuid}: {problem}: {error}") from error


def _process(pid: str, mebibytes: str) -> GpuProcess:
    return GpuProcess(pid=int(pid), memory_bytes=None if mebibytes == "-" else int(mebibytes) << 20)
