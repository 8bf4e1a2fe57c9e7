"""Makes calls, in sequence or many at a time, and times each."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from hack.bench.objects import Claim

Result = tuple[float, str]
"""Seconds, and why the call failed ('' if it did not)."""


def run(call: Callable[[Claim], str], claims: Sequence[Claim], at_once: int) -> tuple[list[Result], float]:
    """One call a claim, in order, ``at_once`` of them in flight. Returns the results by claim and the wall seconds."""

    def one(claim: Claim) -> Result:
        began = time.perf_counter()
        error = call(claim)
        return time.perf_counter() - began, error

    began = time.perf_counter()
    if at_once == 1:
        results = [one(claim) for claim in claims]
    else:
        with ThreadPoolExecutor(at_once) as callers:
            results = list(callers.map(one, claims))
    return results, time.perf_counter() - began


def repeat(action: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of so many repetitions."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return seconds
