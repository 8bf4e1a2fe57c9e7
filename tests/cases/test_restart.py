"""Field cases on what outlives the driver: damaged, old and foreign state, reboots, restarts under running pods."""

import json
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.claims.recovery import open_store
from dra_driver.claims.store import Store
from dra_driver.devices.driver_tree import STATE
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import StateError
from dra_driver.model.plan import Plan, PreparedDevice
from dra_driver.model.records import ClaimRecord, ClaimState, Holder
from tests.builders import NODE, claim_ref, config_entry, result, time_slicing
from tests.cases.driver import U0, U1, Driver, cards, node, nothing_left, set_call
from tests.fakes.node import FakeEvents

LONG = config_entry(time_slicing("Long"), "gpu")
DEVICE = PreparedDevice(requests=("gpu",), pool=NODE, device="gpu-0", uuid=U0, gpu_uuid=U0, cdi_ids=("id",))
RECORD = ClaimRecord(
    claim=claim_ref(1), state=ClaimState.COMPLETED, plan=Plan(devices=(DEVICE,), steps=()), prepared_at=1.0
)
HOLDER = Holder(claim=RECORD.claim, state=RECORD.state, device=DEVICE)


# 24, 29


def flipped(path: Path) -> None:
    content = path.read_bytes()
    place = content.index(b'"device":"gpu-0"')
    path.write_bytes(content[:place] + b'"device":"gpu-1"' + content[place + 16 :])


def altered_table(path: Path) -> None:
    content = path.read_bytes()
    place = content.index(b"epoch TEXT")
    path.write_bytes(content[:place] + b"epock TEXT" + content[place + 10 :])


def other_schema(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()


def foreign_database(path: Path) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE notes (text TEXT)")
    database.close()


LISTS = json.dumps({"a1b2c3": [{"deviceName": "gpu-0", "uuid": U0}]}).encode()
DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped byte": flipped,
    "flipped byte in a column's name": altered_table,
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "JSON of the wrong type": lambda path: path.write_bytes(b"[]"),
    "lists where objects are expected": lambda path: path.write_bytes(LISTS),
    "unknown version": other_schema,
    "database of another program": foreign_database,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_driver_starts_on_damaged_state_tells_it_and_knows_who_holds_the_card(
    driver: Driver, damage: Callable[[Path], object]
) -> None:
    running = driver.claim("running", [result()], LONG)
    before = driver.prepare(running)
    driver.stop()
    state = driver.plugin / "state.db"
    damage(state)
    found = state.read_bytes()

    driver.start()
    assert driver.get("/healthz")[0] == 200
    (aside,) = driver.plugin.glob("state.db.damaged-*")
    assert aside.read_bytes() == found
    (message,) = driver.events("StateDatabaseDamaged")
    assert str(aside) in message
    assert "default/running" in driver.refusal(driver.claim("late", [result()]))
    assert driver.prepare(running) == before
    assert driver.unprepare(running) == [""]
    assert driver.time_slice(U0) == 0
    assert nothing_left(driver)


@pytest.mark.parametrize("offset", range(3))
def test_flipped_bit_anywhere_is_noticed_or_changes_nothing(tmp_path: Path, offset: int) -> None:
    """A sample of the file's bytes: no page, index or header may lose a claim, a hold or the boot id in silence."""
    path = tmp_path / "state.db"
    store = Store.open(path)
    store.put(RECORD)
    store.set_fact("boot_id", "boot-1")
    store.close()
    sound, silent = path.read_bytes(), []
    for place in [number for number, byte in enumerate(sound) if byte][offset::36]:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :])
        events = FakeEvents()
        store = open_store(path, events)
        seen = (list(store.records()), store.holders([U0]), store.fact("boot_id"))
        store.close()
        if not events.events and seen != ([RECORD], [HOLDER], "boot-1"):
            silent.append(place)
    assert silent == []


def test_record_altered_while_running_is_told_in_readiness_with_the_remedy_until_a_restart(driver: Driver) -> None:
    running = driver.claim("running", [result()])
    before = driver.prepare(running)
    database = sqlite3.connect(driver.plugin / "state.db")
    with database:
        database.execute("UPDATE claims SET devices = replace(devices, 'gpu-0', 'gpu-1')")
    database.close()
    assert "restart this driver" in driver.refusal(running)
    assert driver.app is not None
    driver.app.check_state()

    code, conditions = driver.readyz()
    assert (code, conditions["state"]["ok"]) == (503, False)
    assert f"the record of claim {running.uid} was altered" in conditions["state"]["message"]
    assert "restart this driver" in conditions["state"]["message"]
    (message,) = driver.events("StateDatabaseDamaged")
    assert message == conditions["state"]["message"]

    driver.restart()
    assert driver.prepare(running) == before
    assert "state" not in driver.readyz()[1]


def test_altered_memory_of_a_time_slice_counts_as_none(driver: Driver) -> None:
    first = driver.claim("first", [result()], config_entry(time_slicing("Default"), "gpu"))
    driver.prepare(first)
    driver.unprepare(first)
    driver.stop()
    database = sqlite3.connect(driver.plugin / "state.db")
    with database:
        database.execute("UPDATE time_slices SET interval = 3")
    database.close()
    driver.start()
    driver.prepare(driver.claim("second", [result()], LONG))
    assert driver.time_slice(U0) == 3


def test_lost_state_with_the_api_server_away_does_not_free_the_cards_of_running_pods(driver: Driver) -> None:
    running = driver.claim("running", [result()])
    driver.prepare(running)
    driver.stop()
    (driver.plugin / "state.db").unlink()
    driver.api.stop()
    driver.start(wait=False)
    driver.wait_for(lambda: list(driver.held().values()) == [(U0,)])
    driver.api.start()
    late = driver.claim("late", [result()])
    assert running.uid in driver.refusal(late)


# 26


@pytest.fixture
def boot_id(stopped: Driver) -> Path:
    """The node's boot id, which the simulated node keeps in a file."""
    path = stopped.tree / STATE / "boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("boot-1\n")
    return path


def test_reboot_forgets_claims_files_and_slices_and_the_next_call_makes_them_anew(
    stopped: Driver, boot_id: Path
) -> None:
    stopped.start()
    claim = stopped.claim("again", [result()], LONG)
    before = stopped.prepare(claim)
    stopped.stop()
    boot_id.write_text("boot-2\n")
    (stopped.tree / STATE / U0 / "time_slice").write_text("0\n")
    stopped.start()
    assert nothing_left(stopped)
    assert stopped.prepare(claim) == before
    assert stopped.time_slice(U0) == 3


def test_state_without_a_boot_id_is_kept_and_takes_the_present_one(stopped: Driver, boot_id: Path) -> None:
    stopped.start()
    stopped.prepare(stopped.claim("kept", [result()]))
    stopped.stop()
    database = sqlite3.connect(stopped.plugin / "state.db")
    with database:
        database.execute("DELETE FROM facts WHERE key = 'boot_id'")
    database.close()
    stopped.start()
    assert list(stopped.held()) == ["kept"]
    stopped.stop()
    boot_id.write_text("boot-2\n")
    stopped.start()
    assert stopped.held() == {}


def test_boot_id_that_cannot_be_read_costs_no_claim(stopped: Driver, boot_id: Path) -> None:
    stopped.start()
    stopped.prepare(stopped.claim("kept", [result()]))
    stopped.stop()
    boot_id.unlink()
    boot_id.mkdir()
    stopped.start()
    assert list(stopped.held()) == ["kept"]


# 28


def test_restart_under_running_pods_forgets_nobody(driver: Driver) -> None:
    running, late = driver.claim("running", [result()], LONG), driver.claim("late", [result()])
    driver.prepare(running)
    files = driver.files()
    driver.restart()
    assert driver.files() == files
    assert "default/running" in driver.refusal(late)
    assert driver.unprepare(running) == [""]
    assert nothing_left(driver)
    assert driver.tool_calls() == [set_call(U0, 3), set_call(U0, 0)]
    assert driver.prepare(late)


def test_second_instance_on_the_same_directory_is_refused_and_the_first_goes_on(driver: Driver) -> None:
    with pytest.raises(StateError, match=rf"another instance of the driver \(pid {os.getpid()}\) uses {driver.plugin}"):
        driver.successor("").start()
    assert driver.prepare(driver.claim("training", [result()]))


def test_old_and_new_version_prepare_in_turns_during_an_update(stopped: Driver) -> None:
    stopped.scenario = node(tool={"delayMs": 300})
    stopped.pod_uid = "old"
    stopped.start()
    new = stopped.successor("new")
    new.start()
    try:
        first, second = stopped.claim("first", [result()], LONG), stopped.claim("second", [result()])
        answers: list[object] = []
        slow = threading.Thread(target=lambda: answers.extend(stopped.prepare(first)))
        slow.start()
        stopped.wait_for(stopped.tool_calls)
        # Asked while the old version is at work: it waits for the end of that, and then knows the holder.
        text = new.refusal(second)
        slow.join()
    finally:
        new.stop()
    assert len(answers) == 1
    assert "default/first" in text
    assert "not finished" not in text


def test_what_an_admin_or_a_driver_reload_changed_meanwhile_is_set_again(driver: Driver) -> None:
    first = driver.claim("first", [result(shareID="00000000-0000-4000-a000-000000000001")], LONG)
    driver.prepare(first)
    state = driver.tree / STATE / U0
    state.joinpath("time_slice").write_text("0\n")
    state.joinpath("compute_mode").write_text("Exclusive_Process\n")
    state.parent.joinpath("epoch").write_text("2\n")
    driver.prepare(driver.claim("second", [result(shareID="00000000-0000-4000-a000-000000000002")], LONG))
    assert driver.time_slice(U0) == 3
    assert state.joinpath("compute_mode").read_text().strip().upper() == ComputeMode.DEFAULT.name


def test_card_without_persistence_mode_is_set_again_after_a_restart(stopped: Driver) -> None:
    stopped.scenario = node(cards(U0, persistence=False), cards(U1, persistence=True))
    stopped.start()
    for minor in range(2):
        claim = stopped.claim(f"default-{minor}", [result(f"gpu-{minor}")], config_entry(time_slicing("Default")))
        stopped.prepare(claim)
        stopped.unprepare(claim)
    stopped.restart()
    for minor in range(2):
        stopped.prepare(
            stopped.claim(f"again-{minor}", [result(f"gpu-{minor}")], config_entry(time_slicing("Default")))
        )
    assert stopped.tool_calls() == [set_call(U0, 0), set_call(U1, 0), set_call(U0, 0)]
