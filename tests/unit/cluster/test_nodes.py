import pytest

from dra_driver.cluster.connection import Connection
from dra_driver.cluster.nodes import ApiNode
from dra_driver.model.errors import ApiError
from tests.unit.cluster.server import Answer, Server, status


def test_uid_is_that_of_the_node(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, {"metadata": {"uid": "uid-1"}})
    assert ApiNode(connection, "node-1").uid() == "uid-1"
    assert server.requests[0].path == "/api/v1/nodes/node-1"


@pytest.mark.parametrize(("metadata", "labels"), [({"labels": {"pool": "dev"}}, {"pool": "dev"}), ({}, {})])
def test_labels_are_those_of_the_node(
    server: Server, connection: Connection, metadata: dict[str, object], labels: dict[str, str]
) -> None:
    server.answer = lambda request: Answer(200, {"metadata": metadata})
    assert ApiNode(connection, "node-1").labels() == labels
    assert server.requests[0].path == "/api/v1/nodes/node-1"


def test_allocatable_is_what_the_kubelet_counts(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, {"status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    assert ApiNode(connection, "node-1").allocatable() == {"nvidia.com/gpu": "8"}
    server.answer = lambda request: Answer(200, {})
    assert ApiNode(connection, "node-1").allocatable() == {}


def test_unknown_node_is_an_error_with_the_servers_words(server: Server, connection: Connection) -> None:
    server.answer = lambda request: status(404, 'nodes "node-1" not found')
    with pytest.raises(ApiError, match='nodes "node-1" not found'):
        ApiNode(connection, "node-1").uid()


@pytest.mark.parametrize("content", [{}, {"metadata": None}, {"metadata": {"uid": ""}}])
def test_node_without_uid_is_an_error(server: Server, connection: Connection, content: dict[str, object]) -> None:
    server.answer = lambda request: Answer(200, content)
    with pytest.raises(ApiError, match="no uid"):
        ApiNode(connection, "node-1").uid()
