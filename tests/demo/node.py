"""What process-level tests need beside the simulated cluster: claims, calls over the DRA socket, what is left.

The test plays scheduler and kubelet at once, so that it can call at any moment, and again. Expectations are in the
tests.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import yaml

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.devices.driver_tree import STATE
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.simulator.process import DriverProcess
from dra_driver.simulator.stage import GATES_ON
from dra_driver_api.kubelet import dra_pb2, dra_pb2_grpc
from dra_driver_api.names import DRIVER_NAME

Json = dict[str, Any]
T = TypeVar("T")

SECONDS = 30.0
CALL_SECONDS = 45.0
DRA_SOCKET = "dra.sock"
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200))


def scenario(path: Path, gpus: int = 2, **parts: Any) -> str:
    """Write a scenario of H200 cards; ``parts`` are its other sections. Its path."""
    cards = {
        "count": gpus,
        "productName": "NVIDIA H200",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0",
        "memoryBytes": 150754820096,
    }
    content = {"driver": {"version": "580.159.04", "cuda": "13.0"}, "gpus": [cards], **parts}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def time_slicing(interval: str) -> Json:
    """Opaque parameters that ask for an interval."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }


def result(device: str, **other: Any) -> Json:
    """One allocation result of this driver on the node."""
    return {"request": "gpu", "driver": DRIVER_NAME, "pool": "node-a", "device": device, **other}


def config(parameters: Any, **other: Any) -> Json:
    """One config entry of the claim with this driver's parameters."""
    return {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}, **other}


class Node:
    """A simulated cluster as seen by a test that makes its own claims and calls."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.paths = cluster.paths

    def start(self, *flags: str, ready: bool = True) -> DriverProcess:
        """Start the driver with time slicing on."""
        driver = self.cluster.start_driver(*flags, gates=GATES_ON)
        if ready:
            self.cluster.wait_ready(SECONDS)
        return driver

    def restart(self) -> None:
        """SIGKILL, and a new process whose socket answers."""
        assert self.cluster.driver is not None
        self.cluster.driver.kill()
        self.start()

    # Claims.

    def claim(self, name: str, devices: Sequence[str] = ("gpu-0",), interval: str = "") -> dra_pb2.Claim:
        """A claim that is allocated these devices of the node, a request each."""
        results = [result(device, request=f"r{number}") for number, device in enumerate(devices)]
        return self.allocated(name, results, [config(time_slicing(interval))] if interval else [])

    def allocated(self, name: str, results: Any, configs: Any = ()) -> dra_pb2.Claim:
        """A claim with this allocation, whatever it is worth; no allocation for None."""
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
        made = self.cluster.store.create(
            RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}, "default"
        )
        if results is not None:
            made["status"] = {"allocation": {"devices": {"results": results, "config": configs or []}}}
            self.cluster.store.replace(RESOURCE_CLAIMS, made, "default", status=True)
        return dra_pb2.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])

    def forget(self, claim: dra_pb2.Claim) -> None:
        """Delete the object, as when its pod was force-deleted."""
        self.cluster.store.delete(RESOURCE_CLAIMS, claim.name, claim.namespace)

    # Calls.

    @contextmanager
    def stub(self, socket: str = DRA_SOCKET) -> Iterator[dra_pb2_grpc.DRAPluginStub]:
        """The DRA service over a connection of its own."""
        with grpc.insecure_channel(f"unix:{self.paths.plugin / socket}", options=_OPTIONS) as channel:
            yield dra_pb2_grpc.DRAPluginStub(channel)

    def prepare(self, *claims: dra_pb2.Claim, socket: str = DRA_SOCKET) -> dra_pb2.NodePrepareResourcesResponse:
        """NodePrepareResources."""
        with self.stub(socket) as stub:
            request = dra_pb2.NodePrepareResourcesRequest(claims=claims)
            return stub.NodePrepareResources(request, timeout=CALL_SECONDS)

    def unprepare(self, *claims: dra_pb2.Claim, socket: str = DRA_SOCKET) -> dra_pb2.NodeUnprepareResourcesResponse:
        """NodeUnprepareResources."""
        with self.stub(socket) as stub:
            request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims)
            return stub.NodeUnprepareResources(request, timeout=CALL_SECONDS)

    def answer(self, claim: dra_pb2.Claim, socket: str = DRA_SOCKET) -> bytes:
        """Prepare that must succeed; the answer as it came over the wire."""
        found = self.prepare(claim, socket=socket).claims[claim.uid]
        assert found.error == ""
        return found.SerializeToString(deterministic=True)

    def refusal(self, claim: dra_pb2.Claim) -> str:
        """The error of a prepare, '' when it succeeds."""
        return self.prepare(claim).claims[claim.uid].error

    def give_back(self, claim: dra_pb2.Claim, socket: str = DRA_SOCKET) -> str:
        """The error of an unprepare, '' when it succeeds."""
        return self.unprepare(claim, socket=socket).claims[claim.uid].error

    # What can be seen on the node.

    def rows(self) -> dict[str, str]:
        """State of each claim in the state database, by UID."""
        store = Store.open_read_only(self.paths.plugin / STATE_FILE)
        try:
            return {record.claim.uid: record.state.value for record in store.records()}
        finally:
            store.close()

    def slices(self) -> list[str]:
        """Time slice of each card, by position."""
        return [(folder / "time_slice").read_text().strip() for folder in self._cards()]

    def left_behind(self) -> list[str]:
        """What a node must not have once all claims were given back."""
        modes = [(folder / "compute_mode").read_text().strip() for folder in self._cards()]
        files = [path.name for path in self.paths.cdi.iterdir()]
        found = [f"rows {self.rows()}" if self.rows() else "", f"CDI files {files}" if files else ""]
        found += [f"time slices {self.slices()}" if set(self.slices()) != {"0"} else ""]
        found += [f"compute modes {modes}" if set(modes) != {"Default"} else ""]
        return [line for line in found if line]

    def published(self) -> list[tuple[str, str]]:
        """Name and resourceVersion of each ResourceSlice."""
        found = [s["metadata"] for s in self.cluster.store.find(RESOURCE_SLICES)]
        return [(metadata["name"], metadata["resourceVersion"]) for metadata in found]

    def _cards(self) -> list[Path]:
        state = self.paths.plugin / "simulated-node" / STATE
        return [state / line.split()[0] for line in (state / "gpus").read_text().splitlines()]


def until(look: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """Wait until ``look`` gives something true; a call that fails is no answer yet."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = look()
        except (grpc.RpcError, OSError):
            found = None
        if found:
            return found
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.03)


@contextmanager
def in_background(call: Callable[[], Any]) -> Iterator[threading.Thread]:
    """A call in a thread of its own, whose end is awaited; that it breaks off is no error."""

    def run() -> None:
        try:
            call()
        except grpc.RpcError:
            return

    thread = threading.Thread(target=run, name="call")
    thread.start()
    try:
        yield thread
    finally:
        thread.join(CALL_SECONDS)
    assert not thread.is_alive()
