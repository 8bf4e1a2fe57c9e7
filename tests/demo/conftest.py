"""Tests that share a driver run in one worker, so that it is started once. Drivers are forked (tests.demo.forked)."""

from collections.abc import Iterator

import pytest

from tests.demo.forked import ForkedDriver

SHARED = ("played", "shared_node", "odd_tools", "lasting_node")


@pytest.fixture(scope="module", autouse=True)
def forked_drivers() -> Iterator[None]:
    """Simulated clusters start drivers that are forked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_driver.simulator.cluster.DriverProcess", ForkedDriver)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Grouping that a version of pytest or xdist does without a word would start each shared driver once a worker."""
    if not hasattr(session.config, "workerinput") or not session.config.getvalue("loadgroup"):
        return
    alone = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
    if alone:
        raise pytest.UsageError(f"pytest {pytest.__version__} and this pytest-xdist do not group tests: {alone[0]}")
