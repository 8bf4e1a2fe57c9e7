import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.cluster.connection import Connection, connect
from tests.unit.cluster.server import Server


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy set in the environment is none of the tests' business."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> str:
    """A kubeconfig for the server, user with a token. JSON is YAML."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server.url}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
            }
        )
    )
    return str(path)


@pytest.fixture
def connection(kubeconfig: str) -> Iterator[Connection]:
    opened = connect(kubeconfig, "dra-driver/test")
    yield opened
    opened.close()
