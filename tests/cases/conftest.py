"""A driver on a node of two H200s, started by the test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.driver import Driver


@pytest.fixture
def stopped() -> Iterator[Driver]:
    """Not started yet; its directory has a short name, since sockets are made inside."""
    with tempfile.TemporaryDirectory(prefix="dra-test-") as name:
        driver = Driver(Path(name))
        yield driver
        driver.close()


@pytest.fixture
def driver(stopped: Driver) -> Driver:
    """Running, time slicing switched on."""
    stopped.start()
    return stopped
