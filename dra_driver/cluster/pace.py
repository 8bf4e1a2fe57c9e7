"""A limit on requests per second, for those who set one. Knows nothing of requests."""

import threading
import time
from collections.abc import Callable


class Pace:
    """Token bucket: ``burst`` at once, then ``per_second``; as client-go's ``QPS`` and ``Burst``."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._burst = float(max(burst, 1))
        self._clock = clock
        self._lock = threading.Lock()
        self._left = self._burst
        self._at = clock()

    def take(self) -> float:
        """Take one; the seconds to wait before using it, 0 while there are some left."""
        with self._lock:
            self._refill()
            self._left -= 1.0
            return max(0.0, -self._left / self._rate)

    def try_take(self) -> bool:
        """Take one if there is one."""
        with self._lock:
            self._refill()
            if self._left < 1.0:
                return False
            self._left -= 1.0
            return True

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
