"""What the process says about itself: named conditions for readiness, watched threads for liveness.

Only bookkeeping under a lock; who asks for it (HTTP) and who finds it out (devices, slices, kubelet) live
elsewhere.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger(__name__)

NOT_YET = "not yet"
"""Message of a required condition that nobody has stated so far."""


@dataclass(frozen=True, slots=True)
class _Condition:
    ok: bool
    message: str
    since: datetime


class Conditions:
    """Named conditions; ready when every one of them holds. Implements ``ports.Readiness``; thread-safe."""

    def __init__(self, required: Iterable[str]) -> None:
        """``required``: conditions that must be stated before the process can be ready."""
        now = datetime.now(UTC)
        self._lock = threading.Lock()
        self._conditions = {name: _Condition(False, NOT_YET, now) for name in required}

    def set(self, condition: str, ok: bool, message: str = "") -> None:
        """State a condition. A change of ``ok`` or of the message is logged once, a repetition is not."""
        message = message or ("" if ok else "no reason given")
        with self._lock:
            old = self._conditions.get(condition)
            if old is not None and (old.ok, old.message) == (ok, message):
                return
            since = old.since if old is not None and old.ok == ok else datetime.now(UTC)
            self._conditions[condition] = _Condition(ok, message, since)
        if ok:
            log.info("condition %s holds%s", condition, f": {message}" if message else "")
        else:
            log.warning("condition %s does not hold: %s", condition, message)

    @property
    def ready(self) -> bool:
        """Whether all conditions hold."""
        with self._lock:
            return all(condition.ok for condition in self._conditions.values())

    def report(self) -> dict[str, Any]:
        """``{"ready": bool, "conditions": {name: {"ok", "message", "since"}}}``, ready for JSON.

        ``since`` is the time of the last change of ``ok`` as RFC 3339 in UTC.
        """
        with self._lock:
            conditions = dict(self._conditions)
        return {
            "ready": all(condition.ok for condition in conditions.values()),
            "conditions": {
                name: {
                    "ok": condition.ok,
                    "message": condition.message,
                    "since": condition.since.isoformat(timespec="seconds").replace("+00:00", "Z"),
                }
                for name, condition in sorted(conditions.items())
            },
        }


class Liveness:
    """Threads without which the process is of no use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def watch(self, *threads: threading.Thread) -> None:
        """From now on the process counts as dead when one of these started threads has ended."""
        with self._lock:
            self._threads.extend(threads)

    def dead(self) -> tuple[str, ...]:
        """Names of the watched threads that have ended, sorted; empty while all is well."""
        with self._lock:
            return tuple(sorted(thread.name for thread in self._threads if not thread.is_alive()))
