"""How a program that serves is told to stop."""

import logging
import signal
import threading
from types import FrameType

log = logging.getLogger(__name__)


def stop_on_signals() -> threading.Event:
    """An event that is set by the signals that ask a program to end. To be called from the main thread."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        log.info("signal %s: stopping", signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, on_signal)
    return stop
