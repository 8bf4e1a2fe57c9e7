"""Field cases on MPS: the whole driver, with daemons as processes of this node."""

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from dra_driver.devices.driver_tree import STATE
from dra_driver.mps import running
from dra_driver.sharing.mps import daemon_id
from dra_driver_api.kubelet import dra_pb2
from tests.builders import config_entry, gpu_config, result, time_slicing
from tests.cases.driver import U0, U1, Driver, cards, node, nothing_left

GATES: Final = "TimeSlicingSettings=true,MPSSupport=true"
LONG: Final = config_entry(time_slicing("Long"))
CONTROL: Final = "usr/bin/nvidia-cuda-mps-control"


def mps(**config: Any) -> dict[str, Any]:
    return config_entry(gpu_config({"strategy": "MPS", "mpsConfig": config}))


@pytest.fixture
def served(stopped: Driver) -> Driver:
    """Running, with MPS by processes."""
    stopped.gates = GATES
    stopped.start("--mps-launcher=process")
    return stopped


def folder(driver: Driver, claim: dra_pb2.Claim, *uuids: str) -> Path:
    return driver.plugin / "mps" / daemon_id(claim.uid, uuids or (U0,))


def compute_mode(driver: Driver, uuid: str) -> str:
    return (driver.tree / STATE / uuid / "compute_mode").read_text().strip()


def ask(driver: Driver, pipe: Path, line: str) -> str:
    """What a client's container would be told through this pipe directory."""
    finished = subprocess.run(
        [driver.tree / CONTROL],
        input=f"{line}\n",
        capture_output=True,
        text=True,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        timeout=10,
        check=False,
    )
    return (finished.stdout + finished.stderr).strip()


def assert_clean(driver: Driver) -> None:
    assert nothing_left(driver)
    assert list((driver.plugin / "mps").iterdir()) == []
    assert [compute_mode(driver, uuid) for uuid in (U0, U1)] == ["Default"] * 2


def test_57_no_limit_is_made_up_and_those_that_were_asked_for_are_set(served: Driver) -> None:
    plain = served.claim("plain", [result()], mps())
    served.prepare(plain)
    pipe = folder(served, plain) / "pipe"
    assert ask(served, pipe, "get_default_active_thread_percentage") == "100.0"
    assert ask(served, pipe, f"get_default_device_pinned_mem_limit {U0}") == ""
    limited = served.claim(
        "limited", [result("gpu-1")], mps(defaultActiveThreadPercentage=25, defaultPinnedDeviceMemoryLimit="2Gi")
    )
    served.prepare(limited)
    pipe = folder(served, limited, U1) / "pipe"
    assert ask(served, pipe, "get_default_active_thread_percentage") == "25.0"
    assert ask(served, pipe, f"get_default_device_pinned_mem_limit {U1}") == "2G"
    assert served.unprepare(plain, limited) == ["", ""]
    assert_clean(served)


def test_container_gets_pipe_and_memory_of_its_own_claim(served: Driver) -> None:
    claim, other = served.claim("one", [result()], mps()), served.claim("other", [result("gpu-1")])
    served.prepare(claim)
    served.prepare(other)
    (device,) = served.spec(claim)["devices"]
    edits, at = device["containerEdits"], folder(served, claim)
    assert edits["env"] == ["CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps"]
    assert edits["mounts"] == [
        {"hostPath": str(at / part), "containerPath": path, "options": ["rw", "nosuid", "nodev", "bind"]}
        for part, path in (("shm", "/dev/shm"), ("pipe", "/tmp/nvidia-mps"))
    ]
    assert "mps" not in str(served.spec(other)["devices"])
    assert compute_mode(served, U0) == "Exclusive_Process"
    assert compute_mode(served, U1) == "Default"
    assert (at.parent.stat().st_mode & 0o777, (at / "pipe").stat().st_mode & 0o777) == (0o700, 0o755)
    assert served.unprepare(claim, other) == ["", ""]
    assert_clean(served)


def test_54_driver_root_without_the_program_says_which_path_is_missing(served: Driver) -> None:
    (served.tree / CONTROL).unlink()
    claim = served.claim("one", [result()], mps())
    why = served.refusal(claim)
    assert "nvidia-cuda-mps-control is not there" in why
    assert str(served.tree) in why
    assert compute_mode(served, U0) == "Default"
    assert nothing_left(served)
    assert not (served.plugin / "mps").exists()


def test_54_driver_root_needs_neither_shell_nor_shared_memory(served: Driver) -> None:
    assert not (served.tree / "bin/sh").exists()
    assert not (served.tree / "usr/bin/sh").exists()
    assert not (served.tree / "dev/shm").exists()
    served.prepare(served.claim("one", [result()], mps()))


def test_56_shares_and_mps_are_refused_before_anything_is_done(stopped: Driver) -> None:
    stopped.gates = f"{GATES},ConsumableShares=true"
    stopped.start("--mps-launcher=process", "--consumable-shares=4")
    share = result(shareID="one", consumedCapacity={"shares": "1", "memory": "0"})
    claim = stopped.claim("one", [share], mps())
    assert "MPS sharing is not supported when consumable shares is enabled" in stopped.refusal(claim)
    assert compute_mode(stopped, U0) == "Default"
    assert nothing_left(stopped)
    assert not (stopped.plugin / "mps").exists()


def test_gate_off_names_the_gate(driver: Driver) -> None:
    claim = driver.claim("one", [result()], mps())
    assert "set the feature gate MPSSupport=true on the driver" in driver.refusal(claim)
    assert nothing_left(driver)


@pytest.mark.parametrize(("first", "second"), [(mps(), LONG), (LONG, mps())])
def test_time_slicing_and_mps_by_hand_on_one_card(served: Driver, first: Any, second: Any) -> None:
    holder, late = served.claim("holder", [result()], first), served.claim("late", [result()], second)
    served.prepare(holder)
    before = (compute_mode(served, U0), served.time_slice(U0))
    why = served.refusal(late)
    assert "default/holder" in why
    assert "never both on one GPU" in why
    assert (compute_mode(served, U0), served.time_slice(U0)) == before
    assert served.unprepare(holder) == [""]
    served.prepare(late)
    assert served.unprepare(late) == [""]
    assert_clean(served)


def test_gate_that_is_switched_off_leaves_live_daemons_and_ends_them_with_their_claims(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    served.stop()
    served.gates = "TimeSlicingSettings=true"
    served.start()
    assert ask(served, folder(served, claim) / "pipe", "get_server_list") == ""
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_restarted_driver_finds_its_daemons_serving(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    pipe = folder(served, claim) / "pipe"
    before = (pipe / "nvidia-cuda-mps-control.pid").read_text()
    served.stop()
    served.start("--mps-launcher=process")
    served.prepare(claim)
    assert (pipe / "nvidia-cuda-mps-control.pid").read_text() == before
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_daemon_of_a_claim_that_nobody_remembers_is_ended(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    served.stop()
    served.delete(claim)
    for path in (*served.plugin.glob("state.db*"), *served.cdi.iterdir()):
        path.unlink()
    served.start("--mps-launcher=process")
    served.wait_for(lambda: not list((served.plugin / "mps").iterdir()))
    served.wait_for(lambda: compute_mode(served, U0) == "Default")


def test_reboot_forgets_a_daemon_and_the_claim_is_served_again(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    served.stop()
    boot_id = served.tree / STATE / "boot_id"
    boot_id.write_text("another\n")
    served.start("--mps-launcher=process")
    served.prepare(claim)
    assert ask(served, folder(served, claim) / "pipe", "get_default_active_thread_percentage") == "100.0"
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_folder_that_cannot_be_made_names_it_and_leaves_nothing(served: Driver) -> None:
    (served.plugin / "mps").write_text("in the way")
    claim = served.claim("one", [result()], mps())
    assert f"{served.plugin}/mps" in served.refusal(claim)
    assert compute_mode(served, U0) == "Default"
    assert nothing_left(served)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id": 1}'])
@pytest.mark.parametrize("restart", [False, True])
def test_description_that_is_damaged_keeps_no_claim_from_ending(served: Driver, text: str, restart: bool) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    (folder(served, claim) / "daemon.json").write_text(text)
    if restart:
        served.stop()
        served.start("--mps-launcher=process")
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_folder_that_is_gone_keeps_no_claim_from_ending_and_is_made_again_for_one_that_stays(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    shutil.rmtree(folder(served, claim))
    served.prepare(claim)
    assert ask(served, folder(served, claim) / "pipe", "get_server_list") == ""
    shutil.rmtree(served.plugin / "mps")
    assert served.unprepare(claim) == [""]
    assert nothing_left(served)
    assert compute_mode(served, U0) == "Default"


@pytest.mark.parametrize("gone", [f"{U0}/gone", "not-loaded"])
def test_pod_can_go_when_its_gpu_or_the_driver_has_gone(served: Driver, gone: str) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    (served.tree / STATE / gone).write_text("")
    served.rescan()
    assert served.unprepare(claim) == [""]
    assert nothing_left(served)
    assert list((served.plugin / "mps").iterdir()) == []


def test_other_launcher_since_serves_and_ends_what_the_first_has_started(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    before = (folder(served, claim) / "ready").read_text()
    served.stop()
    served.start("--mps-launcher=deployment", "--image-name=example.com/driver:1")
    served.prepare(claim)
    assert (folder(served, claim) / "ready").read_text() == before
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_api_server_that_makes_no_deployments_is_told_and_nothing_is_left(stopped: Driver) -> None:
    stopped.gates = GATES
    stopped.start("--mps-launcher=deployment", "--image-name=example.com/driver:1")
    claim = stopped.claim("one", [result()], mps())
    assert "POST /apis/apps/v1/namespaces/default/deployments: HTTP 404" in stopped.refusal(claim)
    assert_clean(stopped)
    assert stopped.unprepare(claim) == [""]


def test_each_mig_device_of_a_card_has_its_daemon(stopped: Driver) -> None:
    stopped.gates = GATES
    stopped.scenario = node(cards(U0, mig=[{"profile": "1g.18gb", "starts": list(range(7))}]), cards(U1))
    stopped.start("--mps-launcher=process")
    config = config_entry(gpu_config({"strategy": "MPS"}, "MigDeviceConfig"))
    claims = [stopped.claim(f"mig-{start}", [result(f"gpu-0-mig-1g18gb-19-{start}")], config) for start in range(7)]
    assert [answer.error for answer in stopped.call_prepare(*claims).values()] == [""] * 7
    assert len(list((stopped.plugin / "mps").iterdir())) == 7
    assert compute_mode(stopped, U0) == "Default"
    assert stopped.unprepare(*claims) == [""] * 7
    assert_clean(stopped)


def test_instances_of_a_rolling_update_serve_and_end_each_others_daemons(served: Driver) -> None:
    served.stop()
    served.pod_uid = "a"
    served.start("--mps-launcher=process")
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    before = (folder(served, claim) / "ready").read_text()
    other = served.successor("b")
    other.start("--mps-launcher=process", wait=False)
    try:
        other.wait_for(other.socket.exists)
        other.prepare(claim)
        served.stop()
        other.prepare(claim)
        assert (folder(served, claim) / "ready").read_text() == before
        assert other.unprepare(claim) == [""]
        assert_clean(other)
    finally:
        other.stop()


def test_pod_can_go_without_the_api_server(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    served.api.stop()
    served.prepare(claim)
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_node_without_mps_asks_nobody_for_daemons(driver: Driver) -> None:
    assert driver.app is not None
    driver.app._daemon_watch.look()
    assert driver.app._mps._made is None


def test_driver_that_stops_keeps_no_prepare_waiting_and_a_later_one_goes_on(stopped: Driver) -> None:
    stopped.gates, stopped.scenario = GATES, node(mps={"neverAnswers": True})
    stopped.start("--mps-launcher=process")
    claim = stopped.claim("one", [result()], mps())
    told: list[str] = []
    prepare = threading.Thread(target=lambda: told.append(stopped.refusal(claim)))
    prepare.start()
    stopped.wait_for((folder(stopped, claim) / "pipe").exists)
    stopped.stop()
    prepare.join()
    assert "the driver is stopping" in told[0]
    stopped.scenario = node()
    stopped.start("--mps-launcher=process")
    assert stopped.unprepare(claim) == [""]
    assert_clean(stopped)


def test_gate_that_is_off_needs_no_right_to_look_for_deployments(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    served.stop()
    served.gates = "TimeSlicingSettings=true"
    served.start("--mps-launcher=deployment", "--image-name=example.com/driver:1")
    assert served.app is not None
    # The API server on loopback has no Deployments: a list of them is refused with 404.
    assert [daemon.id for daemon in served.app._mps.present()] == [daemon_id(claim.uid, (U0,))]
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_daemon_that_died_while_the_launcher_was_changed_is_started_by_its_own(served: Driver) -> None:
    claim = served.claim("one", [result()], mps())
    served.prepare(claim)
    served.stop()
    at = folder(served, claim)
    running.kill_all(lambda: [*running.supervisors(at), *running.members(at)], 10.0)
    served.start("--mps-launcher=deployment", "--image-name=example.com/driver:1")
    served.prepare(claim)
    assert ask(served, at / "pipe", "get_server_list") == ""
    assert served.unprepare(claim) == [""]
    assert_clean(served)


def test_empty_folder_of_daemons_is_no_reason_to_look_for_them(driver: Driver) -> None:
    assert driver.app is not None
    (driver.plugin / "mps").mkdir()
    assert driver.app._mps.present() == ()
    assert driver.app._mps._made is None
