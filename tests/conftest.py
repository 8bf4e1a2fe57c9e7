"""For all tests: how properties are judged, where temporary directories lie, and in which order tests run.

A property is judged by what it finds, never by how long an example takes.
``--hypothesis-profile=thorough`` tries many more examples than a run of all tests has time for.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("untimed"), max_examples=2000)
settings.load_profile("untimed")

_MEMORY = "/dev/shm"
_MEMORY_BYTES = 1 << 30


def pytest_configure() -> None:
    """Temporary directories in memory where there is room: tests make a hundred thousand small files."""
    try:
        status = os.statvfs(_MEMORY)
    except OSError:
        return
    room = status.f_bavail * status.f_frsize
    # Tests run stand-ins for NVIDIA's programs from there.
    if "TMPDIR" not in os.environ and room >= _MEMORY_BYTES and not status.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY


@pytest.fixture(autouse=True)
def no_log_handler_is_left() -> Iterator[None]:
    """A command that sets logging up would write into the output of a test that is over."""
    yield
    for handler in [h for h in logging.root.handlers if type(h) is logging.StreamHandler]:
        logging.root.removeHandler(handler)


_WAITING = Path(__file__).with_name("demo")
"""Tests that wait for processes most of their time."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that wait among those that compute: workers would all wait at once otherwise."""
    waiting = [item for item in items if _WAITING in item.path.parents]
    others = (item for item in items if _WAITING not in item.path.parents)
    modules = [list(part) for _, part in groupby(others, lambda item: item.path)]
    # All are placed in the first two thirds, so that none is waited for at the end.
    each = -(-len(waiting) // max(1, len(modules) * 2 // 3))
    items[:] = []
    for number, module in enumerate(modules):
        items += [*waiting[number * each : (number + 1) * each], *module]
    items += waiting[len(modules) * each :]
