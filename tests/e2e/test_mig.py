"""MIG devices that someone else makes, destroys and makes anew, under pods that have them; several of one card."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from dra_driver.devices.driver_tree import CAPS_MAJOR, NVIDIA_MAJOR, STATE
from dra_driver_api.names import DRA_SOCKET, DRIVER_NAME
from hack.cluster.cluster import Cluster
from hack.cluster.driver import Driver
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import Json, claim, named, pod, request
from tests.e2e.scheduler import MIG_CARD
from tests.e2e.waiting import until
from tests.e2e.world import World, container_ids
from tests.grpc.helpers import health_stream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SMALL: Final = "1g.5gb"
PROFILES: Final = {
    **MIG_CARD["migProfiles"],
    "2g.10gb": {"id": 14, "size": 2, "memoryMiB": 9856, "multiprocessors": 28, "copyEngines": 2, "decoders": 1},
}
COMMON: Final = {"/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
"""Device files that containers with any GPU have."""
SMALL_INSTANCE: Final = 7
"""GPU instance of the 1g.5gb that begins at the first memory slice; the next has the next."""


def small(gpu: int, start: int) -> str:
    """Name of a 1g.5gb."""
    return f"gpu-{gpu}-mig-1g5gb-19-{start}"


class Layout:
    """Two cards in MIG mode, the first with three 1g.5gb, the second with five, while nothing else is said."""

    def __init__(self, cluster: Cluster, driver: HostDriver, scenario: Path) -> None:
        self._cluster = cluster
        self.running: Driver = driver.ensure(scenario=scenario)
        self.tree = driver.view.tree
        self.socket = driver.view.folder / DRA_SOCKET
        self._files = [path / "mig_layout" for path in map((self.tree / STATE).joinpath, driver.view.time_slices())]

    def published(self) -> dict[str, Json]:
        """The published devices by name."""
        return {each["name"]: each for found in self.running.slices() for each in found["spec"].get("devices") or ()}

    def change(self, gpu: int, **starts: list[int]) -> None:
        """What a card has now, as an admin would make it; starts: by profile, ``p1g_5gb``."""
        layout = [
            {"profile": name.removeprefix("p").replace("_", "."), "starts": each} for name, each in starts.items()
        ]
        new = self._files[gpu].with_suffix(".new")
        new.write_text(yaml.safe_dump(layout), encoding="utf-8")
        os.replace(new, self._files[gpu])

    def wait_published(self, *names: str) -> None:
        """Wait until these devices, and no others, are published."""
        until(lambda: list(self.published()) == list(names), lambda: f"{names}, not {list(self.published())}")

    def restore(self) -> None:
        """As if nothing had been said."""
        for path in self._files:
            path.unlink(missing_ok=True)
        self.wait_published(*BEFORE)

    def health_messages(self) -> dict[str, str]:
        """What the kubelet is told of each device that is not what it was, by name."""
        with health_stream(self.socket) as stream:
            return {each.device.device_name: each.message for each in next(stream).devices if each.message}

    def told(self, uuid: str) -> str:
        """The event of the node about a device that is gone, '' before there is one."""
        events = self._cluster.api.get("/api/v1/namespaces/default/events", fieldSelector="reason=DeviceLost")["items"]
        return next((str(each["message"]) for each in reversed(events) if uuid in each["message"]), "")

    def capabilities(self, gpu: int, start: int) -> set[str]:
        """Device files of a 1g.5gb's GPU instance and compute instance, by the kernel's word."""
        folder = self.tree / f"proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{SMALL_INSTANCE + start}"
        texts = [(folder / name).read_text(encoding="ascii") for name in ("access", "ci0/access")]
        minors = [text.splitlines()[0].removeprefix("DeviceFileMinor: ") for text in texts]
        return {f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors}


BEFORE: Final = (*(small(0, start) for start in range(3)), *(small(1, start) for start in range(5)))


@pytest.fixture(scope="module")
def two_cards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario, the same for all tests, so that the driver need not be started for each."""
    path = tmp_path_factory.mktemp("scenarios") / "mig.yaml"
    cards = [
        {**MIG_CARD, "migProfiles": PROFILES, "mig": [{"profile": SMALL, "starts": list(range(count))}]}
        for count in (3, 5)
    ]
    path.write_text(yaml.safe_dump({"driver": {"version": "580.159.04"}, "gpus": cards}), encoding="utf-8")
    return path


@pytest.fixture
def layout(world: World, driver: HostDriver, two_cards: Path) -> Iterator[Layout]:
    """The cards, on offer; as they were when the test is over."""
    made = Layout(world.cluster, driver, two_cards)
    made.wait_published(*BEFORE)
    yield made
    driver.resume()
    made.restore()


def on(name: str, device: str) -> Json:
    """Claim for one MIG device of the driver: the one that has its parent and place."""
    gpu, start = device.removeprefix("gpu-").split("-")[0], device.rpartition("-")[2]
    place = f'"memorySlice{start}" in device.capacity["{DRIVER_NAME}"]'
    return claim(name, request("slice", place, of_card(gpu), deviceClassName="mig.nvidia.com"))


def of_card(minor: str) -> str:
    """CEL for the cards of the scenario: they are in one PCI slot after the other."""
    return f'device.attributes["resource.kubernetes.io"].pciBusID == "0000:00:{int(minor):02x}.0"'


def test_four_devices_of_one_card_are_found_where_there_are_four_and_a_pod_has_them(
    world: World, layout: Layout
) -> None:
    profile = f'device.attributes["{DRIVER_NAME}"].profile == "{SMALL}"'
    wanted = [request(f"mig-{number}", profile, deviceClassName="mig.nvidia.com") for number in range(4)]
    alike: list[Json] = [{"requests": [], "matchAttribute": f"{DRIVER_NAME}/parentUUID"}]
    world.apply(claim("four", *wanted, constraints=alike), pod("a", gpu=named("four")))
    world.wait_running("a")
    devices = [device for _, device in world.allocated("four")]
    starts = {int(device.rpartition("-")[2]) for device in devices}
    assert len(starts) == 4
    assert {device.rpartition("-")[0] for device in devices} == {"gpu-1-mig-1g5gb-19"}
    capabilities = set().union(*(layout.capabilities(1, start) for start in starts))
    assert len(capabilities) == 8
    assert set(world.report("a").devices) == COMMON | {"/dev/nvidia1"} | capabilities
    world.apply(claim("four-more", *wanted, constraints=alike), pod("b", gpu=named("four-more")))
    assert "cannot allocate all claims" in world.wait_unschedulable("b")


def test_pods_of_one_card_have_its_device_file_and_the_capabilities_of_their_own_device(
    world: World, layout: Layout
) -> None:
    for start in (0, 2):
        world.apply(on(f"claim-{start}", small(0, start)), pod(f"pod-{start}", gpu=named(f"claim-{start}")))
    world.wait_running("pod-0", "pod-2")
    for start in (0, 2):
        devices = world.report(f"pod-{start}").devices
        capabilities = layout.capabilities(0, start)
        assert set(devices) == COMMON | {"/dev/nvidia0"} | capabilities
        assert devices["/dev/nvidia0"] == (NVIDIA_MAJOR, 0)
        assert {path: devices[path] for path in capabilities} == {
            path: (CAPS_MAJOR, int(path.rpartition("cap")[2])) for path in capabilities
        }


def test_layout_changes_under_pods_and_only_the_device_that_is_gone_is_withdrawn_and_told(
    world: World, layout: Layout, driver: HostDriver
) -> None:
    for name, start in (("goes", 0), ("stays", 2)):
        world.apply(on(name, small(0, start)), pod(name, gpu=named(name)))
    before = world.wait_running("goes", "stays")
    kept, rows = layout.published()[small(0, 2)], driver.view.rows()
    uuid = layout.published()[small(0, 0)]["attributes"]["uuid"]["string"]
    layout.change(0, p1g_5gb=[2], p2g_10gb=[4])
    layout.wait_published(small(0, 2), "gpu-0-mig-2g10gb-14-4", *(small(1, start) for start in range(5)))
    assert layout.published()[small(0, 2)] == kept

    assert container_ids(world.wait_running("goes", "stays")) == container_ids(before)
    assert driver.view.rows() == rows
    ((device, message),) = layout.health_messages().items()
    assert device == small(0, 0)
    assert uuid in message
    assert "has no such MIG device now" in message
    assert "delete the claim's pods" in message
    who = f"live claims ({world.namespace}/goes) hold it"
    until(lambda: who in layout.told(uuid), lambda: f"an event with {who!r}, not {layout.told(uuid)!r}")

    world.apply(claim("new", request("slice", new_profile(), deviceClassName="mig.nvidia.com")))
    world.apply(pod("new", gpu=named("new")))
    world.wait_running("new")
    assert [device for _, device in world.allocated("new")] == ["gpu-0-mig-2g10gb-14-4"]

    world.delete("Pod", "goes")
    until(lambda: len(driver.view.rows()) == 2, lambda: f"the claim to be unprepared, not {driver.view.rows()}")
    assert layout.health_messages() == {}
    assert container_ids(world.wait_running("stays")) == container_ids(before[1:])


def new_profile() -> str:
    """CEL for the devices of which there are none before the layout changes."""
    return f'device.attributes["{DRIVER_NAME}"].profile == "2g.10gb"'


def test_pod_whose_device_went_before_it_was_prepared_is_told_and_its_successor_runs(
    world: World, layout: Layout
) -> None:
    layout.running.stop()
    world.apply(on("early", small(0, 1)), pod("a", gpu=named("early")))
    until(lambda: world.get("ResourceClaim", "early").get("status", {}).get("allocation"), "the claim to be allocated")
    layout.change(0, p2g_10gb=[0])
    layout.running.start()

    def told() -> list[str]:
        return [each["message"] for each in world.all("Event") if small(0, 1) in each["message"]]

    message = until(told, lambda: f"an event that names the device\n{world.describe()}")[0]
    assert "is not on this node" in message
    assert "MIG layout changed: delete the pod" in message
    world.delete("Pod", "a")
    world.delete("ResourceClaim", "early")
    world.apply(on("later", small(1, 1)), pod("b", gpu=named("later")))
    world.wait_running("b")


def test_pod_that_comes_later_to_the_claim_of_a_device_that_is_gone_is_started_by_the_kubelet_alone(
    world: World, layout: Layout
) -> None:
    world.apply(on("goes", small(0, 0)), pod("early", gpu=named("goes")))
    world.wait_running("early")
    capabilities = layout.capabilities(0, 0)
    layout.change(0, p1g_5gb=[1, 2])
    layout.wait_published(*BEFORE[1:])
    world.apply(pod("late", gpu=named("goes")))
    world.wait_running("late")
    assert capabilities < set(world.report("late").devices)
