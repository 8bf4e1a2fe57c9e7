import pytest

from dra_driver.model.errors import ApiError, ApiUnreachable
from dra_driver.slices.pacing import Backoff, Contest, Retries, Timing

DOWN = ApiUnreachable("connection refused")
STARTING = ApiUnreachable("HTTP 503", 503)
BUSY = ApiUnreachable("HTTP 429", 429)
FORBIDDEN = ApiError("HTTP 403", 403)


@pytest.mark.parametrize(("failures", "most"), [(0, 1.0), (1, 2.0), (3, 8.0), (50, 30.0)])
def test_backoff_doubles_up_to_a_limit_with_jitter(failures: int, most: float) -> None:
    backoff = Backoff(1.0, 30.0)
    for _ in range(failures):
        backoff.next()
    assert most / 2 <= backoff.next() <= most


def test_backoff_starts_small_after_a_success() -> None:
    backoff = Backoff(1.0, 30.0)
    for _ in range(6):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1.0


@pytest.mark.parametrize(
    ("error", "most"),
    [(DOWN, 8.0), (STARTING, 8.0), (BUSY, 30.0), (FORBIDDEN, 30.0), (ValueError("!"), 30.0)],
    ids=["down", "starting", "busy", "refused", "own-fault"],
)
def test_api_server_that_is_away_is_asked_more_often_than_one_that_refuses(error: Exception, most: float) -> None:
    retries = Retries(Timing(), 0.25)
    for _ in range(20):
        retries.after(error)
    assert most / 2 <= retries.after(error) <= most


def test_api_server_that_is_back_and_refuses_while_it_starts_up_is_soon_asked_again() -> None:
    retries = Retries(Timing(), 0.25)
    for _ in range(20):
        retries.after(DOWN)
    assert retries.after(FORBIDDEN) <= 0.25
    assert retries.failures == 1


def test_retries_start_small_after_a_success() -> None:
    retries = Retries(Timing(), 0.25)
    retries.after(DOWN)
    retries.reset()
    assert retries.failures == 0
    assert retries.after(DOWN) <= 0.25


def test_repairs_come_later_while_somebody_keeps_rewriting() -> None:
    contest = Contest(Timing(debounce_s=0.5, contested_most_s=60.0))
    waits = []
    for now in (1000.0, 1001.0, 1002.0):
        waits.append(contest.wait(now))
        contest.repaired(now)
    assert waits == [0.5, 1.0, 2.0]


def test_repairs_never_wait_longer_than_the_limit() -> None:
    contest = Contest(Timing(contested_most_s=60.0))
    for _ in range(100):
        contest.repaired(1000.0)
    assert contest.wait(1000.0) == 60.0


def test_repairs_are_quick_again_after_a_quiet_time() -> None:
    contest = Contest(Timing(debounce_s=0.5, calm_s=100.0))
    contest.repaired(1000.0)
    contest.repaired(1001.0)
    assert contest.wait(1102.0) == 0.5
