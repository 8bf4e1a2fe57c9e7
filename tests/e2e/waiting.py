"""Waits for something to become so in a cluster, where a call that fails is no answer yet."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from dra_driver.model.errors import StateError
from hack.cluster.errors import ClusterError

T = TypeVar("T")

SECONDS: Final = 120.0
"""Long, as the machine may be busy: only what never comes takes so long."""
_LOOK_S: Final = 0.2


def until(look: Callable[[], T | None], what: str | Callable[[], str], seconds: float = SECONDS) -> T:
    """The first answer of ``look`` that is true. Fails with ``what`` in the text."""
    deadline = time.monotonic() + seconds
    while True:
        trouble = ""
        try:
            if found := look():
                return found
        except (ClusterError, StateError, OSError) as error:
            trouble = f"; {error}"
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"waited {seconds:g} s in vain for {text}{trouble}")
        time.sleep(_LOOK_S)
