"""Bad claims, requests, tools and API servers, met by the driver as a process: an answer each, in one line."""

import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver.simulator.faults import Fault
from dra_driver.simulator.kinds import RESOURCE_SLICES
from dra_driver_api.kubelet import dra_pb2
from dra_driver_api.names import DRIVER_NAME
from tests.demo.node import Node, config, result, scenario, time_slicing, until

Json = dict[str, Any]
CONFIG = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Node]:
    """One driver for all tests that must leave it as it was."""
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name, SimulatedCluster(Path(name)) as cluster:
        node = Node(cluster)
        node.start()
        yield node


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The shared driver, held to leave nothing behind and to be the same process still."""
    assert shared_node.cluster.driver is not None
    pid = shared_node.cluster.driver.pid
    yield shared_node
    shared_node.cluster.api.faults.clear()
    assert shared_node.left_behind() == []
    assert shared_node.cluster.driver.pid == pid


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        yield Path(name)


def nested(levels: int) -> Json:
    value: Json = {}
    for _ in range(levels):
        value = {"a": value}
    return value


BAD_CONFIGS: dict[str, tuple[Any, str]] = {
    "no-object": ([config(7)], "want a JSON object"),
    "nothing": ([config(None)], "there are no parameters"),
    "broken": ([config("{")], "not valid JSON"),
    "huge": ([config({**CONFIG, "x" * 1_000_000: 1})], "the limit is 10240"),
    "deep": ([config({**CONFIG, "sharing": nested(400)})], "nested too deeply"),
    "kind": ([config({**CONFIG, "kind": "GpuConf"})], '"GpuConf"'),
    "version": ([config({**CONFIG, "apiVersion": "resource.nvidia.com/v2"})], '"resource.nvidia.com/v2"'),
    "strategy": ([config({**CONFIG, "sharing": {"strategy": "Fractional"}})], "TimeSlicing, MPS"),
    "typo": ([config({**CONFIG, "sharng": {}})], '"sharng"'),
    "line-feed": ([config({**CONFIG, "sh\naring\x1b[31m": {}})], "unknown field"),
    "source": ([config(time_slicing("Long"), source="FromMars")], "'FromMars'"),
    "not-opaque": ([{"source": "FromClaim"}], "only opaque parameters"),
    "no-list": ({"a": 1}, "must be a list"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_config_is_named_in_one_short_line(node: Node, name: str) -> None:
    configs, word = BAD_CONFIGS[name]
    error = node.refusal(node.allocated(f"config-{name}", [result("gpu-0")], configs))
    assert word in error
    assert "internal error" not in error
    assert len(error) < 1000
    assert error.isprintable()


BAD_ALLOCATIONS: dict[str, tuple[Any, str]] = {
    "none": (None, "not allocated yet"),
    "unknown": ([result("gpu-9")], "gpu-9"),
    "climbing": ([result("../../../etc/passwd")], "../../../etc/passwd"),
    "dots": ([result("..")], "'..'"),
    "long": ([result("g" * 5000)], "not a DNS label"),
    "pool": ([result("gpu-0", pool="node-b")], "'node-b'"),
    "twice": ([result("gpu-0"), result("gpu-0", request="other")], "allocated twice"),
}


@pytest.mark.parametrize("name", BAD_ALLOCATIONS)
def test_bad_allocation_is_refused_and_touches_nothing(node: Node, name: str) -> None:
    results, word = BAD_ALLOCATIONS[name]
    error = node.refusal(node.allocated(f"allocation-{name}", results, [config(time_slicing("Long"))]))
    assert word in error
    assert "internal error" not in error


def test_last_of_many_configs_counts(node: Node) -> None:
    configs = [config(time_slicing("Short"))] * 31 + [config(time_slicing("Long"))]
    claim = node.allocated("many-configs", [result("gpu-0")], configs)
    node.answer(claim)
    assert node.slices() == ["3", "0"]
    assert node.give_back(claim) == ""


def test_junk_of_another_driver_is_not_looked_at(node: Node) -> None:
    other = {"request": "nic", "driver": "nic.example.com", "pool": "p", "device": "../eth1"}
    junk = {"source": "FromClaim", "requests": [], "opaque": {"driver": "nic.example.com", "parameters": 7}}
    claim = node.allocated("two-drivers", [other, result("gpu-0")], [junk])
    devices = node.prepare(claim).claims[claim.uid].devices
    assert [device.device_name for device in devices] == ["gpu-0"]
    assert node.give_back(claim) == ""


# The request itself.


@pytest.mark.parametrize(
    "uid", ["", "../../x", "..", "a/b", "a\0b", "a\nb", "u" * 1_000_000], ids=lambda u: repr(u[:8])
)
def test_uid_that_is_no_file_name_is_refused_in_both_calls(node: Node, uid: str) -> None:
    claim = dra_pb2.Claim(namespace="default", name="odd", uid=uid)
    for error in (node.refusal(claim), node.give_back(claim)):
        assert "uid" in error
        assert len(error) < 1000


@pytest.mark.parametrize("name", ["n" * 1_000_000, "../../../../api/v1/nodes/node-a", "a?x=1", "a\r\nHost: b"], ids=len)
def test_name_that_no_claim_can_have_never_reaches_the_api_server(node: Node, name: str) -> None:
    node.cluster.api.forget_seen()
    error = node.refusal(dra_pb2.Claim(namespace="default", name=name, uid="u"))
    assert "not a valid name" in error
    assert len(error) < 1000
    assert not [seen for seen in node.cluster.api.seen if "resourceslices" not in seen.path]


def test_thousand_claims_in_one_call_get_an_answer_each(node: Node) -> None:
    strangers = [dra_pb2.Claim(namespace="default", name=f"none-{n}", uid=f"u{n}") for n in range(999)]
    real = node.claim("one-of-many")
    answers = node.prepare(*strangers, real).claims
    assert len(answers) == 1000
    assert [uid for uid, answer in answers.items() if not answer.error] == [real.uid]
    assert {answer.error for answer in node.unprepare(*strangers, real).claims.values()} == {""}


GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(range(256)) * 64,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x01\x05\0\0\0\x01" + bytes(range(256)),
)


def test_garbage_and_silent_connections_leave_both_sockets_answering(node: Node) -> None:
    claim = node.claim("undisturbed")
    first = node.answer(claim)
    registration = node.paths.registry / f"{DRIVER_NAME}-reg.sock"
    with ExitStack() as stack:
        for path in (node.paths.plugin / "dra.sock", registration):
            for number in range(100):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(5)
                client.connect(str(path))
                if number < len(GARBAGE):
                    client.sendall(GARBAGE[number])
        assert node.answer(claim) == first
    registration.rename(registration.with_name("renamed.sock"))
    try:
        plugins = node.cluster.kubelet.plugins
        until(lambda: plugins.connected(DRIVER_NAME), "the kubelet to register the driver again")
    finally:
        until(registration.exists, "the registration socket")
        registration.with_name("renamed.sock").unlink()
    assert node.give_back(claim) == ""


# The API server.


def test_prepared_claim_is_answered_while_the_api_server_is_down(node: Node) -> None:
    known, unknown = node.claim("known", ["gpu-0"], "Long"), node.claim("unknown", ["gpu-1"])
    first = node.answer(known)
    node.cluster.api.stop()
    try:
        assert node.answer(known) == first
        assert "Connection refused" in node.refusal(unknown)
        assert node.give_back(known) == ""
    finally:
        node.cluster.api.start()
    node.answer(unknown)
    assert node.give_back(unknown) == ""


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=429, retry_after=60), Fault(drop=True)], ids=str)
def test_prepared_claim_is_answered_when_the_api_server_falters(node: Node, fault: Fault) -> None:
    claim = node.claim(f"steady-{fault.status}")
    first = node.answer(claim)
    node.cluster.api.faults.order(fault, times=3, path=f"resourceclaims/{claim.name}")
    assert node.answer(claim) == first
    assert node.give_back(claim) == ""


def test_claim_made_anew_under_its_name_is_another_claim(node: Node) -> None:
    old = node.claim("renewed", ["gpu-0"], "Long")
    node.answer(old)
    node.forget(old)
    new = node.claim("renewed", ["gpu-0"], "Long")
    assert "was replaced" in node.refusal(old)
    assert "already allocated" in node.refusal(new)
    assert node.give_back(old) == ""
    node.answer(new)
    assert node.give_back(new) == ""


@pytest.mark.parametrize("status", [409, 422, 500])
def test_slices_changed_by_hand_are_back_in_seconds_though_the_first_write_fails(node: Node, status: int) -> None:
    store, faults = node.cluster.store, node.cluster.api.faults
    (name, _), *_ = node.published()
    content = store.get(RESOURCE_SLICES, name)
    devices = content["spec"]["devices"]
    faults.order(Fault(status=status), method="PUT", path="resourceslices")
    content["spec"]["devices"] = devices[:1]
    store.replace(RESOURCE_SLICES, content)
    until(lambda: node.cluster.devices() == devices, "the devices", 10)


# The tool.

TOOL_FAILURES: tuple[tuple[Json, str], ...] = (
    ({"hang": True}, "no end within 1 s"),
    ({"signal": "SEGV"}, "SIGSEGV"),
    ({"printMegabytes": 30, "exitCode": 7}, "exit code 7"),
    ({"exitCode": 255, "stderr": "first\x1b[31m\nlast line"}, "last line"),
)


@pytest.fixture(scope="module")
def odd_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Cards whose tool fails at the first call, then cards whose tool fails at the second, then a good one."""
    count = len(TOOL_FAILURES)
    behaviours = [{"gpu": n, "calls": [1], **how} for n, (how, _) in enumerate(TOOL_FAILURES)]
    behaviours += [{"gpu": count + n, "calls": [2], **how} for n, (how, _) in enumerate(TOOL_FAILURES)]
    path = scenario(tmp_path_factory.mktemp("odd") / "odd.yaml", 2 * count + 1, tool={"behaviours": behaviours})
    with (
        tempfile.TemporaryDirectory(prefix="dra-test-") as name,
        SimulatedCluster(Path(name), simulated_node=path) as cluster,
    ):
        node = Node(cluster)
        node.start("--gpu-tool-timeout=1")
        yield node


@pytest.mark.parametrize("position", range(len(TOOL_FAILURES)))
def test_tool_that_fails_to_set_is_told_and_undone(odd_tools: Node, position: int) -> None:
    claim = odd_tools.claim(f"set-{position}", [f"gpu-{position}"], "Long")
    error = odd_tools.refusal(claim)
    assert TOOL_FAILURES[position][1] in error
    assert len(error) < 1000
    assert error.isprintable()
    assert odd_tools.left_behind() == []


@pytest.mark.parametrize("position", range(len(TOOL_FAILURES)))
def test_tool_that_fails_to_reset_keeps_the_claim_until_it_works(odd_tools: Node, position: int) -> None:
    claim = odd_tools.claim(f"reset-{position}", [f"gpu-{position + len(TOOL_FAILURES)}"], "Long")
    odd_tools.answer(claim)
    assert TOOL_FAILURES[position][1] in odd_tools.give_back(claim)
    assert list(odd_tools.rows()) == [claim.uid]
    assert odd_tools.give_back(claim) == ""
    assert odd_tools.left_behind() == []


def test_card_with_a_broken_tool_does_not_keep_the_others_of_its_claim(directory: Path) -> None:
    broken = {"gpu": 1, "exitCode": 1, "stderr": "broken"}
    path = scenario(directory / "broken.yaml", tool={"behaviours": [broken]})
    with SimulatedCluster(directory / "node", simulated_node=path) as cluster:
        node = Node(cluster)
        node.start()
        claim = node.claim("both", ["gpu-0", "gpu-1"], "Long")
        assert "broken" in node.refusal(claim)
        assert node.slices() == ["0", "0"]


def test_node_without_a_tool_serves_claims_that_need_none(directory: Path) -> None:
    path = scenario(directory / "none.yaml", tool={"missing": True})
    with SimulatedCluster(directory / "node", simulated_node=path) as cluster:
        node = Node(cluster)
        node.start()
        wants_it, plain = node.claim("wants-it", ["gpu-0"], "Long"), node.claim("plain", ["gpu-1"])
        assert "nvidia-smi is not there" in node.refusal(wants_it)
        node.answer(plain)
        assert [node.give_back(claim) for claim in (wants_it, plain)] == ["", ""]
        assert node.left_behind() == []


# Load.


def test_slow_prepares_keep_neither_probes_nor_unprepares_waiting(directory: Path) -> None:
    with SimulatedCluster(directory) as cluster, ThreadPoolExecutor(16) as kubelets:
        node = Node(cluster)
        port = free_port()
        node.start(f"--healthcheck-port={port}")
        waiting = [node.claim(f"waiting-{number}") for number in range(16)]
        cluster.api.faults.order(Fault(delay=3), times=16, path="resourceclaims/waiting")
        calls = [kubelets.submit(node.refusal, claim) for claim in waiting]
        until(lambda: in_flight(cluster) == 16, "the calls to wait for the API server")
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert not any(call.done() for call in calls)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def in_flight(cluster: SimulatedCluster) -> int:
    return sum("resourceclaims/waiting" in seen.path for seen in cluster.api.seen)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
