"""Nodes without GPUs, GPUs that come late, drop out, return, or are cut into MIG devices, while pods want them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_driver.devices.driver_tree import STATE
from hack.cluster.driver import Driver
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import claim, from_template, named, pod, request, template, time_slicing
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MIG_CLASS: Final = "mig.nvidia.com"
CARDS: Final = {
    "count": 2,
    "productName": "NVIDIA H200",
    "architecture": "Hopper",
    "cudaComputeCapability": "9.0",
    "memoryBytes": 150754820096,
    "migEnabled": False,
    "migProfiles": {"1g.18gb": {"id": 19, "memoryMiB": 16384, "multiprocessors": 16}},
    "mig": [{"profile": "1g.18gb", "starts": [0, 1, 2]}],
}
NEVER: Final = {"nvml": {"notLoadableScans": 1_000_000}}
QUIET_S: Final = 15.0
"""Time for some looks of the driver."""


class Cards:
    """The two GPUs of the node, which a test takes away and gives back while the driver runs."""

    def __init__(self, driver: HostDriver, scenario: Path) -> None:
        self.running: Driver = driver.ensure(scenario=scenario)
        self._state = driver.view.tree / STATE
        self._made: list[Path] = []

    def offered(self) -> dict[str, str]:
        """UUIDs of the published devices, by name."""
        found = (device for each in self.running.slices() for device in each["spec"].get("devices") or ())
        return {device["name"]: device["attributes"]["uuid"]["string"] for device in found}

    def wait_offered(self, *names: str) -> None:
        """Wait until these devices, and no others, are published."""
        until(lambda: list(self.offered()) == list(names), lambda: f"{names} to be offered, not {self.offered()}")

    def say(self, file: str, text: str = "") -> None:
        """Write a file of the node's state; at the end of the test it is taken away."""
        self._made.append(self._state / file)
        self._made[-1].write_text(text, encoding="utf-8")

    def unsay(self, file: str) -> None:
        """Take it away now."""
        (self._state / file).unlink(missing_ok=True)

    def restore(self) -> None:
        """As if nothing had happened."""
        for path in self._made:
            path.unlink(missing_ok=True)


def scenario(path: Path, *groups: Any, **parts: Any) -> Path:
    """Write a scenario."""
    content = {"driver": {"version": "580.159.04"}, "gpus": list(groups), **parts}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario of most tests here, which share its driver."""
    return scenario(tmp_path_factory.mktemp("scenarios") / "two.yaml", CARDS)


@pytest.fixture
def cards(world: World, driver: HostDriver, two_gpus: Path) -> Iterator[Cards]:
    """Two GPUs, offered; all is as it was when the test is over."""
    made = Cards(driver, two_gpus)
    made.wait_offered("gpu-0", "gpu-1")
    yield made
    made.restore()


def said(running: Driver, start: int, text: str) -> int:
    """How many lines of the driver's log warn so, after a position in it."""
    with running.log.open(encoding="utf-8", errors="replace") as log:
        log.seek(start)
        return sum(text in line and "WARNING" in line.upper() for line in log)


@pytest.mark.parametrize("failures", [{}, NEVER], ids=["driver-without-cards", "no-driver"])
def test_driver_on_a_node_without_gpus_says_so_once_offers_nothing_and_stays_up(
    world: World, driver: HostDriver, tmp_path: Path, failures: dict[str, Any]
) -> None:
    before = driver.ensure()
    assert before.slices()[0]["spec"]["devices"]
    start = before.log.stat().st_size
    running = driver.ensure(scenario=scenario(tmp_path / "none.yaml", failures=failures))
    process = running.process
    until(lambda: [each["spec"].get("devices") or [] for each in running.slices()] == [[]], "the GPUs to be withdrawn")
    world.apply(claim("one"), pod("a", gpu=named("one")))
    assert "cannot allocate all claims" in world.wait_unschedulable("a")
    assert said(running, start, "has no NVIDIA GPU") == 1
    assert "nothing is offered" in driver.page("/readyz")
    versions = [each["metadata"]["resourceVersion"] for each in running.slices()]
    time.sleep(QUIET_S)
    assert process.alive()
    assert said(running, start, "has no NVIDIA GPU") == 1
    assert [each["metadata"]["resourceVersion"] for each in running.slices()] == versions


def test_pod_that_waits_for_a_driver_that_is_loaded_late_runs_when_it_is(world: World, cards: Cards) -> None:
    cards.running.stop()
    cards.say("not-loaded")
    cards.running.start()
    cards.wait_offered()
    world.apply(claim("one"), pod("a", gpu=named("one")))
    world.wait_unschedulable("a")
    cards.unsay("not-loaded")
    world.wait_running("a")
    assert world.report("a").cards


def test_pod_that_was_placed_while_the_driver_loads_is_told_why_it_waits_and_runs_then(
    world: World, cards: Cards
) -> None:
    cards.running.stop()
    cards.say("not-loaded")
    cards.running.start()
    world.apply(claim("one"), pod("a", gpu=named("one")))
    why = "the NVIDIA kernel driver is not loaded"
    until(lambda: any(why in each["message"] for each in world.all("Event")), lambda: f"{why}\n{world.describe()}")
    cards.unsay("not-loaded")
    world.wait_running("a", seconds=240)
    assert list(cards.offered()) == ["gpu-0", "gpu-1"]


def test_gpu_that_drops_out_under_a_pod_is_offered_no_more_until_it_is_back(
    world: World, driver: HostDriver, cards: Cards
) -> None:
    world.apply(claim("held", config=[time_slicing("Long")]), pod("old", gpu=named("held")))
    before = world.wait_running("old")
    ((_, device),) = world.allocated("held")
    offered = cards.offered()
    (other,) = offered.keys() - {device}
    rows = driver.view.rows()
    cards.say(f"{offered[device]}/gone")
    cards.wait_offered(other)
    world.apply(template("single"), pod("a", gpu=from_template("single")))
    world.wait_running("a")
    world.apply(pod("b", gpu=from_template("single")))
    world.wait_unschedulable("b")
    assert container_ids(world.wait_running("old")) == container_ids(before)
    assert rows.items() <= driver.view.rows().items()
    world.delete("Pod", "old")
    cards.unsay(f"{offered[device]}/gone")
    until(lambda: cards.offered() == offered, "the GPU to be back under its name")
    world.delete("ResourceClaim", "held")
    world.wait_running("b")
    assert set(world.report("b").cards) == {f"/dev/nvidia{device.removeprefix('gpu-')}"}


def test_pod_that_waits_for_a_mig_device_runs_when_mig_mode_is_turned_on(world: World, cards: Cards) -> None:
    slices = [f"gpu-0-mig-1g18gb-19-{start}" for start in range(3)]
    wanted = claim("slice", request("slice", deviceClassName=MIG_CLASS))
    world.apply(wanted, pod("a", gpu=named("slice")))
    world.wait_unschedulable("a")
    mode = f"{cards.offered()['gpu-0']}/mig_mode"
    cards.say(mode, "Enabled\n")
    cards.wait_offered(*slices, "gpu-1")
    world.wait_running("a")
    ((_, device),) = world.allocated("slice")
    assert device in slices
    world.delete("Pod", "a")
    cards.unsay(mode)
    cards.wait_offered("gpu-0", "gpu-1")
