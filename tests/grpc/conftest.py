import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grpc.helpers import Remembering, Service


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Like tmp_path, but short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        yield Path(name)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def recorder() -> Remembering:
    return Remembering()
