from typing import Any

import pytest

from dra_driver.cluster.connection import Connection
from dra_driver.cluster.deployments import ApiDeployments
from dra_driver.model.errors import ApiError, ApiUnreachable
from tests.unit.cluster.server import Answer, Request, Server, status

DEPLOYMENT: dict[str, Any] = {"metadata": {"name": "daemon-a", "uid": "uid-1"}}
OF_ALL = "/apis/apps/v1/namespaces/gpus/deployments"
FORBIDDEN = (
    'deployments.apps is forbidden: User "system:serviceaccount:gpus:driver" cannot create resource "deployments" in '
    'API group "apps" in the namespace "gpus"'
)


@pytest.fixture
def api(connection: Connection) -> ApiDeployments:
    return ApiDeployments(connection, "gpus")


def test_deployment_is_read_by_name_in_the_namespace(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: Answer(200, DEPLOYMENT)
    assert api.get("daemon-a") == DEPLOYMENT
    assert (server.requests[0].method, server.requests[0].path) == ("GET", f"{OF_ALL}/daemon-a")


def test_missing_deployment_is_none(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: status(404, 'deployments.apps "daemon-a" not found')
    assert api.get("daemon-a") is None


def test_deployment_is_created_as_it_is_given(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: Answer(201, request.body)
    assert api.create(DEPLOYMENT) == DEPLOYMENT
    (request,) = server.requests
    assert (request.method, request.path, request.body) == ("POST", OF_ALL, DEPLOYMENT)


def test_name_that_is_taken_is_told_by_status_409(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: status(409, 'deployments.apps "daemon-a" already exists')
    with pytest.raises(ApiError) as caught:
        api.create(DEPLOYMENT)
    assert caught.value.status == 409


def test_deletion_waits_for_pods_and_means_this_object_only(server: Server, api: ApiDeployments) -> None:
    api.delete(DEPLOYMENT)
    (request,) = server.requests
    assert (request.method, request.path) == ("DELETE", f"{OF_ALL}/daemon-a")
    assert request.body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": "uid-1"},
    }


def test_deleting_what_is_gone_is_success(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: status(404, "not found")
    api.delete(DEPLOYMENT)


def test_deleting_what_was_replaced_is_an_error(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: status(409, "Precondition failed: UID in precondition: uid-1")
    with pytest.raises(ApiError) as caught:
        api.delete(DEPLOYMENT)
    assert caught.value.status == 409


@pytest.mark.parametrize(
    ("method", "path"), [("labelled", OF_ALL), ("pods", "/api/v1/namespaces/gpus/pods")], ids=["deployments", "pods"]
)
def test_what_has_all_labels_is_listed_over_all_pages(
    server: Server, api: ApiDeployments, method: str, path: str
) -> None:
    def pages(request: Request) -> Answer:
        if request.query.get("continue") == "more":
            return Answer(200, {"metadata": {}, "items": [{"n": 2}]})
        return Answer(200, {"metadata": {"continue": "more"}, "items": [{"n": 1}]})

    server.answer = pages
    assert getattr(api, method)({"app": "a", "gpu.nvidia.com/node": "node-a"}) == [{"n": 1}, {"n": 2}]
    assert {request.path for request in server.requests} == {path}
    assert {request.query["labelSelector"] for request in server.requests} == {"app=a,gpu.nvidia.com/node=node-a"}


def test_list_without_items_is_empty(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: Answer(200, {"items": None})
    assert api.pods({"app": "a"}) == []


def test_missing_right_is_told_whole_with_verb_resource_and_remedy(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: status(403, FORBIDDEN)
    with pytest.raises(ApiError) as caught:
        api.create(DEPLOYMENT)
    assert caught.value.status == 403
    assert FORBIDDEN in str(caught.value)
    assert "give the driver's service account this right" in str(caught.value)


def test_refusal_by_an_admission_is_told_whole_and_is_no_missing_right(server: Server, api: ApiDeployments) -> None:
    said = (
        "deployments.apps \"daemon-a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"
    )
    server.answer = lambda request: status(403, said)
    with pytest.raises(ApiError, match="denied request: no") as caught:
        api.create(DEPLOYMENT)
    assert "give the driver" not in str(caught.value)


def test_api_server_in_trouble_is_unreachable(server: Server, api: ApiDeployments) -> None:
    server.answer = lambda request: status(503, "starting")
    for call in (lambda: api.get("a"), lambda: api.pods({}), lambda: api.delete(DEPLOYMENT)):
        with pytest.raises(ApiUnreachable):
            call()
