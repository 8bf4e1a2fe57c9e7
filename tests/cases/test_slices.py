"""Field cases on what the cluster is told of a node's GPUs, and on claims when that changes under them."""

import pytest

from dra_driver import app
from dra_driver.devices import discovery
from dra_driver.devices.discovery import Pace
from dra_driver.devices.driver_tree import STATE
from dra_driver.scheduling.small_cel import compile_selector
from dra_driver_api.kubelet import dra_pb2
from dra_driver_api.names import DRIVER_NAME
from tests.builders import NODE, config_entry, result, time_slicing
from tests.cases.driver import PROFILES, U0, U1, Driver, cards, node, nothing_left, set_call
from tests.grpc import helpers

LONG = config_entry(time_slicing("Long"), "gpu")
SEVEN = [{"profile": "1g.18gb", "starts": [0, 1, 2, 3, 4, 5, 6]}]


def names_and_uuids(driver: Driver) -> dict[str, str]:
    return {name: device["attributes"]["uuid"]["string"] for name, device in driver.devices().items()}


# 32


def test_card_keeps_its_name_over_a_restart_without_its_neighbour(driver: Driver) -> None:
    assert names_and_uuids(driver) == {"gpu-0": U0, "gpu-1": U1}
    driver.stop()
    driver.scenario = node(cards(U1, minor=[1]))
    driver.start()
    driver.wait_for(lambda: names_and_uuids(driver) == {"gpu-1": U1})


@pytest.fixture
def swapped(driver: Driver) -> Driver:
    """A claim was prepared on gpu-1, which was U1; after a restart gpu-1 is U0."""
    driver.prepare(driver.claim("old", [result("gpu-1")], LONG))
    driver.stop()
    driver.scenario = node(cards(U0, U1, minor=[1, 0]))
    driver.start()
    driver.wait_for(lambda: names_and_uuids(driver) == {"gpu-0": U1, "gpu-1": U0})
    return driver


def old_claim(driver: Driver) -> dra_pb2.Claim:
    (record,) = (record for record in driver.records() if record.claim.name == "old")
    return helpers.claim(record.claim.uid, "old")


def test_claim_is_not_moved_to_another_card_that_has_its_cards_name(swapped: Driver) -> None:
    text = swapped.refusal(old_claim(swapped))
    assert U1 in text
    assert U0 in text
    assert swapped.held() == {"old": (U1,)}


def test_vanished_spec_is_not_written_again_for_another_card(swapped: Driver) -> None:
    for path in swapped.cdi.iterdir():
        path.unlink()
    swapped.refusal(old_claim(swapped))
    assert swapped.files() == []


def test_unprepare_sets_back_the_card_that_was_set_whatever_its_name_is_now(swapped: Driver) -> None:
    assert swapped.unprepare(old_claim(swapped)) == [""]
    assert swapped.tool_calls() == [set_call(U1, 3), set_call(U1, 0)]
    assert nothing_left(swapped)


def test_card_is_still_held_under_its_new_name_and_the_old_name_is_free(swapped: Driver) -> None:
    assert "default/old" in swapped.refusal(swapped.claim("late", [result("gpu-0")]))
    assert swapped.prepare(swapped.claim("other", [result("gpu-1")]))


def test_cards_that_were_numbered_anew_are_an_event(swapped: Driver) -> None:
    messages = swapped.wait_for(lambda: sorted(swapped.events("DeviceNameMoved")))
    assert any("gpu-1" in message and U0 in message and U1 in message for message in messages)


def test_card_that_is_replaced_while_the_driver_runs_is_an_event_and_not_handed_to_the_old_claim(
    stopped: Driver,
) -> None:
    stopped.scenario = node(changes=[{"afterScans": 1, "gpu": 1, "uuid": "GPU-new"}])
    stopped.start()
    claim = stopped.claim("old", [result("gpu-1")])
    stopped.prepare(claim)
    stopped.rescan()
    (message,) = stopped.events("GPUReplaced")
    assert [word for word in ("gpu-1", U1, "GPU-new") if word not in message] == []
    assert "GPU-new" in stopped.refusal(claim)


# 34


def test_node_whose_cards_come_late_is_not_ready_until_they_are_published(stopped: Driver) -> None:
    stopped.scenario = node(failures={"nvml": {"notLoadableScans": 3, "zeroGpuScans": 1}})
    stopped.start(wait=False)
    seen = []
    for _ in range(4):
        code, conditions = stopped.readyz()
        seen.append((code, conditions["devices"]["ok"], stopped.slices()))
        stopped.rescan()
    assert seen == [(503, False, [])] * 4
    stopped.wait_for(lambda: list(stopped.devices()) == ["gpu-0", "gpu-1"])
    assert stopped.condition("devices")["ok"]


def test_reason_for_the_missing_cards_is_told(stopped: Driver) -> None:
    stopped.scenario = node(failures={"nvml": {"notLoadableScans": 10**6}})
    stopped.start(wait=False)
    message = stopped.wait_for(lambda: stopped.condition("devices")["message"].partition("not yet")[0])
    assert "libnvidia-ml.so.1 cannot be loaded" in message


def test_claim_that_comes_before_the_cards_waits_a_moment_for_them(stopped: Driver) -> None:
    stopped.scenario = node(failures={"nvml": {"notLoadableScans": 1}})
    stopped.start(wait=False)
    assert stopped.prepare(stopped.claim("early", [result()]))


def test_claim_that_comes_long_before_the_cards_is_told_to_wait(
    stopped: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_FIRST_SIGHT_SECONDS", 0.0)
    stopped.scenario = node(failures={"nvml": {"notLoadableScans": 1}})
    stopped.start(wait=False)
    claim = stopped.claim("early", [result()])
    assert "not known yet" in stopped.refusal(claim)
    stopped.rescan()
    stopped.wait_for(stopped.devices)
    assert stopped.prepare(claim)


NO_GPU = {"driver": {"version": "580.159.04"}, "gpus": []}
UNLOADED = {"nvml": {"notLoadableScans": 10**6}}


@pytest.mark.parametrize("failures", [{}, UNLOADED], ids=["driver-without-cards", "no-driver"])
def test_driver_on_a_node_without_gpus_is_ready_offers_nothing_and_says_why(
    stopped: Driver, failures: dict[str, object]
) -> None:
    stopped.scenario = NO_GPU | {"failures": failures}
    stopped.start()
    stopped.wait_for(lambda: stopped.slices() and stopped.condition("devices")["ok"])
    assert stopped.devices() == {}
    assert "this node has no NVIDIA GPU" in stopped.condition("devices")["message"]


def test_gpus_that_an_earlier_driver_promised_are_withdrawn_on_a_node_that_has_none_now(driver: Driver) -> None:
    assert list(driver.devices()) == ["gpu-0", "gpu-1"]
    driver.stop()
    driver.scenario = NO_GPU
    driver.start()
    driver.wait_for(lambda: driver.slices() and not driver.devices())


def test_gpus_of_a_driver_that_does_not_load_are_withdrawn_and_offered_again_when_it_does(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = driver.claim("old", [result("gpu-0")])
    answer = driver.prepare(old)
    published = driver.devices()
    driver.stop()
    (driver.tree / STATE / "not-loaded").touch()
    monkeypatch.setattr(discovery, "Pace", lambda: Pace(grace=0.0))
    driver.start(wait=False)
    driver.wait_for(lambda: not driver.devices())
    assert "kernel driver is not loaded" in driver.condition("devices")["message"]
    assert driver.events("GPUsWithdrawn")
    assert driver.readyz()[0] == 503
    assert "kernel driver is not loaded" in driver.refusal(driver.claim("new", [result("gpu-1")]))
    assert driver.prepare(old) == answer
    (driver.tree / STATE / "not-loaded").unlink()
    driver.rescan()
    driver.wait_for(lambda: driver.devices() == published)
    assert driver.prepare(old) == answer
    assert driver.unprepare(old) == [""]


def test_slices_outlast_a_driver_that_is_loading_while_this_one_starts(driver: Driver) -> None:
    published = driver.slices()
    driver.stop()
    (driver.tree / STATE / "not-loaded").touch()
    driver.start(wait=False)
    for _ in range(5):
        driver.rescan()
    assert driver.slices() == published
    (driver.tree / STATE / "not-loaded").unlink()
    driver.rescan()
    driver.wait_for(lambda: driver.condition("slices")["ok"])
    assert driver.slices() == published


def test_gpu_that_drops_out_and_returns_leaves_the_slices_and_comes_back_under_its_name(driver: Driver) -> None:
    claim = driver.claim("held", [result("gpu-0")], LONG)
    driver.prepare(claim)
    published = driver.devices()
    gone = driver.tree / STATE / U0 / "gone"
    gone.touch()
    driver.rescan()
    driver.wait_for(lambda: list(driver.devices()) == ["gpu-1"])
    assert driver.held() == {"held": (U0,)}
    assert "gpu-0 is not on this node" in driver.refusal(driver.claim("late", [result("gpu-0")]))
    gone.unlink()
    driver.rescan()
    driver.wait_for(lambda: driver.devices() == published)
    assert driver.held() == {"held": (U0,)}
    assert "default/held" in driver.refusal(driver.claim("other", [result("gpu-0")]))
    assert driver.unprepare(claim) == [""]
    assert driver.time_slice(U0) == 0
    assert nothing_left(driver)


def test_slice_is_set_again_on_a_gpu_that_lost_it_while_it_was_away(driver: Driver) -> None:
    driver.prepare(driver.claim("first", [result("gpu-0", shareID="00000000-0000-4000-8000-00000000000a")], LONG))
    assert driver.time_slice(U0) == 3
    gone = driver.tree / STATE / U0 / "gone"
    gone.touch()
    driver.rescan()
    assert driver.time_slice(U0) == 0
    gone.unlink()
    driver.rescan()
    driver.prepare(driver.claim("second", [result("gpu-0", shareID="00000000-0000-4000-8000-00000000000b")], LONG))
    assert driver.time_slice(U0) == 3


def test_pod_can_leave_a_gpu_that_dropped_out(driver: Driver) -> None:
    claim = driver.claim("held", [result("gpu-0")], LONG)
    driver.prepare(claim)
    (driver.tree / STATE / U0 / "gone").touch()
    driver.rescan()
    assert driver.unprepare(claim) == [""]
    assert nothing_left(driver)


# 36


def test_restart_leaves_the_slices_as_they_are_and_no_socket_meanwhile(driver: Driver) -> None:
    published = driver.slices()
    driver.stop()
    assert driver.slices() == published
    assert [*driver.registry.iterdir(), *driver.plugin.glob("*.sock")] == []
    driver.start()
    assert driver.slices() == published


def test_old_and_new_version_do_not_rewrite_each_others_slices_during_an_update(stopped: Driver) -> None:
    stopped.pod_uid = "old"
    stopped.start()
    published = stopped.slices()
    new = stopped.successor("new")
    new.scenario = node(cards(U0, U1, productName="NVIDIA H200 by its new name"))
    new.start()
    try:
        assert new.slices() == published
        stopped.stop()
        new.wait_for(lambda: "new name" in new.devices()["gpu-0"]["attributes"]["productName"]["string"])
    finally:
        new.stop()


def test_new_version_that_sees_no_gpu_is_not_ready_and_leaves_the_slices_to_the_old_one(
    stopped: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped.pod_uid = "old"
    stopped.start()
    published = stopped.slices()
    monkeypatch.setattr(discovery, "Pace", lambda: Pace(grace=0.0))
    new = stopped.successor("new")
    new.scenario = node(failures=UNLOADED)
    new.start()
    try:
        new.wait_for(lambda: "nothing is offered" in new.condition("devices")["message"])
        assert new.readyz()[0] == 503
        assert new.slices() == published
    finally:
        new.stop()


def test_slice_goes_with_its_node(driver: Driver) -> None:
    (owner,) = driver.slices()[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", NODE, True)


# 38


@pytest.mark.parametrize(
    "selector",
    [
        f"device.attributes['gpu.nvidia.com'].uuid == '{U0}'",
        "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H200'",
        "device.attributes['gpu.nvidia.com'].type == 'gpu'",
        "device.attributes['gpu.nvidia.com'].brand == 'Nvidia'",
        "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'",
        "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'",
    ],
)
def test_selector_that_users_write_finds_its_card(stopped: Driver, selector: str) -> None:
    stopped.scenario = node(cards(U0, pcieRoot="pci0000:00"))
    stopped.start()
    assert compile_selector(selector)(DRIVER_NAME, stopped.devices()["gpu-0"])


def test_versions_that_users_compare_are_published_as_versions(driver: Driver) -> None:
    attributes = driver.devices()["gpu-0"]["attributes"]
    versions = {name: value["version"] for name, value in attributes.items() if "version" in value}
    assert versions == {
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "580.159.4",
        "cudaDriverVersion": "13.0.0",
    }


# 49, 51


def test_mig_devices_of_an_admin_are_published_and_served_and_stay(stopped: Driver) -> None:
    stopped.scenario = node(cards(U0, mig=SEVEN), cards(U1))
    stopped.start()
    names = [f"gpu-0-mig-1g18gb-19-{start}" for start in range(7)]
    assert list(stopped.devices()) == [*names, "gpu-1"]
    claim = stopped.claim("mig", [result(names[3])])
    (device,) = stopped.prepare(claim)
    assert device.device_name == names[3]
    assert stopped.unprepare(claim) == [""]
    assert list(stopped.devices()) == [*names, "gpu-1"]


def test_mig_mode_that_is_turned_on_and_off_changes_what_is_offered(stopped: Driver) -> None:
    stopped.scenario = node(cards(U0, mig=SEVEN, migEnabled=False), cards(U1))
    stopped.start()
    whole = stopped.devices()
    assert list(whole) == ["gpu-0", "gpu-1"]
    mode = stopped.tree / STATE / U0 / "mig_mode"
    mode.write_text("Enabled\n")
    stopped.rescan()
    names = [f"gpu-0-mig-1g18gb-19-{start}" for start in range(7)]
    stopped.wait_for(lambda: list(stopped.devices()) == [*names, "gpu-1"])
    claim = stopped.claim("mig", [result(names[0])])
    stopped.prepare(claim)
    assert stopped.unprepare(claim) == [""]
    mode.write_text("Disabled\n")
    stopped.rescan()
    stopped.wait_for(lambda: stopped.devices() == whole)


def test_claim_of_a_card_that_was_cut_into_mig_devices_is_refused_with_the_reason(stopped: Driver) -> None:
    stopped.scenario = node(changes=[{"afterScans": 1, "gpu": 0, "migEnabled": True, "mig": SEVEN}])
    stopped.start()
    earlier = stopped.claim("earlier", [result("gpu-0")])
    stopped.rescan()
    names = [f"gpu-0-mig-1g18gb-19-{start}" for start in range(7)]
    stopped.wait_for(lambda: list(stopped.devices()) == [*names, "gpu-1"])
    text = stopped.refusal(earlier)
    assert "gpu-0 is not on this node" in text
    assert "MIG layout changed" in text
    assert stopped.prepare(stopped.claim("later", [result(names[0])]))


# 64


def test_pool_and_device_of_a_claim_lead_to_the_uuid_of_its_card(stopped: Driver) -> None:
    stopped.scenario = node(cards(U0, mig=SEVEN[:1], migProfiles=PROFILES), cards(U1))
    stopped.start()
    for number, name in enumerate(("gpu-1", "gpu-0-mig-1g18gb-19-0")):
        (device,) = stopped.prepare(stopped.claim(f"claim-{number}", [result(name)]))
        (published,) = (s for s in stopped.slices() if s["spec"]["pool"]["name"] == device.pool_name)
        (found,) = (d for d in published["spec"]["devices"] if d["name"] == device.device_name)
        assert (device.pool_name, found["name"]) == (NODE, name)
        assert found["attributes"]["uuid"]["string"] == stopped.held()[f"claim-{number}"][0]
    assert found["attributes"]["parentUUID"] == {"string": U0}
    assert found["attributes"]["profile"] == {"string": "1g.18gb"}
