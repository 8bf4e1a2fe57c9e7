from dra_driver.cluster.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_burst_needs_no_waiting() -> None:
    pace = Pace(5.0, 3, Clock())
    assert [pace.take() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_beyond_the_burst_each_waits_for_its_turn() -> None:
    pace = Pace(5.0, 1, Clock())
    assert [pace.take() for _ in range(3)] == [0.0, 0.2, 0.4]


def test_tokens_come_back_up_to_the_burst() -> None:
    clock = Clock()
    pace = Pace(5.0, 2, clock)
    pace.take()
    clock.now += 1000.0
    assert [pace.try_take() for _ in range(3)] == [True, True, False]


def test_try_take_takes_nothing_when_there_is_none() -> None:
    clock = Clock()
    pace = Pace(1.0, 1, clock)
    for _ in range(10):
        pace.try_take()
    clock.now += 1.0
    assert pace.try_take()
