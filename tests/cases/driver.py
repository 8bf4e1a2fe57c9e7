"""The whole driver in this process: real sockets, state and files, a simulated node, an API server on loopback.

The test is scheduler (it allocates), kubelet (it calls the DRA socket) and administrator (it changes the node).
"""

import argparse
import contextlib
import copy
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dra_driver import settings
from dra_driver.app import App
from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.devices.driver_tree import CALL_LOG, STATE
from dra_driver.model.records import ClaimRecord
from dra_driver.simulator.api_server import ApiServer
from dra_driver.simulator.kinds import EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver_api.kubelet import dra_pb2
from tests.builders import NODE
from tests.grpc import helpers

Json = dict[str, Any]
GATES_ON = "TimeSlicingSettings=true"
U0, U1 = (f"GPU-00000000-0000-4000-8000-{number:012d}" for number in range(2))
PROFILES = {"1g.18gb": {"id": 19, "size": 1, "memoryMiB": 16384, "multiprocessors": 16}}


def cards(*uuids: str, **facts: Any) -> Json:
    """A group of H200s in a scenario."""
    return {
        "count": len(uuids),
        "uuid": list(uuids),
        "productName": "NVIDIA H200",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0",
        "memoryBytes": 150754820096,
        "migProfiles": PROFILES,
    } | facts


def node(*groups: Json, **more: Any) -> Json:
    """A scenario: two H200s unless other cards are given."""
    return {"driver": {"version": "580.159.04", "cuda": "13.0"}, "gpus": list(groups) or [cards(U0, U1)]} | more


def set_call(uuid: str, interval: int) -> str:
    """How a call that sets a time slice looks in the log of the node's nvidia-smi."""
    return f"compute-policy -i {uuid} --set-timeslice {interval}"


class Driver:
    """A driver that can be stopped and started; the node, its files and the API server stay."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cdi = directory / "cdi"
        self.plugin = directory / "plugins" / "gpu.nvidia.com"
        self.registry = directory / "registry"
        self.tree = self.plugin / "simulated-node"
        self.scenario = node()
        self.gates = GATES_ON
        self.pod_uid = ""
        self.environ: dict[str, str] = {}
        self.api = ApiServer().start()
        self.api.store.create(NODES, {"metadata": {"name": NODE}})
        self.app: App | None = None
        for made in (self.registry, self.plugin):
            made.mkdir(parents=True)

    def start(self, *flags: str, wait: bool = True) -> None:
        """Start it; wait until the slices are there, which is after recovery."""
        scenario = self.directory / "node.yaml"
        scenario.write_text(yaml.safe_dump(self.scenario))
        parser = argparse.ArgumentParser()
        settings.add_options(parser)
        common = (
            f"--node-name={NODE}",
            f"--kubeconfig={self.api.kubeconfig(self.directory / 'kubeconfig')}",
            f"--cdi-root={self.cdi}",
            f"--kubelet-registrar-directory-path={self.registry}",
            f"--kubelet-plugins-directory-path={self.plugin.parent}",
            f"--simulated-node={scenario}",
            f"--feature-gates={self.gates}",
            f"--pod-uid={self.pod_uid}",
            "--http-endpoint=127.0.0.1:0",
        )
        self.app = App(settings.load(parser.parse_args([*common, *flags]), self.environ))
        self.app.start()
        if wait:
            self.wait_for(lambda: self.condition("slices")["ok"])

    def stop(self) -> None:
        """Stop it as a signal would. Idempotent."""
        if self.app is not None:
            self.app.stop()
            self.app = None

    def restart(self) -> None:
        """Stop it and start it on what is there."""
        self.stop()
        self.start()

    def successor(self, pod_uid: str) -> "Driver":
        """A second driver on the same node, not started yet; it is to be stopped by who asked for it."""
        other = copy.copy(self)
        other.app, other.pod_uid = None, pod_uid
        return other

    def rescan(self) -> None:
        """Have it look at the node now, as it does every half minute."""
        assert self.app is not None
        self.app._discovery.look()

    def close(self) -> None:
        """End everything."""
        self.stop()
        self.api.stop()

    def wait_for(self, holds: Callable[[], Any]) -> Any:
        """Wait at most 10 s until something holds."""
        found: Any = None

        def look() -> bool:
            nonlocal found
            found = holds()
            return bool(found)

        helpers.wait_until(look)
        return found

    # The scheduler's and the users' side.

    def claim(
        self, name: str, results: list[Json] | None, *configs: Json, exactly: Json | None = None
    ) -> dra_pb2.Claim:
        """Create a claim with this allocation, None for none; ``exactly`` is what its request says besides."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"} | (exactly or {})}
        spec = {"devices": {"requests": [request]}}
        made = self.api.store.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")
        if results is not None:
            made["status"] = {"allocation": {"devices": {"results": results, "config": list(configs)}}}
            self.api.store.replace(RESOURCE_CLAIMS, made, "default", status=True)
        return dra_pb2.Claim(namespace="default", name=name, uid=made["metadata"]["uid"])

    def delete(self, claim: dra_pb2.Claim) -> None:
        """Delete a claim object."""
        self.api.store.delete(RESOURCE_CLAIMS, claim.name, "default")

    def slices(self) -> list[Json]:
        """The published slices, as stored."""
        return self.api.store.find(RESOURCE_SLICES)

    def devices(self) -> dict[str, Json]:
        """The published devices by name."""
        return {device["name"]: device for found in self.slices() for device in found["spec"].get("devices") or []}

    def events(self, reason: str) -> list[str]:
        """Messages of this node's Warning events of one reason, waited for."""
        fields = f"reason={reason},type=Warning,involvedObject.name={NODE}"
        return [e["message"] for e in self.wait_for(lambda: self.api.store.find(EVENTS, fields=fields))]

    # The kubelet's side.

    @property
    def socket(self) -> Path:
        """The DRA socket."""
        return self.plugin / (f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock")

    def call_prepare(self, *claims: dra_pb2.Claim) -> Mapping[str, dra_pb2.NodePrepareResourceResponse]:
        """One NodePrepareResources call; answers by UID."""
        return helpers.prepare(self.socket, *claims)

    def prepare(self, claim: dra_pb2.Claim) -> list[dra_pb2.Device]:
        """Prepare one claim, which must succeed."""
        answer = self.call_prepare(claim)[claim.uid]
        assert answer.error == ""
        return list(answer.devices)

    def refusal(self, claim: dra_pb2.Claim) -> str:
        """Prepare one claim, which must fail: the text for the pod's event."""
        answer = self.call_prepare(claim)[claim.uid]
        assert (answer.error != "", list(answer.devices)) == (True, [])
        return answer.error

    def unprepare(self, *claims: dra_pb2.Claim) -> list[str]:
        """One NodeUnprepareResources call: the error of each claim, '' for success."""
        answers = helpers.unprepare(self.socket, *claims)
        return [answers[claim.uid].error for claim in claims]

    # What can be seen on the node.

    def records(self) -> list[ClaimRecord]:
        """The claims in the state database."""
        store = Store.open_read_only(self.plugin / STATE_FILE)
        with contextlib.closing(store):
            return list(store.records())

    def held(self) -> dict[str, tuple[str, ...]]:
        """Claim name -> UUIDs of the devices it holds."""
        return {record.claim.name: tuple(d.uuid for d in record.devices) for record in self.records()}

    def files(self) -> list[str]:
        """Names of the files in the CDI directory."""
        return sorted(path.name for path in self.cdi.iterdir())

    def spec(self, claim: dra_pb2.Claim) -> Json:
        """The CDI spec of a claim."""
        text = (self.cdi / f"k8s.gpu.nvidia.com-claim_{claim.uid}.yaml").read_text()
        parsed: Json = yaml.safe_load(text)
        return parsed

    def tool_calls(self) -> list[str]:
        """The calls of nvidia-smi that set something, in order."""
        return [line for line in (self.tree / CALL_LOG).read_text().splitlines() if "--set-" in line]

    def time_slice(self, uuid: str) -> int:
        """The slice that a card has."""
        return int((self.tree / STATE / uuid / "time_slice").read_text())

    def condition(self, name: str) -> Json:
        """One of the conditions of readiness."""
        assert self.app is not None
        found: Json = self.app.conditions.report()["conditions"][name]
        return found

    def get(self, path: str) -> tuple[int, str]:
        """A page of the driver's HTTP endpoint: code and text."""
        assert self.app is not None
        assert self.app._status is not None
        host, port = self.app._status.address
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def readyz(self) -> tuple[int, Json]:
        """Code and conditions of /readyz."""
        code, text = self.get("/readyz")
        return code, json.loads(text)["conditions"]


def nothing_left(driver: Driver) -> bool:
    """Whether no claim has left a row or a file."""
    return driver.records() == [] and driver.files() == []
