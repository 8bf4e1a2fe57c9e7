import os
from pathlib import Path

import pytest

from dra_driver.claims.held_files import HeldFiles
from dra_driver.claims.instance import Instance
from dra_driver.claims.locks import ProcessTurn
from dra_driver.claims.store import Store


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    "name", ["instance.lock", "publisher.lock", "turn.lock", "turn.lock.wish", "state.db", "state.db-wal"]
)
def test_each_file_of_the_state_that_is_taken_away_is_noticed(tmp_path: Path, name: str, replaced: bool) -> None:
    instance, turn = Instance(tmp_path, shared=False), ProcessTurn(tmp_path / "turn.lock")
    store = Store.open(tmp_path / "state.db")
    held = HeldFiles((*instance.files, *turn.files, *store.files))
    before = held.lost()
    (tmp_path / name).unlink()
    if replaced:
        (tmp_path / name).touch()
    lost = held.lost()
    store.close()
    turn.close()
    instance.close()
    assert (before, lost) == (None, tmp_path / name)


def test_file_that_is_written_or_given_other_rights_is_still_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w") as file:
        held = HeldFiles([path])
        file.write("more")
        file.flush()
        os.chmod(path, 0o600)
        assert held.lost() is None
