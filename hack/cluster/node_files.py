"""Configuration of a node's programs, as documents. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from hack.cluster import images, network
from hack.cluster.control_plane import Files

KUBELET_PORT: Final = 10250
CNI_PROGRAMS: Final = "/usr/lib/cni"
RUNTIME_SOCKET: Final = "/run/containerd/containerd.sock"
CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
MOST_PODS: Final = 240
"""Of the 254 addresses that a node has for pods."""

_LEFT_OUT: Final = (
    # They look for file systems and devices that are not here, or write outside the machine's folders.
    "io.containerd.internal.v1.opt",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
)


def containerd(snapshotter: str, runc: str) -> str:
    """containerd's config.toml, version 3."""
    cri = "plugins.'io.containerd.cri.v1"
    lines = [
        "version = 3",
        "root = '/var/lib/containerd'",
        "state = '/run/containerd'",
        f"disabled_plugins = {_strings(_LEFT_OUT)}",
        "[grpc]",
        f"address = '{RUNTIME_SOCKET}'",
        f"[{cri}.images']",
        f"snapshotter = '{snapshotter}'",
        f"[{cri}.images'.pinned_images]",
        f"sandbox = '{images.PAUSE}'",
        f"[{cri}.runtime']",
        "enable_cdi = true",
        f"cdi_spec_dirs = {_strings(CDI_DIRECTORIES)}",
        "disable_apparmor = true",
        # Without CAP_SYS_RESOURCE no sandbox starts otherwise.
        "restrict_oom_score_adj = true",
        f"[{cri}.runtime'.cni]",
        f"bin_dirs = ['{CNI_PROGRAMS}']",
        "conf_dir = '/etc/cni/net.d'",
        f"[{cri}.runtime'.containerd]",
        "default_runtime_name = 'runc'",
        f"[{cri}.runtime'.containerd.runtimes.runc]",
        "runtime_type = 'io.containerd.runc.v2'",
        f"[{cri}.runtime'.containerd.runtimes.runc.options]",
        f"BinaryName = '{runc}'",
        "SystemdCgroup = false",
    ]
    return "\n".join(lines) + "\n"


def cni(pods: str) -> dict[str, Any]:
    """The pods' network: a pair of veths each, addresses from ``pods``."""
    # The list of addresses in use is for one boot, as the pods are.
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}


def kubelet(files: Files, node: str, address: str, cgroup_root: str, gates: Mapping[str, bool]) -> dict[str, Any]:
    """KubeletConfiguration. cgroup_root: below it all pods are; as /dra-cluster-1/node-1."""
    pki = files.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": KUBELET_PORT,
        "healthzBindAddress": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{node}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{node}.key"),
        "rotateCertificates": False,
        "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.DNS_SERVICE],
        "resolvConf": "/etc/resolv.conf",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "podLogsDir": "/var/log/pods",
        "maxPods": MOST_PODS,
        "serializeImagePulls": False,
        # A pod whose claims could not be prepared is tried again only when it is synced anew: by default after 60 to
        # 90 seconds, for which no test wants to wait.
        "syncFrequency": "5s",
        # The images cannot be had again: none may be collected, however full the disk is.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
        "featureGates": dict(gates),
    }


def _strings(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"
