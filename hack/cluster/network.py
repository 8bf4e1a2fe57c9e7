"""The cluster's network: one namespace with a bridge for all machines, reached from the host over a pair of veths.

The host can call the API server, nodes and pods; pods can call each other on all nodes. There is no kube-proxy: the
address of the ``kubernetes`` Service is one of the API server's own, and other Services have names only.
"""

import fcntl
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster.commands import run
from hack.cluster.errors import ClusterError

SERVICES: Final = "10.96.0.0/16"
API_SERVICE: Final = "10.96.0.1"
DNS_SERVICE: Final = "10.96.0.10"
"""Nobody answers there; kubelets want to know one."""
MOST_NODES: Final = 9

_SLOTS: Final = range(64)
_COMMAND_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one cluster: 100.<64 + slot>.0.0/16, of the space for shared addresses (RFC 6598)."""

    slot: int

    @property
    def prefix(self) -> str:
        """The two bytes that all have in common."""
        return f"100.{64 + self.slot}"

    @property
    def whole(self) -> str:
        """Nodes and pods."""
        return f"{self.prefix}.0.0/16"

    @property
    def api(self) -> str:
        """Of the API server, on the bridge."""
        return f"{self.prefix}.0.1"

    @property
    def host(self) -> str:
        """Of the host's end."""
        return f"{self.prefix}.0.254"

    def node(self, number: int) -> str:
        """Of a node, counted from 1."""
        return f"{self.prefix}.0.{10 + number}"

    def pods(self, number: int) -> str:
        """The range that a node, counted from 1, gives to its pods."""
        return f"{self.prefix}.{number}.0/24"


def connect(link: str, process: int, nodes: int, lock: Path) -> Addresses:
    """Make bridge and veths; ``process`` is one in the cluster's network namespace.

    link: name of the host's end, at most 15 bytes. lock: file that keeps two clusters from taking the same
    addresses. Raises ClusterError.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        addresses = Addresses(_free_slot())
        _ip(host_commands(link, process, addresses))
    inside = ["nsenter", f"--net=/proc/{process}/ns/net", "--"]
    _ip(inside_commands(addresses, nodes), inside)
    # By its own name, and not ip(8)'s: the file of the namespace that writes it is meant.
    run([*inside, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], _COMMAND_S)
    return addresses


def disconnect(link: str) -> None:
    """Remove the host's end, should it be there still; it goes with the network namespace. Raises ClusterError."""
    if Path("/sys/class/net", link).exists():
        try:
            run(["ip", "link", "delete", link], _COMMAND_S)
        except ClusterError:
            # The kernel may have been faster: it removes it with the namespace of the other end.
            if Path("/sys/class/net", link).exists():
                raise


def host_commands(link: str, process: int, addresses: Addresses) -> list[str]:
    """For ``ip -batch`` on the host."""
    return [
        f"link add {link} type veth peer name uplink netns {process}",
        f"address add {addresses.host}/24 dev {link}",
        f"link set {link} up",
        f"route add {addresses.whole} via {addresses.api} dev {link}",
    ]


def inside_commands(addresses: Addresses, nodes: int) -> list[str]:
    """For ``ip -batch`` in the cluster's namespace."""
    own = [addresses.api, *(addresses.node(number) for number in range(1, nodes + 1))]
    return [
        "link set lo up",
        f"address add {API_SERVICE}/32 dev lo",
        "link add bridge type bridge",
        *(f"address add {address}/24 dev bridge" for address in own),
        "link set uplink master bridge",
        "link set uplink up",
        "link set bridge up",
        f"route add default via {addresses.host}",
    ]


def _free_slot() -> int:
    taken = "\n" + run(["ip", "-4", "route", "show", "table", "all"], _COMMAND_S)
    for slot in _SLOTS:
        if not re.search(rf"\s{re.escape(Addresses(slot).prefix)}\.", taken):
            return slot
    raise ClusterError(f"no addresses are left: 100.64.0.0/10 has room for {len(_SLOTS)} clusters")


def _ip(commands: Sequence[str], inside: Sequence[str] = ()) -> None:
    run([*inside, "ip", "-batch", "-"], _COMMAND_S, text="\n".join(commands) + "\n")
