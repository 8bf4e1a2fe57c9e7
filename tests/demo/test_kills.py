"""The driver killed or stopped at any moment, its files damaged or gone: nobody loses a GPU, nothing is left behind."""

import ctypes
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.devices.driver_tree import CALL_LOG
from dra_driver.model.errors import DriverError
from dra_driver.simulator.cluster import SimulatedCluster
from dra_driver_api.kubelet import dra_pb2
from dra_driver_api.names import cdi_spec_file
from tests.demo.node import Node, in_background, scenario, until

TOOL_SECONDS = 0.12
"""Long against what the driver does in between, so that a kill hits each step of two cards."""

SLOW_ONCE = """
if exists("{mark}"):
    posix.rename("{mark}", "{mark}.begun")
    time.sleep(2.5)
    open("{mark}.ended", "w").close()
"""
"""Lines of the stand-in nvidia-smi before it begins."""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, since sockets are made inside."""
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        yield Path(name)


@pytest.fixture
def slow_node(directory: Path) -> Iterator[Node]:
    path = scenario(directory / "slow.yaml", tool={"delayMs": round(TOOL_SECONDS * 1000)})
    with SimulatedCluster(directory / "node", simulated_node=path) as cluster:
        node = Node(cluster)
        node.start()
        yield node


@pytest.fixture
def very_slow_node(directory: Path) -> Iterator[Node]:
    """Its tool is slow enough to be met at work on any machine."""
    path = scenario(directory / "slow.yaml", tool={"delayMs": 1500})
    with SimulatedCluster(directory / "node", simulated_node=path) as cluster:
        node = Node(cluster)
        node.start()
        yield node


@pytest.fixture
def node(directory: Path) -> Iterator[Node]:
    with SimulatedCluster(directory / "node", simulated_node=scenario(directory / "two.yaml")) as cluster:
        node = Node(cluster)
        node.start()
        yield node


@pytest.fixture(scope="module")
def lasting_node() -> Iterator[Node]:
    """One driver for tests that need no fresh one. Its card 3 cannot be reset at the first try."""
    broken_reset = {"gpu": 3, "calls": [2], "exitCode": 1, "stderr": "broken"}
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        path = scenario(Path(name) / "four.yaml", 4, tool={"behaviours": [broken_reset]})
        with SimulatedCluster(Path(name) / "node", simulated_node=path) as cluster:
            node = Node(cluster)
            node.start()
            yield node


def file_devices(node: Node, claim: dra_pb2.Claim) -> list[str]:
    """CDI device ids that the claim's file defines."""
    content = yaml.safe_load((node.paths.cdi / cdi_spec_file(claim.uid)).read_text())
    return [f"{content['kind']}={device['name']}" for device in content["devices"]]


def kill_during(node: Node, call: Callable[[], object], after: float) -> None:
    driver = node.cluster.driver
    assert driver is not None
    with in_background(call):
        time.sleep(after)
        driver.kill()
    node.start()


def test_kills_in_prepare_and_unprepare_lose_nothing(slow_node: Node) -> None:
    node = slow_node
    for number, steps in enumerate((0.3, 1.6)):
        claim = node.claim(f"killed-{number}", ["gpu-0", "gpu-1"], "Long")
        kill_during(node, partial(node.prepare, claim), steps * TOOL_SECONDS)
        first = node.answer(claim)
        devices = node.prepare(claim).claims[claim.uid].devices
        assert [cdi_id for device in devices for cdi_id in device.cdi_device_ids] == file_devices(node, claim)
        assert node.slices() == ["3", "3"]
        assert node.answer(claim) == first

        kill_during(node, partial(node.unprepare, claim), steps * TOOL_SECONDS)
        assert node.give_back(claim) == ""
        assert node.left_behind() == []


def test_claim_that_was_killed_half_way_and_deleted_is_undone_at_the_next_start(very_slow_node: Node) -> None:
    node = very_slow_node
    claim = node.claim("short-lived", ["gpu-0", "gpu-1"], "Long")
    driver = node.cluster.driver
    assert driver is not None
    with in_background(lambda: node.prepare(claim)):
        until(lambda: list(node.rows().values()) == ["started"], "the first step")
        driver.kill()
    node.forget(claim)
    assert list(node.rows().values()) == ["started"]
    node.start()
    until(lambda: not node.left_behind(), "the sweep to undo the claim", 20)


def test_claim_that_was_half_unprepared_gets_its_slices_again(lasting_node: Node) -> None:
    node = lasting_node
    claim = node.claim("coming-back", ["gpu-2", "gpu-3"], "Long")
    node.answer(claim)
    try:
        assert "broken" in node.give_back(claim)
        node.answer(claim)
        assert node.slices()[2:] == ["3", "3"]
    finally:
        assert node.give_back(claim) == ""


def test_tool_of_a_killed_driver_changes_no_card_later(node: Node) -> None:
    tool = node.paths.plugin / "simulated-node/usr/bin/nvidia-smi"
    mark = node.paths.root / "slow"
    mark.write_text("")
    before, main, after = tool.read_text().rpartition("\nmain(")
    tool.write_text(f"{before}{SLOW_ONCE.format(mark=mark)}{main}{after}")
    claim = node.claim("left", ["gpu-0"], "Long")
    driver = node.cluster.driver
    assert driver is not None
    with in_background(lambda: node.prepare(claim)):
        until(Path(f"{mark}.begun").exists, "the tool to run")
        driver.kill()
    node.start()
    assert node.give_back(claim) == ""
    end = time.monotonic() + 3.5
    while time.monotonic() < end and not Path(f"{mark}.ended").exists():
        time.sleep(0.05)
    time.sleep(0.1)
    assert node.left_behind() == []


def test_signal_that_another_thread_is_given_lets_a_running_prepare_end_and_keeps_its_claim(
    very_slow_node: Node,
) -> None:
    node = very_slow_node
    claim = node.claim("in-flight", ["gpu-0", "gpu-1"], "Long")
    driver = node.cluster.driver
    assert driver is not None
    assert driver.pid is not None
    answers, published = [], node.published()
    with in_background(lambda: answers.append(node.answer(claim))):
        until(lambda: list(node.rows().values()) == ["started"], "the first step")
        signal_thread(driver.pid, signal.SIGTERM)
        until(lambda: driver.pid is None, "the driver to end", 10)
    assert driver.stop() == 0
    assert len(answers) == 1
    assert node.rows() == {claim.uid: "completed"}
    assert node.slices() == ["3", "3"]
    assert list(node.paths.registry.iterdir()) == []
    assert node.published() == published


def signal_thread(pid: int, number: int) -> None:
    """Give a signal to the youngest thread of a process, which is not its main one."""
    threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.tgkill(pid, max(threads), number) == 0, os.strerror(ctypes.get_errno())


def damage(path: Path, how: str) -> None:
    """Harm the state database of a driver that is not running."""
    for part in path.parent.glob(f"{path.name}-*"):
        part.unlink()
    match how:
        case "deleted":
            path.unlink()
        case "halved":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_damaged_database_frees_no_gpu(node: Node) -> None:
    claim = node.claim("lived-through", ["gpu-0"], "Long")
    first = node.answer(claim)
    for how in ("deleted", "halved"):
        assert node.cluster.driver is not None
        node.cluster.driver.kill()
        damage(node.paths.plugin / STATE_FILE, how)
        node.start()
        assert node.answer(claim) == first
        assert "default/lived-through" in node.refusal(node.claim(f"late-{how}"))
    assert node.give_back(claim) == ""
    assert node.left_behind() == []


def test_plugin_directory_removed_under_a_running_driver_ends_it_and_the_next_one_knows_every_claim(node: Node) -> None:
    claim = node.claim("lived-through", ["gpu-0"], "Long")
    first = node.answer(claim)
    driver = node.cluster.driver
    assert driver is not None
    shutil.rmtree(node.paths.plugin)
    with pytest.raises(DriverError, match=r"exit code 1.* was removed or replaced while this driver has it open"):
        until(driver.check, "the driver to end")
    assert node.rows() == {claim.uid: "completed"}

    # Not from the CDI file and the API server, which would do as well.
    (node.paths.cdi / cdi_spec_file(claim.uid)).unlink()
    node.start()
    assert node.answer(claim) == first
    assert "default/lived-through" in node.refusal(node.claim("late"))
    assert node.give_back(claim) == ""
    assert node.left_behind() == []


def test_database_that_somebody_else_put_in_place_is_left_to_him(node: Node) -> None:
    driver = node.cluster.driver
    assert driver is not None
    claim = node.claim("lived-through")
    first = node.answer(claim)
    state = node.paths.plugin / STATE_FILE
    for part in node.paths.plugin.glob(f"{STATE_FILE}*"):
        part.rename(part.with_name(f"aside-{part.name}"))
    Store.open(state).close()
    with pytest.raises(DriverError, match=f"exit code 1.*{state}"):
        until(driver.check, "the driver to end")
    assert node.rows() == {}
    node.start()
    assert node.answer(claim) == first
    assert node.give_back(claim) == ""


def test_disk_that_fills_in_the_middle_of_prepare_leaves_nothing(directory: Path) -> None:
    path = scenario(directory / "slower.yaml", tool={"delayMs": 600})
    with SimulatedCluster(directory / "node", simulated_node=path) as cluster:
        node = Node(cluster)
        driver = node.start()
        assert driver.pid is not None
        claim = node.claim("unlucky", ["gpu-0"], "Long")
        errors: list[str] = []
        calls = node.paths.plugin / "simulated-node" / CALL_LOG
        limits = resource.prlimit(driver.pid, resource.RLIMIT_FSIZE)
        with in_background(lambda: errors.append(node.refusal(claim))):
            until(calls.read_text, "the tool to run")
            # No file can grow any more, which is what a full disk looks like from inside.
            resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, limits)
        assert "cannot be written" in errors[0]
        assert node.give_back(claim) == ""
        assert node.left_behind() == []
        node.answer(claim)


def test_cdi_directory_that_was_removed_comes_back_with_the_next_claim(lasting_node: Node) -> None:
    node = lasting_node
    shutil.rmtree(node.paths.cdi)
    claim = node.claim("first-after")
    try:
        node.answer(claim)
        assert file_devices(node, claim) == [f"k8s.gpu.nvidia.com/claim={claim.uid}-gpu-0"]
    finally:
        assert node.give_back(claim) == ""
        node.paths.cdi.mkdir(exist_ok=True)


def test_directory_named_like_a_claims_file_does_not_take_the_node_down(directory: Path) -> None:
    with SimulatedCluster(directory / "node") as cluster:
        node = Node(cluster)
        (node.paths.cdi / cdi_spec_file("a-stranger") / "inside").mkdir(parents=True)
        node.start(ready=False)
        until(cluster.devices, "the slices")
        claim = node.claim("bystander")
        until(lambda: node.answer(claim), "the DRA socket, which may come after the slices")


def test_lost_sockets_come_back(lasting_node: Node) -> None:
    node = lasting_node
    claim = node.claim("patient")
    first = node.answer(claim)
    (node.paths.plugin / "dra.sock").unlink()
    shutil.rmtree(node.paths.registry)
    until(lambda: node.answer(claim) == first, "the DRA socket")
    node.paths.registry.mkdir()
    until(lambda: list(node.paths.registry.iterdir()), "the registration socket")
    assert node.give_back(claim) == ""
