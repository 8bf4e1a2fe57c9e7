"""Every setting, declared once: flags, environment names, default, parser, help. Nothing is read here.

Flags, environment names and defaults are those of NVIDIA's driver wherever it has the setting, so that its
DaemonSets and charts start this driver unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.cdi.tools import EditsSource, HookMode
from dra_driver.features import parse_gates
from dra_driver.settings import parsers
from dra_driver.settings.values import (
    DeviceNodesMode,
    DevicePluginConflict,
    GpuControlMode,
    LoggingFormat,
    MpsLauncher,
)
from dra_driver.sharing.memory_limits import ShareMemory

NODE: Final = "node and cluster"
KUBELET: Final = "kubelet and container runtime"
DRIVER: Final = "NVIDIA driver on the host"
SHARING: Final = "sharing and GPU control"
MPS: Final = "MPS control daemons, with gate MPSSupport"
SIMULATION: Final = "simulation"
OBSERVING: Final = "health, metrics and logs"
COMPATIBILITY: Final = "accepted for compatibility, without effect in this version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    field: its name in ``Settings``. default: text, read by ``parse`` like any other. shown_default: what help
    says instead of ``default``. empty_env_counts: an environment variable that is set but empty is a value,
    not absence.
    """

    field: str
    flags: tuple[str, ...]
    env: tuple[str, ...]
    parse: Callable[[str], Any]
    help: str
    group: str
    metavar: str
    default: str = ""
    shown_default: str = ""
    required: bool = False
    empty_env_counts: bool = False

    @property
    def flag(self) -> str:
        """The flag to call it by."""
        return self.flags[0]


def _setting(flag: str, parse: Callable[[str], Any], group: str, help_text: str, **more: Any) -> Setting:
    """A setting whose field and environment name follow from its flag, unless ``more`` says otherwise."""
    word = flag.lstrip("-").replace("-", "_")
    more.setdefault("field", word)
    more.setdefault("flags", (flag,))
    more.setdefault("env", (word.upper(),))
    return Setting(parse=parse, group=group, help=help_text, **more)


# A table reads best two lines a row, which the formatter would spread over eight.
# fmt: off
_NODE_AND_CLUSTER = (
    _setting("--node-name", parsers.node_name, NODE, "name of the Node object; also the pool's name",
             metavar="NAME", required=True),
    _setting("--pod-uid", parsers.pod_uid, NODE,
             "UID of the driver's Pod; gives each Pod its own sockets, so that an update leaves no gap",
             metavar="UID", shown_default="one fixed pair of sockets"),
    _setting("--kubeconfig", parsers.optional_path, NODE, "kubeconfig file to reach the API server with",
             metavar="FILE", shown_default="the Pod's service account"),
    _setting("--kube-api-qps", parsers.positive_number, NODE, "average requests a second to the API server",
             metavar="N", default="5"),
    _setting("--kube-api-burst", parsers.positive_integer, NODE, "requests to the API server at once",
             metavar="N", default="10"),
)

_KUBELET_AND_RUNTIME = (
    _setting("--kubelet-registrar-directory-path", parsers.directory, KUBELET,
             "where the kubelet looks for plugin sockets",
             field="kubelet_registrar_directory", metavar="DIR", default="/var/lib/kubelet/plugins_registry"),
    _setting("--kubelet-plugins-directory-path", parsers.directory, KUBELET, "where plugins keep their files",
             field="kubelet_plugins_directory", metavar="DIR", default="/var/lib/kubelet/plugins"),
    _setting("--state-dir", parsers.optional_directory, KUBELET, "where the database of prepared claims is",
             field="state_directory", metavar="DIR", shown_default="gpu.nvidia.com in the plugins directory"),
    _setting("--cdi-root", parsers.directory, KUBELET, "where CDI specs are written, for the runtime to read",
             metavar="DIR", default="/etc/cdi"),
    _setting("--cdi-edits", parsers.one_of(EditsSource), KUBELET,
             "who looks for the driver's files: nvidia-ctk, the driver itself (builtin), or nvidia-ctk where it can "
             "(auto)", metavar="auto|nvidia-ctk|builtin", default="auto"),
    _setting("--cdi-hooks", parsers.one_of(HookMode), KUBELET,
             "what makes links and loader cache in containers: nvidia-cdi-hook; nothing, with each library mounted "
             "under all its names (none); nvidia-cdi-hook where it is there (auto)",
             metavar="auto|nvidia-cdi-hook|none", default="auto"),
    _setting("--nvidia-cdi-hook-path", parsers.optional_directory, KUBELET, "nvidia-cdi-hook, as the host sees it",
             field="cdi_hook_path", metavar="FILE",
             shown_default="a copy of the image's own in the plugins directory, else the host's"),
    _setting("--nvidia-ctk-path", parsers.optional_directory, KUBELET, "nvidia-ctk, as this process sees it",
             field="ctk_path", metavar="FILE", shown_default="the image's own, else the host's"),
)

_HOST_DRIVER = (
    _setting("--nvidia-driver-root", parsers.directory, DRIVER,
             "root of the driver installation, as the host sees it",
             field="driver_root", flags=("--nvidia-driver-root", "--host_driver-root"),
             env=("NVIDIA_DRIVER_ROOT", "HOST_DRIVER_ROOT"), metavar="DIR", default="/"),
    _setting("--container-driver-root", parsers.optional_directory, DRIVER,
             "the same tree, as this process sees it", env=("DRIVER_ROOT_CTR_PATH",), metavar="DIR",
             shown_default="/driver-root if it exists, else the driver root"),
    _setting("--nvidia-dev-root", parsers.optional_directory, DRIVER,
             "root that holds dev/nvidia*, as the host sees it", field="dev_root", metavar="DIR",
             shown_default="the driver root if it holds device nodes, else /"),
    _setting("--container-dev-root", parsers.optional_directory, DRIVER,
             "the dev root, as this process sees it", env=("DEV_ROOT_CTR_PATH",), metavar="DIR",
             shown_default="follows from the other roots"),
    _setting("--device-nodes", parsers.one_of(DeviceNodesMode), DRIVER,
             "create: make /dev/nvidia* that a claim needs and the dev root lacks, which may load NVIDIA's kernel "
             "modules; require: fail the claim", metavar="create|require", default="create"),
    _setting("--device-plugin-conflict", parsers.one_of(DevicePluginConflict), DRIVER,
             "where a device plugin offers GPUs of this node too (allocatable nvidia.com/gpu), or another driver is "
             "registered as gpu.nvidia.com. refuse: offer none; warn: say so", metavar="refuse|warn", default="refuse"),
    _setting("--alt-proc-devices-path", parsers.optional_directory, DRIVER,
             "file to read in place of /proc/devices", metavar="FILE", shown_default="/proc/devices"),
)

_SHARING = (
    _setting("--feature-gates", parse_gates, SHARING,
             "gates to switch on or off, such as TimeSlicingSettings=true,MPSSupport=false",
             field="gates", metavar="GATES", shown_default="each gate's own default"),
    _setting("--consumable-shares", parsers.consumable_shares, SHARING,
             "let several claims have one device: disabled, memory (each takes a part of it), unlimited, or a number "
             "of shares; with gate ConsumableShares", metavar="MODE|N", default="disabled"),
    _setting("--sharing-profile", parsers.optional_path, SHARING,
             "YAML file with the sharing of single devices, which wins over --consumable-shares; read again when it "
             "changes; with gate ConsumableShares", metavar="FILE", shown_default="none"),
    _setting("--share-memory", parsers.one_of(ShareMemory), SHARING,
             "GPU memory of a claim that has shares of a GPU and asks for no memory: no limit (none), or the part that "
             "its shares are (even); with gate ConsumableShares", metavar="none|even", default="none"),
    _setting("--max-clients-per-gpu", parsers.positive_integer, SHARING,
             "most clients that one physical GPU may have through shares, over all its MIG devices",
             metavar="N", default="48"),
    _setting("--gpu-control", parsers.one_of(GpuControlMode), SHARING,
             "set: change a GPU's settings where a claim needs it; observe: only read, refuse such claims",
             metavar="set|observe", default="set"),
    _setting("--gpu-tool-timeout", parsers.seconds, SHARING,
             "time limit of one run of nvidia-smi or nvidia-modprobe, in seconds", metavar="SECONDS", default="10"),
    _setting("--simulated-node", parsers.optional_text, SIMULATION,
             "serve the GPUs of a scenario, not real ones: a name that ships with the driver, or a file",
             metavar="NAME|FILE", shown_default="real GPUs"),
)

_MPS = (
    _setting("--mps-launcher", parsers.one_of(MpsLauncher), MPS,
             "what runs MPS control daemons: a Deployment for each (deployment); this driver (process), with which "
             "they end where it runs in a pod", metavar="deployment|process", default="deployment"),
    _setting("--namespace", parsers.namespace, MPS, "namespace of the Deployments: the driver's own",
             metavar="NAME", default="default"),
    _setting("--image-name", parsers.text, MPS, "image of their pods: the driver's own", metavar="IMAGE",
             shown_default="none; launcher deployment needs it"),
    _setting("--image-pull-secrets", parsers.names, MPS, "pull secrets of that image", metavar="NAME,NAME"),
    _setting("--image-pull-policy", parsers.pull_policy, MPS, "pull policy of that image",
             metavar="Always|IfNotPresent|Never", shown_default="Kubernetes' own"),
    _setting("--service-account-name", parsers.text, MPS, "service account of their pods, which have no token of it",
             metavar="NAME", shown_default="default"),
    _setting("--mps-daemon-priority-class", parsers.text, MPS, "priority class of their pods", metavar="NAME",
             shown_default="none"),
)

_OBSERVING = (
    _setting("--healthcheck-port", parsers.healthcheck_port, OBSERVING,
             "port of the gRPC health service; -1 is off", metavar="PORT", default="-1"),
    _setting("--http-endpoint", parsers.http_endpoint, OBSERVING,
             "address of the HTTP server for metrics and health", metavar="HOST:PORT", shown_default="off"),
    _setting("--metrics-path", parsers.metrics_path, OBSERVING, "path of the metrics; empty is off",
             metavar="PATH", default="/metrics", empty_env_counts=True),
    _setting("--logging-format", parsers.one_of(LoggingFormat), OBSERVING, "how log lines look",
             metavar="text|json", default="text"),
    _setting("--v", parsers.verbosity, OBSERVING, "log verbosity; 5 and above adds debug messages",
             field="verbosity", flags=("-v", "--v"), env=("LOG_VERBOSITY", "V"), metavar="N", default="0"),
)

_COMPATIBILITY = (
    _setting("--host-root", parsers.directory, COMPATIBILITY, "the host's /, for VFIO",
             metavar="DIR", default="/host-root"),
    _setting("--additional-xids-to-ignore", parsers.xids, COMPATIBILITY, "XIDs that do not taint a GPU",
             metavar="N,N"),
    _setting("--vmodule", parsers.text, COMPATIBILITY, "log verbosity by file", metavar="PATTERN=N"),
    _setting("--log-flush-frequency", parsers.text, COMPATIBILITY, "how long log lines may be held back",
             metavar="DURATION"),
)
# fmt: on

TABLE: Final = (
    *_NODE_AND_CLUSTER,
    *_KUBELET_AND_RUNTIME,
    *_HOST_DRIVER,
    *_SHARING,
    *_MPS,
    *_OBSERVING,
    *_COMPATIBILITY,
)
"""All settings, in the order help shows them."""
