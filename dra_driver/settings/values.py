"""What settings are once read: frozen values. No parsing and no I/O."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from dra_driver.cdi.tools import EditsSource, HookMode
from dra_driver.features import Gates
from dra_driver.sharing.memory_limits import ShareMemory
from dra_driver.sharing.shares import ConsumableShares
from dra_driver_api.names import DRIVER_NAME, socket_names


class GpuControlMode(Enum):
    """SET changes the settings of a GPU where a claim needs it; OBSERVE reads and never changes."""

    SET = "set"
    OBSERVE = "observe"


class DevicePluginConflict(Enum):
    """What happens where a device plugin offers the same GPUs."""

    REFUSE = "refuse"
    WARN = "warn"


class DeviceNodesMode(Enum):
    """CREATE makes device nodes that are missing; REQUIRE fails the claim that needs them."""

    CREATE = "create"
    REQUIRE = "require"


class MpsLauncher(Enum):
    """What runs MPS control daemons: a Deployment of each, or the driver itself as child processes."""

    DEPLOYMENT = "deployment"
    PROCESS = "process"


class LoggingFormat(Enum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class Endpoint(NamedTuple):
    """A TCP address to listen on. host: '' means all addresses; port: 0 means any free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a driver process, read once. Field names are those of ``table.TABLE``.

    Paths are absolute but for ``kubeconfig``, ``sharing_profile`` and a file given as ``simulated_node``. None and
    '' mean "not given". healthcheck_port: negative is off, 0 any free port. gpu_tool_timeout: seconds. kube_api_qps:
    requests a second in the long run; kube_api_burst: requests at once.
    """

    node_name: str
    namespace: str
    pod_uid: str
    kubeconfig: Path | None
    kube_api_qps: float
    kube_api_burst: int
    kubelet_registrar_directory: Path
    kubelet_plugins_directory: Path
    state_directory: Path
    cdi_root: Path
    cdi_edits: EditsSource
    cdi_hooks: HookMode
    cdi_hook_path: Path | None
    ctk_path: Path | None
    driver_root: Path
    container_driver_root: Path | None
    dev_root: Path | None
    container_dev_root: Path | None
    device_nodes: DeviceNodesMode
    device_plugin_conflict: DevicePluginConflict
    host_root: Path
    alt_proc_devices_path: Path | None
    gates: Gates
    consumable_shares: ConsumableShares
    sharing_profile: Path | None
    share_memory: ShareMemory
    max_clients_per_gpu: int
    gpu_control: GpuControlMode
    gpu_tool_timeout: float
    mps_launcher: MpsLauncher
    image_name: str
    image_pull_secrets: tuple[str, ...]
    image_pull_policy: str
    service_account_name: str
    mps_daemon_priority_class: str
    simulated_node: str | None
    healthcheck_port: int
    http_endpoint: Endpoint | None
    metrics_path: str
    additional_xids_to_ignore: frozenset[int]
    verbosity: int
    logging_format: LoggingFormat
    vmodule: str
    log_flush_frequency: str

    @property
    def plugin_directory(self) -> Path:
        """This driver's directory in the kubelet's plugins directory: sockets, and state by default."""
        return self.kubelet_plugins_directory / DRIVER_NAME

    @property
    def registration_socket(self) -> Path:
        """Where the kubelet looks for the plugin; one a pod when ``pod_uid`` is given (rolling update)."""
        name, _ = socket_names(self.pod_uid)
        return self.kubelet_registrar_directory / name

    @property
    def dra_socket(self) -> Path:
        """Where the kubelet calls prepare and unprepare; one a pod when ``pod_uid`` is given."""
        return self.plugin_directory / socket_names(self.pod_uid)[1]
