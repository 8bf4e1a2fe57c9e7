"""Field cases on MIG devices as the node has them: configs, parents, and layouts that change under claims."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_driver.devices.driver_tree import STATE
from tests.builders import config_entry, gpu_config, result, time_slicing
from tests.cases.driver import PROFILES, U0, U1, Driver, cards, node, nothing_left
from tests.grpc.helpers import health_stream

SMALL: Final = [f"gpu-0-mig-1g18gb-19-{start}" for start in range(7)]
LARGER: Final = {"2g.35gb": {"id": 14, "size": 2, "memoryMiB": 33280, "multiprocessors": 32}}
MEDIA: Final = {"1g.18gb+me": {"id": 20, "memoryMiB": 16384, "multiprocessors": 16, "jpegEngines": 1}}
SLICED: Final = gpu_config({"strategy": "TimeSlicing"}, kind="MigDeviceConfig")
COMMON: Final = {"/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}


@pytest.fixture
def mig(stopped: Driver) -> Driver:
    """Running on two cards; the first has three small MIG devices."""
    stopped.scenario = node(
        cards(U0, migProfiles=PROFILES | LARGER | MEDIA, mig=[{"profile": "1g.18gb", "starts": [0, 1, 2]}]), cards(U1)
    )
    stopped.start()
    return stopped


def relay(driver: Driver, **starts: list[int]) -> None:
    """Another layout of the first card, as an admin makes it; starts: by profile, ``p1g_18gb``."""
    layout = [{"profile": name.removeprefix("p").replace("_", "."), "starts": each} for name, each in starts.items()]
    (driver.tree / STATE / U0 / "mig_layout").write_text(yaml.safe_dump(layout))
    driver.rescan()


def wait_offered(driver: Driver, *names: str) -> None:
    driver.wait_for(lambda: list(driver.devices()) == [*names, "gpu-1"])


def settings(driver: Driver) -> dict[str, str]:
    """What can be set on the cards, as it is."""
    files = [driver.tree / STATE / uuid / name for uuid in (U0, U1) for name in ("compute_mode", "time_slice")]
    return {f"{path.parent.name}/{path.name}": path.read_text() for path in files}


# Containers.


def test_container_gets_the_edits_of_the_parent_and_the_capabilities_of_its_device(mig: Driver) -> None:
    claim = mig.claim("one", [result(SMALL[2])])
    mig.prepare(claim)
    whole = mig.claim("whole", [result("gpu-1")])
    mig.prepare(whole)
    (device,) = mig.spec(claim)["devices"]
    assert device["name"] == f"{claim.uid}-{SMALL[2]}"
    nodes = [each["path"] for each in device["containerEdits"]["deviceNodes"]]
    folder = Path("proc/driver/nvidia/capabilities/gpu0/mig/gi9")
    minors = [(mig.tree / folder / name).read_text().split()[1] for name in ("access", "ci0/access")]
    assert nodes == ["/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)]
    assert {each["path"] for each in mig.spec(claim)["containerEdits"]["deviceNodes"]} == COMMON
    assert mig.spec(claim)["containerEdits"] == mig.spec(whole)["containerEdits"]


# Configs.


@pytest.mark.parametrize("entry", [config_entry(SLICED), config_entry(SLICED, "gpu")], ids=["for-all", "by-name"])
def test_time_slicing_of_a_mig_device_is_taken_and_nothing_is_set_on_its_parent(mig: Driver, entry: Any) -> None:
    (mig.tree / STATE / U0 / "compute_mode").write_text("Exclusive_Process\n")
    (mig.tree / STATE / U0 / "time_slice").write_text("2\n")
    before = settings(mig)
    claim = mig.claim("one", [result(SMALL[0])], entry)
    mig.prepare(claim)
    assert settings(mig) == before
    assert mig.unprepare(claim) == [""]
    assert (settings(mig), mig.tool_calls()) == (before, [])


def test_config_for_gpus_is_not_for_the_mig_device_of_the_same_claim(mig: Driver) -> None:
    claim = mig.claim("both", [result(SMALL[0], "small"), result("gpu-1", "whole")], config_entry(time_slicing("Long")))
    mig.prepare(claim)
    (record,) = mig.records()
    assert [(device.sharing != "", device.time_slice) for device in record.devices] == [(False, None), (True, 3)]
    assert (mig.time_slice(U0), mig.time_slice(U1)) == (0, 3)
    assert mig.unprepare(claim) == [""]
    assert (mig.time_slice(U0), mig.time_slice(U1)) == (0, 0)


def test_config_for_gpus_that_names_a_mig_device_is_refused_and_changes_nothing(mig: Driver) -> None:
    before = settings(mig)
    results = [result("gpu-1", "whole"), result(SMALL[0], "small")]
    text = mig.refusal(mig.claim("both", results, config_entry(time_slicing("Long"), "whole", "small")))
    assert f'cannot apply GpuConfig to device "{SMALL[0]}" of type "mig" (request: small)' in text
    assert "use a MigDeviceConfig" in text
    assert (settings(mig), mig.tool_calls()) == (before, [])
    assert nothing_left(mig)


def test_interval_in_a_config_for_mig_devices_is_refused(mig: Driver) -> None:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    entry = config_entry(gpu_config(sharing, kind="MigDeviceConfig"))
    assert "a MIG device has no time-slice interval" in mig.refusal(mig.claim("odd", [result(SMALL[0])], entry))


# Layouts that change.


def test_device_that_stays_is_served_on_whatever_comes_and_goes_beside_it(mig: Driver) -> None:
    claim = mig.claim("stays", [result(SMALL[2])])
    answer, spec, published = mig.prepare(claim), mig.spec(claim), mig.devices()[SMALL[2]]
    relay(mig, p1g_18gb=[2], p2g_35gb=[4])
    wait_offered(mig, SMALL[2], "gpu-0-mig-2g35gb-14-4")
    assert mig.devices()[SMALL[2]] == published
    assert mig.prepare(claim) == answer
    assert mig.spec(claim) == spec
    assert mig.unprepare(claim) == [""]
    assert nothing_left(mig)


def test_claim_on_a_device_that_is_gone_is_kept_and_told_until_it_is_unprepared(mig: Driver) -> None:
    claim = mig.claim("goes", [result(SMALL[0])])
    mig.prepare(claim)
    (uuid,) = mig.held()["goes"]
    relay(mig, p1g_18gb=[1, 2])
    wait_offered(mig, *SMALL[1:3])
    assert mig.held() == {"goes": (uuid,)}
    (event,) = mig.events("DeviceLost")
    assert f"device {SMALL[0]} ({uuid}) is not on this node any more, and live claims (default/goes) hold it" in event
    assert f"{uuid} when it was prepared and is not on this node now: delete the claim's pods" in mig.refusal(claim)
    with health_stream(mig.socket) as stream:
        told = {each.device.device_name: each.message for each in next(stream).devices if each.message}
    assert told.keys() == {SMALL[0]}
    assert f"its GPU {U0} has no such MIG device now" in told[SMALL[0]]
    assert mig.unprepare(claim) == [""]
    assert nothing_left(mig)


def test_device_in_the_place_of_one_that_a_claim_holds_is_withheld_until_that_has_left(mig: Driver) -> None:
    claim = mig.claim("holds", [result(SMALL[0])])
    mig.prepare(claim)
    relay(mig, **{"p1g_18gb": [1, 2], "p1g_18gb+me": [0]})
    wait_offered(mig, *SMALL[1:3])
    (event,) = mig.events("DeviceWithheld")
    assert f"device gpu-0-mig-1g18gb-me-20-0 was made where {SMALL[0]} was" in event
    assert "default/holds" in event
    assert mig.unprepare(claim) == [""]
    mig.rescan()
    wait_offered(mig, "gpu-0-mig-1g18gb-me-20-0", *SMALL[1:3])


def test_layout_that_changed_while_the_driver_was_away_is_noticed_when_it_is_back(mig: Driver) -> None:
    claims = {start: mig.claim(f"claim-{start}", [result(SMALL[start])]) for start in (0, 2)}
    answers = {start: mig.prepare(claim) for start, claim in claims.items()}
    mig.stop()
    (mig.tree / STATE / U0 / "mig_layout").write_text("[{profile: 1g.18gb, starts: [2]}]")
    mig.start()
    wait_offered(mig, SMALL[2])
    assert mig.prepare(claims[2]) == answers[2]
    assert "is not on this node now" in mig.refusal(claims[0])
    assert mig.unprepare(*claims.values()) == ["", ""]
    assert nothing_left(mig)


def test_device_that_is_made_again_is_the_claims_again(mig: Driver) -> None:
    claim = mig.claim("one", [result(SMALL[0])])
    answer = mig.prepare(claim)
    relay(mig, p1g_18gb=[2])
    wait_offered(mig, SMALL[2])
    relay(mig, p1g_18gb=[0, 1, 2])
    wait_offered(mig, *SMALL[:3])
    assert mig.prepare(claim) == answer
    assert "is already allocated to different claim default/one" in mig.refusal(mig.claim("late", [result(SMALL[0])]))
