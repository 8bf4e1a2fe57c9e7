"""Two instances of the driver on one directory: turned away, or side by side while a rolling update lasts."""

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.kinds import RESOURCE_SLICES
from dra_driver.simulator.stage import GATES_ON
from dra_driver_api.kubelet import dra_pb2
from dra_driver_api.names import DRIVER_NAME, cdi_spec_file
from tests.demo.forked import ForkedDriver
from tests.demo.node import Node, scenario, until

GPUS = 4
STRANGERS = 1000
TURNS = 4
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        directory = Path(name)
        path = scenario(directory / "many.yaml", GPUS, tool={"delayMs": 10})
        with SimulatedCluster(directory / "node", simulated_node=path) as cluster:
            yield Node(cluster)


class Second:
    """Another instance beside the cluster's own."""

    def __init__(self, node: Node, *flags: str) -> None:
        paths = node.paths
        self.log = paths.root / f"second{len(list(paths.root.glob('second*')))}.log"
        self.process = ForkedDriver(
            [
                f"--node-name={node.cluster.node_name}",
                f"--kubeconfig={paths.kubeconfig}",
                f"--cdi-root={paths.cdi}",
                f"--kubelet-registrar-directory-path={paths.registry}",
                f"--kubelet-plugins-directory-path={paths.plugins}",
                f"--feature-gates={GATES_ON}",
                f"--simulated-node={paths.root.parent / 'many.yaml'}",
                *flags,
            ],
            self.log,
        )


@contextmanager
def second(node: Node, *flags: str) -> Iterator[Second]:
    made = Second(node, *flags)
    made.process.start()
    try:
        yield made
    finally:
        made.process.kill()


@pytest.mark.parametrize("flags", [(), ("--pod-uid=new",)], ids=["same-sockets", "own-sockets"])
def test_second_instance_beside_one_without_pod_uid_is_turned_away(node: Node, flags: tuple[str, ...]) -> None:
    first = node.start()
    claim = node.claim("held", ["gpu-0"], "Long")
    answer, published = node.answer(claim), node.published()
    with second(node, *flags) as other:
        until(lambda: other.process.pid is None, "the second instance to end", 15)
        assert other.process.stop() == 1
        (told,) = [line for line in other.log.read_text().splitlines() if line.startswith("dra-driver: ")]
    assert f"pid {first.pid}" in told
    assert str(node.paths.plugin) in told
    assert node.answer(claim) == answer
    assert node.published() == published


def test_rolling_update_hands_claims_and_slices_over(node: Node) -> None:
    old = node.start("--pod-uid=old")
    claim = node.claim("carried", ["gpu-0", "gpu-1"], "Long")
    answer, published = node.answer(claim, "dra-old.sock"), node.published()
    with second(node, "--pod-uid=new"):
        until(lambda: node.answer(claim, "dra-new.sock") == answer, "the new instance to answer")
        assert node.answer(claim, "dra-old.sock") == answer
        assert old.stop() == 0
        assert [path.name for path in node.paths.registry.iterdir()] == [f"{DRIVER_NAME}-new-reg.sock"]
        assert node.published() == published
        assert node.answer(claim, "dra-new.sock") == answer

        node.cluster.store.delete(RESOURCE_SLICES, published[0][0])
        node.cluster.driver = None
        until(node.cluster.devices, "the new instance to publish", 10)
        assert node.give_back(claim, "dra-new.sock") == ""
        assert node.left_behind() == []


def test_instance_that_was_killed_leaves_the_directory_to_the_next(node: Node) -> None:
    node.start("--pod-uid=old")
    claim = node.claim("inherited", ["gpu-0"], "Long")
    answer = node.answer(claim, "dra-old.sock")
    assert node.cluster.driver is not None
    node.cluster.driver.kill()
    node.start()
    assert node.answer(claim) == answer
    assert node.give_back(claim) == ""
    assert node.left_behind() == []


class Load:
    """Claims that come and go on some cards as fast as they are served, ``TURNS`` after each other on each card.

    ``socket`` says where. ``errors``: what is still wrong after as many tries as a kubelet makes in some seconds.
    """

    def __init__(self, node: Node, gpus: range) -> None:
        self._node = node
        self._turns = [[node.claim(f"turn-{turn}-{gpu}", [f"gpu-{gpu}"]) for gpu in gpus] for turn in range(TURNS)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{gpus.start}")
        self.socket = "dra-old.sock"
        self.served = 0
        self.errors: set[str] = set()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        for claims in itertools.cycle(self._turns):
            if self._stop.is_set() or self.errors:
                return
            self.errors |= self._insist(self._node.prepare, claims) or self._insist(self._node.unprepare, claims)
            self.served += 1
            time.sleep(0.01)

    def _insist(self, call: Callable[..., Any], claims: list[dra_pb2.Claim]) -> set[str]:
        errors = {""}
        for _ in range(30):
            try:
                errors = {answer.error for answer in call(*claims, socket=self.socket).claims.values()}
            except grpc.RpcError as error:
                errors = {str(error)}
            if errors == {""}:
                return set()
            time.sleep(0.1)
        return errors


def test_update_under_load_fails_no_call_and_rewrites_no_slice(node: Node) -> None:
    old = node.start("--pod-uid=old")
    published = node.published()
    with Load(node, range(1)) as one, Load(node, range(1, 3)) as two, second(node, "--pod-uid=new"):
        until((node.paths.registry / f"{DRIVER_NAME}-new-reg.sock").exists, "the new instance to serve")
        one.socket = two.socket = "dra-new.sock"
        before = one.served + two.served
        until(lambda: one.errors or two.errors or one.served + two.served > before + 20, "calls to the new instance")
        assert one.errors | two.errors == set()
        assert old.stop() == 0
        node.cluster.driver = None
        one.__exit__()
        two.__exit__()
        assert one.errors | two.errors == set()
        assert node.published() == published
        assert node.left_behind() == []


def test_new_instance_revives_no_claim_that_the_old_one_gives_back_meanwhile(node: Node) -> None:
    node.start("--pod-uid=old")
    claims = [node.claim(f"leaving-{number}", [f"gpu-{number}"]) for number in range(GPUS)]
    for claim in claims:
        node.answer(claim, "dra-old.sock")
    # Recovery reads these between the names of all files and the records: the time for claims to go.
    for number in range(STRANGERS):
        (node.paths.cdi / cdi_spec_file(f"stranger-{number}")).write_text("{}\n")
    with second(node, "--pod-uid=new") as new:
        until(lambda: "on offer" in new.log.read_text(), "recovery to begin")
        assert {answer.error for answer in node.unprepare(*claims, socket="dra-old.sock").claims.values()} == {""}
        until(lambda: not list(node.paths.cdi.iterdir()), "recovery to end")
        assert node.rows() == {}
        heir = node.claim("heir", ["gpu-0"])
        answers = partial(node.prepare, heir, socket="dra-new.sock")
        until(lambda: not answers().claims[heir.uid].error, "the card to be free", 10)
