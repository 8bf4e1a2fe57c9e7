"""Tests that share a driver run in one worker, so that it is started once."""

import pytest

SHARED = ("played", "shared_node", "odd_tools", "lasting_node")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in SHARED:
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(name))
