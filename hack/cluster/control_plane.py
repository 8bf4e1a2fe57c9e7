"""etcd and the control plane on a machine of their own: command lines, files, starting and stopping."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster import kubeconfigs, network, versions
from hack.cluster.api import Api
from hack.cluster.certificates import Authority, Pair, signing_key
from hack.cluster.machine import Machine
from hack.cluster.network import Addresses
from hack.cluster.processes import Process

MACHINE: Final = "control-plane"
API_SERVER: Final = "kube-apiserver"

_GATES: Final = {
    "DRAConsumableCapacity": True,
    "DRADeviceTaints": True,
    "DRAExtendedResource": True,
    "DRAPartitionableDevices": True,
    "DRAResourceClaimDeviceStatus": True,
}
"""On in every component: in 1.34 most are alpha, and off."""
_HEALTH: Final = "ResourceHealthStatus"
_HEALTH_SINCE: Final = 36
"""Alpha before. The kubelet of 1.34 lists a device once more with each repeated prepare, and the API server refuses the
status of such a pod for ever."""

_ETCD: Final = "http://127.0.0.1:2379"
_READY_S: Final = 90.0
_STOP_S: Final = 120.0
_USERS: Final = {
    "admin": ("admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
}


def gates(kubernetes: str) -> dict[str, bool]:
    """Feature gates of all components of a version of Kubernetes."""
    return _GATES | {_HEALTH: versions.minor(kubernetes) >= _HEALTH_SINCE}


@dataclass(frozen=True, slots=True)
class Files:
    """Where things are; all below the cluster's directory."""

    directory: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.directory / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "kubeconfig"

    def of(self, user: str) -> Path:
        """Kubeconfig of a component."""
        return self.kubeconfig if user == "admin" else self.directory / "control-plane" / f"{user}.kubeconfig"


def server_url(addresses: Addresses) -> str:
    """As the host and all machines reach the API server."""
    # Port 443, as the Service has it: its address is one of the API server's.
    return f"https://{addresses.api}"


def write_credentials(files: Files, addresses: Addresses) -> Authority:
    """Certificates and kubeconfigs of the control plane; the authority, for the nodes' ones."""
    authority = Authority()
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    server = authority.server(API_SERVER, names, [addresses.api, network.API_SERVICE, "127.0.0.1"])
    authority.pair.keep(files.pki, "ca")
    server.keep(files.pki, "apiserver")
    authority.client("kube-apiserver-kubelet-client").keep(files.pki, "kubelet-client")
    private, public = signing_key()
    Pair(public, private).keep(files.pki, "service-accounts")
    for name, (user, groups) in _USERS.items():
        write_kubeconfig(files.of(name), addresses, authority, user, authority.client(user, groups))
    return authority


def write_kubeconfig(path: Path, addresses: Addresses, authority: Authority, user: str, pair: Pair) -> None:
    """A kubeconfig for a user with a certificate."""
    url, trusted = server_url(addresses), authority.pair.certificate
    kubeconfigs.keep(path, kubeconfigs.with_certificate(url, trusted, user, pair))


def gate_flag(gates: Mapping[str, bool]) -> list[str]:
    """``--feature-gates`` as all components take it."""
    text = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items()))
    return [f"--feature-gates={text}"] if text else []


def default_apis(version: str) -> tuple[str, ...]:
    """API versions to switch on: taints need DeviceTaintRules, which 1.34 keeps in an alpha version."""
    return ("resource.k8s.io/v1alpha3",) if versions.minor(version) < 35 else ()


class ControlPlane:
    """Its processes. Files must have been written."""

    def __init__(self, machine: Machine, programs: Path, files: Files, gates: Mapping[str, bool]) -> None:
        self.machine = machine
        self._programs = programs
        self._files = files
        self._gates = dict(gates)

    def start_storage(self) -> None:
        """etcd. Its data are lost in a power cut of the host, so it need not wait for the disk."""
        self._start(
            "etcd",
            "--name=etcd",
            f"--data-dir={self._files.directory / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=etcd=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=1073741824",
        )

    def start_apiserver(self, addresses: Addresses, apis: tuple[str, ...]) -> None:
        """The API server; ``wait_ready`` says when it serves."""
        pki = self._files.pki
        self._start(
            API_SERVER,
            f"--advertise-address={addresses.api}",
            "--bind-address=0.0.0.0",
            "--secure-port=443",
            f"--etcd-servers={_ETCD}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-accounts.crt'}",
            f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
            f"--service-cluster-ip-range={network.SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            # Webhooks and aggregated APIs are called at their pods: nobody translates Service addresses here.
            "--enable-aggregator-routing=true",
            "--max-requests-inflight=1000",
            "--max-mutating-requests-inflight=500",
            *([f"--runtime-config={','.join(f'{api}=true' for api in apis)}"] if apis else []),
            *gate_flag(self._gates),
        )

    def wait_ready(self, api: Api) -> None:
        """Wait until the API server serves. Raises ClusterError when it has ended, NotReady."""
        self.machine.check("etcd")
        self.machine.check(API_SERVER)
        api.wait_ready(_READY_S)

    def stop_apiserver(self, number: int = signal.SIGKILL) -> None:
        """End the API server. On SIGTERM it waits for watches to end, a minute and more. Raises NotReady."""
        self.machine.end(API_SERVER, number, _STOP_S)

    def start_controllers(self) -> None:
        """Controller manager and scheduler."""
        pki = self._files.pki
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self._files.of('kube-controller-manager')}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            *gate_flag(self._gates),
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={self._files.of('kube-scheduler')}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            *gate_flag(self._gates),
        )

    def _start(self, name: str, *flags: str) -> Process:
        return self.machine.start(name, [str(self._programs / name), *flags])
