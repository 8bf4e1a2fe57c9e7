"""Tests that share a driver run in one worker, so that it is started once."""

import pytest

SHARED = ("played", "shared_node", "odd_tools", "lasting_node")


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
