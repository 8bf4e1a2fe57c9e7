from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.mps.node import Node, on_disk


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.clean()


@pytest.fixture
def node_on_disk() -> Iterator[Node]:
    with on_disk() as base:
        made = Node(base)
        yield made
        made.clean()
