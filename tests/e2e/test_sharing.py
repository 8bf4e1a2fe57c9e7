"""The story of the EKS guide: who shares a GPU and who has one alone, as the containers themselves see it."""

from typing import Any

import pytest

from dra_driver_api.names import DRIVER_NAME
from hack.cluster.driver import ROOT
from tests.e2e.host_driver import HostDriver
from tests.e2e.manifests import (
    claim,
    container,
    deployment,
    from_template,
    named,
    pod,
    pod_spec,
    request,
    runnable_here,
    template,
)
from tests.e2e.world import Report, World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "dra_driver/simulator/examples"
GPUS = 4


def card(report: Report) -> str:
    """The one GPU of a container; its device files must be the real ones: gpu-N is /dev/nvidiaN, 195:N."""
    ((path, (major, minor)),) = report.cards.items()
    assert (path, major) == (f"/dev/nvidia{minor}", 195)
    return f"gpu-{minor}"


def published(driver: HostDriver, device: str) -> dict[str, Any]:
    """Attributes of a device as the cluster knows them."""
    found = [each for each in driver.ensure().slices()[0]["spec"]["devices"] if each["name"] == device]
    attributes: dict[str, Any] = found[0]["attributes"]
    return attributes


def test_two_pods_that_name_one_claim_get_the_very_same_gpu(world: World, driver: HostDriver) -> None:
    world.apply(*runnable_here((EXAMPLES / "shared-claim.yaml").read_text()))
    world.wait_running("trainer-0", "trainer-1")
    first, second = world.report("trainer-0", "trainer"), world.report("trainer-1", "trainer")
    assert first == second
    ((_, device),) = world.allocated("trainer-gpu")
    assert card(first) == device
    uuid = published(driver, device)["uuid"]["string"]
    row = next(line for line in (driver.view.tree / "var/state/gpus").read_text().splitlines() if uuid in line)
    assert row.split()[1] == device.removeprefix("gpu-")


def test_container_gets_driver_files_and_common_devices_but_no_other_gpu(world: World) -> None:
    world.apply(claim("one"), pod("a", gpu=named("one")))
    world.wait_running("a")
    report = world.report("a")
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} < set(report.devices)
    assert len(report.cards) == 1
    assert report.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert any("libcuda.so" in path for path in report.mounts)
    assert "/usr/bin/nvidia-smi" in report.mounts


def test_containers_of_one_request_share_and_another_request_has_another_gpu(world: World) -> None:
    world.apply(*runnable_here((EXAMPLES / "two-requests.yaml").read_text()))
    world.wait_running("pipeline")
    seen = {name: card(world.report("pipeline", name)) for name in ("decode", "detect", "embed", "rank")}
    wanted = dict(world.allocated("pipeline-gpus"))
    assert wanted["left"] != wanted["right"]
    assert seen == {
        "decode": wanted["left"],
        "detect": wanted["left"],
        "embed": wanted["right"],
        "rank": wanted["right"],
    }


def test_model_and_sidecar_of_one_pod_fit_on_one_gpu(world: World) -> None:
    world.apply(*runnable_here((EXAMPLES / "two-containers.yaml").read_text()))
    world.wait_running("model-and-sidecar")
    assert world.report("model-and-sidecar", "model") == world.report("model-and-sidecar", "sidecar")
    assert len(world.all("ResourceClaim")) == 1


def test_container_that_names_no_claim_sees_no_gpu(world: World) -> None:
    mixed = pod("mixed", gpu=named("one"))
    mixed["spec"] = pod_spec([container("with", {"name": "gpu"}), container("without")], {"gpu": named("one")})
    world.apply(claim("one"), mixed)
    world.wait_running("mixed")
    assert len(world.report("mixed", "with").cards) == 1
    assert world.report("mixed", "without").devices == {}


def test_deployment_of_four_shares_one_gpu_by_its_claims_name(world: World) -> None:
    world.apply(claim("shared"), deployment("web", 4, gpu=named("shared")))
    names = world.wait_number_running(4, "app=web")
    assert len({card(world.report(name)) for name in names}) == 1
    reserved = world.get("ResourceClaim", "shared")["status"]["reservedFor"]
    assert {each["name"] for each in reserved} == set(names)


def test_pods_of_a_template_get_a_gpu_each(world: World) -> None:
    world.apply(template("single"), deployment("worker", 3, gpu=from_template("single")))
    names = world.wait_number_running(3, "app=worker")
    assert len({card(world.report(name)) for name in names}) == 3


def test_pod_in_excess_waits_and_starts_when_a_gpu_is_free(world: World) -> None:
    world.apply(template("single"), *(pod(f"p-{number}", gpu=from_template("single")) for number in range(GPUS)))
    world.wait_running(*(f"p-{number}" for number in range(GPUS)))
    world.apply(pod("late", gpu=from_template("single")))
    assert "cannot allocate all claims" in world.wait_unschedulable("late")
    freed = card(world.report("p-2"))
    world.delete("Pod", "p-2")
    world.wait_running("late")
    assert card(world.report("late")) == freed


def test_one_claim_can_ask_for_all_gpus_of_a_node(world: World) -> None:
    world.apply(claim("all", request("gpus", allocationMode="All")), pod("big", gpus=named("all")))
    world.wait_running("big")
    assert set(world.report("big").cards) == {f"/dev/nvidia{number}" for number in range(GPUS)}


def test_pod_that_asks_for_nvidia_com_gpu_as_ever_gets_a_gpu_without_a_claim(world: World) -> None:
    classic = pod("classic")
    classic["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    world.apply(classic)
    world.wait_running("classic")
    ((_, device),) = world.allocated(world.claim_of("classic"))
    assert card(world.report("classic")) == device


def test_slice_and_claim_name_this_driver(world: World, driver: HostDriver) -> None:
    world.apply(claim("one"), pod("a", gpu=named("one")))
    world.wait_running("a")
    (result,) = world.get("ResourceClaim", "one")["status"]["allocation"]["devices"]["results"]
    (published_slice,) = driver.ensure().slices()
    assert result["driver"] == published_slice["spec"]["driver"] == DRIVER_NAME
    assert result["pool"] == published_slice["spec"]["pool"]["name"]
