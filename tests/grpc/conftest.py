import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.other_driver import OtherDraDriver
from tests.grpc.helpers import Remembering, Service
from tests.grpc.instances import MakeOther, MakeOurs, Ours


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


@pytest.fixture
def ours(short_path: Path) -> Iterator[MakeOurs]:
    """Makes instances in one kubelet's folders; they end with the test."""
    (short_path / "registry").mkdir()
    made: list[Ours] = []

    def make(pod_uid: str = "", *, refuse: bool = True) -> Ours:
        made.append(Ours(short_path, pod_uid, refuse))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def other(short_path: Path) -> Iterator[MakeOther]:
    """Starts another driver in the same folders."""
    made: list[OtherDraDriver] = []

    def make(folder: str = "plugins", **how: str) -> OtherDraDriver:
        made.append(OtherDraDriver(short_path / "registry", short_path / folder, **how).start())  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.stop()
