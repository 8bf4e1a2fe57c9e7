"""Trouble on order for the simulated API server: refusals, delays, broken connections. No network here."""

import re
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to one request: wait ``delay`` s, then answer ``status``, break off, or go on as usual."""

    status: int = 0
    message: str = "the simulated server was told to refuse this request"
    retry_after: int | None = None
    delay: float = 0.0
    drop: bool = False


@dataclass(slots=True)
class _Order:
    method: str
    path: re.Pattern[str]
    fault: Fault
    left: int


class Faults:
    """Orders, served in the order they were given. Safe for threads."""

    def __init__(self) -> None:
        self._orders: list[_Order] = []
        self._lock = threading.Lock()

    def order(self, fault: Fault, *, times: int = 1, method: str = "", path: str = "") -> None:
        """Let the next ``times`` requests of a method ('' = any), path matching a regex, meet ``fault``."""
        with self._lock:
            self._orders.append(_Order(method.upper(), re.compile(path), fault, times))

    def clear(self) -> None:
        """Forget all orders."""
        with self._lock:
            self._orders.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """The fault for a request, used up by this call."""
        with self._lock:
            for order in self._orders:
                if order.method in ("", method) and order.path.search(path):
                    order.left -= 1
                    if order.left <= 0:
                        self._orders.remove(order)
                    return order.fault
        return None
