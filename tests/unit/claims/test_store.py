"""The state database: durable rows, damage noticed, beliefs under their epoch."""

import shutil
import sqlite3
import stat
import threading

import pytest

from dra_driver.claims.store import Store
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import StateDamaged, StateError
from dra_driver.model.plan import Plan, PreparedDevice, SetComputeMode, SetTimeSlice
from dra_driver.model.records import ClaimRecord, ClaimState
from tests.builders import claim_ref, gpu_uuid


def record(number=1, gpus=(0,), state=ClaimState.STARTED, time_slice=3):
    devices = tuple(
        PreparedDevice(
            requests=("gpu",),
            pool="node-a",
            device=f"gpu-{gpu}",
            uuid=gpu_uuid(gpu),
            gpu_uuid=gpu_uuid(gpu),
            cdi_ids=(f"k8s.gpu.nvidia.com/claim=x-gpu-{gpu}",),
            time_slice=time_slice,
            sharing='{"strategy":"TimeSlicing"}',
            share_id="share-1",
            consumed_capacity=(("memory", "0"), ("shares", "2")),
        )
        for gpu in gpus
    )
    steps = (
        SetComputeMode(gpu_uuid=gpu_uuid(0), device="gpu-0", mode=ComputeMode.DEFAULT, previous=ComputeMode.PROHIBITED),
        SetTimeSlice(gpu_uuid=gpu_uuid(0), device="gpu-0", interval=3, previous=None),
    )
    return ClaimRecord(
        claim=claim_ref(number),
        state=state,
        plan=Plan(devices=devices, steps=steps),
        prepared_at=float(number),
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture
def store(path):
    with_store = Store.open(path)
    yield with_store
    with_store.close()


def test_a_record_reads_back_as_it_was_written_after_reopening(path, store):
    store.put(record(gpus=(0, 1)))
    store.close()
    again = Store.open(path)
    assert again.get(claim_ref(1).uid) == record(gpus=(0, 1))
    again.close()


def test_complete_changes_the_state_and_keeps_the_plan(store):
    store.put(record())
    store.complete(record(state=ClaimState.COMPLETED), {gpu_uuid(0): 3}, "e1")
    assert store.get(claim_ref(1).uid) == record(state=ClaimState.COMPLETED)


def test_holders_are_those_of_the_asked_cards_only(store):
    store.put(record(1, gpus=(0, 1)))
    store.put(record(2, gpus=(2,)))
    assert [(h.claim.name, h.device.device) for h in store.holders([gpu_uuid(1), gpu_uuid(2)])] == [
        ("claim-1", "gpu-1"),
        ("claim-2", "gpu-2"),
    ]


def test_removing_leaves_no_row_and_is_repeatable(path, store):
    store.put(record())
    store.remove(claim_ref(1).uid)
    store.remove(claim_ref(1).uid)
    with sqlite3.connect(path) as raw:
        assert [raw.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("claims", "holds")] == [
            (0,),
            (0,),
        ]
    raw.close()


def test_a_belief_counts_under_its_epoch_only(store):
    store.put(record())
    store.complete(record(state=ClaimState.COMPLETED), {gpu_uuid(0): 3}, "e1")
    assert (store.time_slice(gpu_uuid(0), "e1"), store.time_slice(gpu_uuid(0), "e2")) == (3, None)


def test_the_intent_to_change_a_slice_drops_the_belief(store):
    store.remove("nobody", {gpu_uuid(0): 0}, "e1")
    store.put(record(), forget_time_slices=[gpu_uuid(0)])
    assert store.time_slice(gpu_uuid(0), "e1") is None


def test_counts_are_of_completed_devices_by_type(store):
    store.put(record(1, gpus=(0, 1)))
    store.put(record(2, gpus=(2, 3), state=ClaimState.COMPLETED))
    assert store.counts() == {"gpu": 2, "mig": 0}


def test_names_that_changed_their_uuid_are_told(store):
    assert store.swap_names({"gpu-0": "U0", "gpu-1": "U1"}) == {}
    assert store.swap_names({"gpu-1": "U1"}) == {}
    assert store.swap_names({"gpu-0": "U1", "gpu-1": "U0"}) == {"gpu-0": "U0", "gpu-1": "U1"}


def test_a_flipped_byte_in_a_record_is_noticed(path, store):
    store.put(record())
    store.close()
    content = path.read_bytes()
    wal = path.with_name("state.db-wal")
    assert not wal.exists()
    path.write_bytes(content.replace(b'"pool":"node-a"', b'"pool":"node-b"'))
    damaged = Store.open(path)
    with pytest.raises(StateError, match="was altered"):
        damaged.verify()
    damaged.close()


@pytest.mark.parametrize(
    "content", [b"[]", b'{"<uid>": [{}]}', b"SQLite format 3\x00" + b"x" * 500], ids=["list", "json", "half"]
)
def test_a_file_that_is_no_database_is_a_state_error(path, content):
    path.write_bytes(content)
    with pytest.raises(StateError, match=str(path)):
        Store.open(path)


def test_another_schema_version_is_a_state_error_naming_both(path, store):
    store.close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StateError, match="schema version 99, this driver reads version 1"):
        Store.open(path)


def test_reading_only_works_beside_a_writer_and_changes_nothing(path, store):
    store.put(record())
    reader = Store.open_read_only(path)
    assert [r.claim.name for r in reader.records()] == ["claim-1"]
    with pytest.raises(StateError, match="readonly"):
        reader.remove(claim_ref(1).uid)
    reader.close()


def test_reading_only_without_a_database_names_the_path(path):
    with pytest.raises(StateError, match="no state database at"):
        Store.open_read_only(path)


def test_two_processes_worth_of_connections_write_at_once(path, store):
    other = Store.open(path)
    threads = [
        threading.Thread(target=lambda s=s, n=n: s.put(record(n, gpus=(n,))))
        for n in range(20)
        for s in [store if n % 2 else other]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(other.records())) == 20
    other.close()


def test_a_full_disk_does_not_keep_a_claim_from_being_removed(store, path, monkeypatch):
    store.put(record())
    reserve = path.with_name("state.reserve")
    assert reserve.stat().st_size == 512 * 1024
    remove = store._remove

    def full_until_the_reserve_is_spent(*arguments):
        if reserve.exists():
            raise StateError(f"state database {path}: database or disk is full")
        remove(*arguments)

    monkeypatch.setattr(store, "_remove", full_until_the_reserve_is_spent)
    store.remove(claim_ref(1).uid)
    assert store.get(claim_ref(1).uid) is None


# A file that is taken away while it is open.


@pytest.mark.parametrize("gone", ["file", "directory"])
def test_records_of_a_database_that_was_removed_are_put_back_for_the_next_start(tmp_path, gone):
    path = tmp_path / "plugin" / "state.db"
    path.parent.mkdir()
    store = Store.open(path)
    store.put(record(1))
    if gone == "file":
        for part in path.parent.glob("state.db*"):
            part.unlink()
    else:
        shutil.rmtree(path.parent)
    store.put(record(2, (1,)))

    assert store.put_back()
    store.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Store.open(path)
    again.verify()
    assert list(again.records()) == [record(1), record(2, (1,))]
    again.close()
    assert [part.name for part in path.parent.glob(".*")] == []


def test_records_survive_the_removal_of_the_write_ahead_log(store, path):
    store.put(record(1))
    path.with_name("state.db-wal").unlink()
    store.put(record(2, (1,)))

    assert not store.put_back()
    store.close()

    again = Store.open(path)
    assert list(again.records()) == [record(1), record(2, (1,))]
    again.close()


def test_database_that_another_instance_made_is_not_overwritten(store, path):
    store.put(record(1))
    for part in path.parent.glob("state.db*"):
        part.unlink()
    with_other = Store.open(path)

    assert not store.put_back()

    assert list(with_other.records()) == []
    with_other.close()


def test_database_that_is_in_place_is_left_alone(store, path):
    before = path.stat()
    assert not store.put_back()
    assert path.stat() == before


def test_database_whose_directory_cannot_be_made_again_is_an_error_naming_it(tmp_path):
    path = tmp_path / "plugin" / "state.db"
    path.parent.mkdir()
    store = Store.open(path)
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")
    with pytest.raises(StateError, match=f"{path} was removed and cannot be put back"):
        store.put_back()
    store.close()


# Damage while it is open.


def test_altered_record_is_told_with_the_remedy(store, path):
    store.put(record(1))
    assert store.damage == ""
    alter(path, "UPDATE claims SET name = 'other'")

    with pytest.raises(StateDamaged, match="was altered") as caught:
        store.get(claim_ref(1).uid)

    assert store.damage.startswith(f"state database {path}: the record of claim {claim_ref(1).uid} was altered")
    assert "restart this driver" in store.damage
    assert "restart this driver" in caught.value.__notes__[0]


def test_file_that_is_overwritten_is_damage_and_a_locked_one_is_not(path, monkeypatch):
    monkeypatch.setattr("dra_driver.claims.store._BUSY_SECONDS", 0.01)
    store = Store.open(path)
    store.put(record(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StateError, match="locked"):
        store.put(record(2))
    other.close()
    assert store.damage == ""
    store.close()

    store = Store.open(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    with pytest.raises(StateDamaged):
        list(store.records())
    assert str(path) in store.damage
    store.close()


def alter(path, statement):
    database = sqlite3.connect(path)
    with database:
        database.execute(statement)
    database.close()
