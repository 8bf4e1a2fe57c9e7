"""The records for who looks at all of them now and then: read when they have changed, and only then."""

from dataclasses import replace

import pytest

from dra_driver.claims.live import LiveRecords
from dra_driver.claims.store import Store
from dra_driver.model.errors import StateError
from dra_driver.model.plan import Plan
from dra_driver.model.records import ClaimRecord, ClaimState
from tests.builders import claim_ref

RECORDS = [
    ClaimRecord(claim=claim_ref(number), state=ClaimState.STARTED, plan=Plan(), prepared_at=float(number))
    for number in range(3)
]


class Counting:
    """A database on which reads of all records are counted."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        read = store.records

        def records() -> object:
            self.reads += 1
            return read()

        monkeypatch.setattr(store, "records", records)


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "state.db")
    yield opened
    opened.close()


def test_records_are_read_once_until_they_change(store, monkeypatch):
    counting, live = Counting(store, monkeypatch), LiveRecords(store)
    for _ in range(3):
        assert list(live()) == []
    assert counting.reads == 1


@pytest.mark.parametrize("whose", ["our own", "another process's"])
def test_each_change_is_seen_at_the_next_look(store, tmp_path, whose):
    other = Store.open(tmp_path / "state.db")
    writer = store if whose == "our own" else other
    live = LiveRecords(store)
    assert list(live()) == []
    for record in RECORDS:
        writer.put(record)
        assert live()[-1] == record
    completed = replace(RECORDS[0], state=ClaimState.COMPLETED)
    writer.complete(completed, {}, "")
    assert live()[0] == completed
    writer.remove(RECORDS[1].claim.uid)
    assert list(live()) == [completed, RECORDS[2]]
    writer.clear()
    assert list(live()) == []
    other.close()


def test_failed_read_is_repeated(store, monkeypatch):
    store.put(RECORDS[0])
    live = LiveRecords(store)
    with monkeypatch.context() as patch:
        patch.setattr(store, "records", _fail)
        with pytest.raises(StateError):
            live()
    assert list(live()) == [RECORDS[0]]


def _fail():
    raise StateError("locked")
