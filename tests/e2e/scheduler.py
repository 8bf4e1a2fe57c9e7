"""What of kube-scheduler tests of shares have to know: since when it can what, and how to help it over a mistake."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

from hack.cluster import versions
from hack.cluster.api import Api
from hack.cluster.errors import ClusterError
from tests.e2e.clusters import VERSION
from tests.e2e.manifests import RESOURCE

_BETA: Final = 36
EXTENDED: Final = versions.minor(VERSION) >= _BETA
"""Whether extended resources of DeviceClasses are tested here."""

extended = pytest.mark.skipif(
    not EXTENDED,
    reason=f"extended resources of DeviceClasses are alpha in Kubernetes {VERSION}: claims are the way there",
)
several_devices = pytest.mark.skipif(
    versions.minor(VERSION) < _BETA,
    reason=f"kube-scheduler {VERSION} finds no place any more once the first shared device of a node is full, "
    "kubernetes/kubernetes#133705",
)

FULL: Final = "cannot allocate all claims"
"""What it says of a pod that finds no device."""
MIG_CARD: Final[dict[str, Any]] = {
    "productName": "NVIDIA A100-SXM4-40GB",
    "architecture": "Ampere",
    "cudaComputeCapability": "8.0",
    "memoryBytes": 42949672960,
    "migProfiles": {"1g.5gb": {"id": 19, "memoryMiB": 4864, "multiprocessors": 14, "copyEngines": 1}},
    "mig": [{"profile": "1g.5gb", "starts": [0, 1, 2, 3, 4, 5, 6]}],
}
"""A card of a scenario, with the seven MIG devices that it has room for."""

_CLASS: Final = "look-again.example.com"
_EACH_S: Final = 2.0


@contextmanager
def looking_again(api: Api) -> Iterator[None]:
    """Has pods that wait for devices tried again each two seconds as long as the block takes.

    While kube-scheduler (1.36.3 and 1.37.2) writes a claim's allocation, it adds the capacities of that claim twice:
    once as in flight, once as seen (GatherAllocatedState). A pod that is tried just then is told that the shares of a
    device are used up, and is tried again after five minutes, unless a claim is deallocated, or a class or a slice
    changes.
    """
    stop = threading.Event()
    thread = threading.Thread(target=_touch, args=(api, stop), name="looking-again")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        api.delete(f"/apis/{RESOURCE}/deviceclasses/{_CLASS}")


def _touch(api: Api, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(_EACH_S):
        number += 1
        metadata = {"name": _CLASS, "labels": {"time": str(number)}}
        spec = {"selectors": [{"cel": {"expression": "false"}}]}
        with suppress(ClusterError):
            api.apply({"apiVersion": RESOURCE, "kind": "DeviceClass", "metadata": metadata, "spec": spec})
