"""The cards of a node, real or simulated, and what of the host goes with them: made from settings, behind the seams."""

from collections.abc import Callable
from pathlib import Path

from dra_driver import hostfs
from dra_driver import settings as settings_module
from dra_driver.cdi.device_nodes import DeviceNodes
from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.kernel_devices import KernelDevices
from dra_driver.cdi.node_maker import NodeMaker
from dra_driver.claims.recovery import BOOT_ID
from dra_driver.devices.gpu_control import ComputeModes, GpuTool, ObservingControl, ToolControl
from dra_driver.devices.memory_limits import LimitedSource
from dra_driver.model.errors import StateError
from dra_driver.observe.process_pods import ProcessPods
from dra_driver.ports import DeviceSource, GpuControl, GpuMemory
from dra_driver.settings import DeviceNodesMode, GpuControlMode, Settings
from dra_driver.settings.tools import tools


class Hardware:
    """The cards, real or simulated, behind the same seams."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingError for a scenario that cannot be read, DriverError when its tree cannot be written."""
        self.boot_id = BOOT_ID
        self.outlived: Callable[[], str] = str
        self.roots_now: Callable[[], hostfs.DriverRoots] = lambda: self.roots
        if settings.simulated_node:
            modes = self._simulate(settings.simulated_node, settings)
        else:
            modes = self._use_nvml(settings)
        locks = settings.state_directory / "tool-locks"
        locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        tool = GpuTool.under(self.roots.container_driver_root, settings.gpu_tool_timeout, locks)
        self.control: GpuControl = ToolControl(modes, tool)
        if settings.gpu_control is GpuControlMode.OBSERVE:
            self.control = ObservingControl(self.control)

    def limited(self, why_no_hook: Callable[[str], str]) -> DeviceSource:
        """The source, with what becomes of memory limits on each GPU; see ``LimitedSource``."""
        return LimitedSource(self.source, self.memory, self._sysfs, why_no_hook)

    # Each kind of node loads only what it needs: NVML's bindings and the scenario models cost megabytes.

    def _simulate(self, scenario: str, settings: Settings) -> ComputeModes:
        from dra_driver.devices.simulated import SimulatedNode
        from dra_driver.devices.simulated_memory import SimulatedMemory

        node = SimulatedNode.load(scenario, seed=settings.node_name)
        tree = settings.state_directory / "simulated-node"
        try:
            tree.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.roots = node.materialise(tree)
        except OSError as error:
            raise StateError(f"simulated node: {tree} cannot be written: {error}") from error
        self.source: DeviceSource = node.source()
        control = node.control()
        self.memory: GpuMemory = SimulatedMemory(node, control.epoch)
        self.pods, self._sysfs = ProcessPods(tree / "proc"), tree / "sys"
        kernel = KernelDevices(tree / "proc", tree / "sys")
        maker = _node_maker(settings, kernel, placeholders=True)
        nodes = DeviceNodes(self.roots, kernel, maker, placeholders=True)
        self.files = DriverFiles(self.roots, nodes, tools=tools(settings))
        own_boot_id = tree / "var" / "state" / "boot_id"
        if own_boot_id.exists():
            self.boot_id = own_boot_id
        return control

    def _use_nvml(self, settings: Settings) -> ComputeModes:
        from dra_driver.devices.nvml import NvmlSource

        self.roots = settings_module.roots(settings)
        root = self.roots.container_driver_root
        nvml = NvmlSource(lambda: hostfs.find_library(root, "libnvidia-ml.so.1"))
        self.source = self.memory = nvml
        self.pods, self._sysfs = ProcessPods(), Path("/sys")
        self.outlived = nvml.outlived
        kernel = KernelDevices(devices=settings.alt_proc_devices_path)
        # A driver container brings its own /dev, and may come after this process.
        settled = settings.dev_root is not None or settings.driver_root == Path("/")
        if not settled:
            self.roots_now = lambda: settings_module.roots(settings)
        nodes = DeviceNodes(self.roots if settled else self.roots_now, kernel, _node_maker(settings, kernel))
        self.files = DriverFiles(self.roots, nodes, tools=tools(settings))
        return nvml


def _node_maker(settings: Settings, kernel: KernelDevices, placeholders: bool = False) -> NodeMaker | None:
    if settings.device_nodes is DeviceNodesMode.REQUIRE:
        return None
    return NodeMaker(kernel, placeholders, settings.gpu_tool_timeout)
