"""How long to wait before the next attempt: after failures, and while somebody else rewrites our slices."""

import random
from dataclasses import dataclass

_random = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals of the publisher, all in seconds.

    debounce_s: from the first foreign change to the repair, so that a burst is one repair.
    retry_first_s, retry_most_s: after a failure, doubling. contested_most_s, calm_s: the longest wait between
    repairs when somebody else keeps rewriting, and the quiet after which the next repair is quick again.
    hold_poll_s: how often a publisher that stands by asks whether it may write.
    watch_s: length of one watch; rewatch_s: least time between the starts of two.
    """

    debounce_s: float = 0.3
    retry_first_s: float = 0.25
    retry_most_s: float = 30.0
    contested_most_s: float = 60.0
    calm_s: float = 150.0
    hold_poll_s: float = 1.0
    watch_s: float = 300.0
    rewatch_s: float = 1.0


class Backoff:
    """Exponential back-off; half of each wait is random, so that nodes do not come back together."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first = first_s
        self._most = most_s
        self.failures = 0
        """Failures since the last success."""

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        wait = doubled(self._first, self.failures, self._most)
        self.failures += 1
        return jittered(wait)

    def reset(self) -> None:
        """Start small again, after a success."""
        self.failures = 0


class Contest:
    """Counts repairs of what others changed; the wait before the next grows until they leave it alone."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._repairs = 0
        self._last = 0.0

    def wait(self, now: float) -> float:
        """Seconds from a foreign change to its repair."""
        if now - self._last > self._timing.calm_s:
            self._repairs = 0
        return doubled(self._timing.debounce_s, self._repairs, self._timing.contested_most_s)

    def repaired(self, now: float) -> int:
        """Count a repair; how many there were since the last quiet time."""
        self._repairs += 1
        self._last = now
        return self._repairs


def doubled(first: float, times: int, most: float) -> float:
    """``first`` doubled ``times`` times, at most ``most``."""
    return min(first * 2.0 ** min(times, 32), most)


def jittered(seconds: float) -> float:
    """Between half of ``seconds`` and all of it."""
    return seconds * (0.5 + _random.random() / 2)
