"""How long to wait before the next attempt: after failures, and while somebody else rewrites our slices."""

import random
from dataclasses import dataclass

from dra_driver.model.errors import ApiUnreachable

_TOO_MANY_REQUESTS = 429
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals of the publisher, all in seconds.

    debounce_s: from the first foreign change to the repair, so that a burst is one repair.
    retry_first_s, retry_most_s: after a failure, doubling. away_most_s: the longest wait while there is no API server
    that answers, short, as all it costs is a connection. contested_most_s, calm_s: the longest wait between
    repairs when somebody else keeps rewriting, and the quiet after which the next repair is quick again.
    hold_poll_s: how often a publisher that stands by asks whether it may write.
    watch_s: length of one watch; rewatch_s: least time between the starts of two.
    """

    debounce_s: float = 0.3
    retry_first_s: float = 0.25
    retry_most_s: float = 30.0
    away_most_s: float = 8.0
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


class Retries:
    """How long to wait after an ApiError: a refusal and an API server that is away have a back-off each."""

    def __init__(self, timing: Timing, first_s: float) -> None:
        self._refused = Backoff(first_s, timing.retry_most_s)
        self._away = Backoff(first_s, timing.away_most_s)

    @property
    def failures(self) -> int:
        """Failures in a row of the kind that came last."""
        return self._refused.failures + self._away.failures

    def after(self, error: Exception) -> float:
        """Seconds to wait. One that is back and still starting up refuses at first: that is a new beginning."""
        away = isinstance(error, ApiUnreachable) and error.status != _TOO_MANY_REQUESTS
        (self._refused if away else self._away).reset()
        return (self._away if away else self._refused).next()

    def reset(self) -> None:
        """Start small again, after a success."""
        self._refused.reset()
        self._away.reset()


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
