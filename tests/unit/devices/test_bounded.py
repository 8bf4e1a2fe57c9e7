import threading

import pytest

from dra_driver.devices.bounded import Bounded


def test_result_is_handed_back() -> None:
    assert Bounded("t").run(lambda: 7, 5) == 7


def test_exception_is_the_callers() -> None:
    def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        Bounded("t").run(fail, 5)


def test_timeout_error_of_the_call_is_not_taken_for_the_limit() -> None:
    def fail() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        Bounded("t").run(fail, 5)


def test_call_that_hangs_ends_in_a_timeout() -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
            Bounded("t").run(release.wait, 0.02)
    finally:
        release.set()


def test_call_is_refused_at_once_when_every_thread_hangs() -> None:
    release, bounded = threading.Event(), Bounded("t", threads=2)
    try:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                bounded.run(release.wait, 0.02)
        with pytest.raises(TimeoutError, match="2 earlier calls have not returned"):
            bounded.run(lambda: None, 60)
    finally:
        release.set()


def test_threads_that_came_back_are_used_again() -> None:
    release, bounded, came_back = threading.Event(), Bounded("t", threads=1), threading.Event()

    def hang() -> None:
        release.wait()
        came_back.set()

    with pytest.raises(TimeoutError):
        bounded.run(hang, 0.02)
    release.set()
    came_back.wait(5)
    for _ in range(100):
        try:
            assert bounded.run(lambda: "well", 5) == "well"
            return
        except TimeoutError:
            threading.Event().wait(0.01)
    pytest.fail("the thread was not freed")


def test_one_thread_is_enough_for_calls_one_after_another() -> None:
    bounded = Bounded("t")
    assert len({bounded.run(threading.get_ident, 5) for _ in range(20)}) == 1


def test_closing_ends_idle_threads_and_it_can_be_used_again() -> None:
    bounded = Bounded("bounded-closing")
    thread = bounded.run(threading.current_thread, 5)
    bounded.close()
    thread.join(5)
    assert not thread.is_alive()
    assert bounded.run(lambda: 1, 5) == 1
