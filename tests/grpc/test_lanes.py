import threading
from collections.abc import Iterator

import pytest

from dra_driver.kubelet.lanes import Lane
from dra_driver.model.errors import LockTimeout


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("prepare", lambda kind: None, 1, calls=1, wait_seconds=0.01)
    yield lane
    lane.close()


def test_wait_for_a_place_has_an_end_that_says_why(lane: Lane) -> None:
    with lane.place(), pytest.raises(LockTimeout, match=r"^1 claims took longer than 0.01 s to prepare"), lane.place():
        pass


def test_place_is_free_again_after_a_failure(lane: Lane) -> None:
    with pytest.raises(ZeroDivisionError), lane.place():
        raise ZeroDivisionError

    with lane.place():
        pass


def test_call_beyond_the_most_is_not_admitted_until_another_ends(lane: Lane) -> None:
    with lane.call() as first, lane.call() as second:
        assert (first, second) == (True, False)

    with lane.call() as third:
        assert third
    assert str(lane.full) == "1 calls to prepare are waiting already; the kubelet asks again"


def test_closing_ends_the_waits() -> None:
    lane = Lane("prepare", lambda kind: None, 1)
    told: list[str] = []

    def wait() -> None:
        try:
            with lane.place():
                pass
        except LockTimeout as error:
            told.append(str(error))

    with lane.place():
        waiting = threading.Thread(target=wait)
        waiting.start()
        lane.close()
        waiting.join()

    assert told == ["the driver is stopping and begins to prepare nothing more"]
