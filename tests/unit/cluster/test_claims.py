from typing import Any

import pytest

from dra_driver.cluster.claims import ApiClaims, ApiClasses
from dra_driver.cluster.connection import Connection
from dra_driver.model.claims import ClaimRef
from dra_driver.model.errors import ApiError, ApiUnreachable, ClaimNotFound
from tests.unit.cluster.server import Answer, Request, Server, status

CLAIM = ClaimRef("team-a", "shared-gpu", "uid-1")


def claim(uid: str = "uid-1", driver: str | None = "gpu.nvidia.com") -> dict[str, Any]:
    found: dict[str, Any] = {"metadata": {"namespace": "team-a", "name": "shared-gpu", "uid": uid}}
    if driver is not None:
        found["status"] = {"allocation": {"devices": {"results": [{"driver": driver, "device": "gpu-0"}]}}}
    return found


def test_claim_is_read_by_namespace_and_name(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, claim())
    assert ApiClaims(connection).get(CLAIM) == claim()
    assert server.requests[0].path == "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaims/shared-gpu"


def test_missing_claim_is_not_found(server: Server, connection: Connection) -> None:
    server.answer = lambda request: status(404, 'resourceclaims "shared-gpu" not found')
    with pytest.raises(ClaimNotFound, match=r"team-a/shared-gpu \(uid uid-1\).*not found"):
        ApiClaims(connection).get(CLAIM)


@pytest.mark.parametrize("found", [claim("uid-2"), {"metadata": {}}, {"metadata": None}, {}])
def test_claim_with_another_uid_is_not_found(server: Server, connection: Connection, found: dict[str, Any]) -> None:
    server.answer = lambda request: Answer(200, found)
    with pytest.raises(ClaimNotFound, match="uid uid-1"):
        ApiClaims(connection).get(CLAIM)


def test_replaced_claim_names_both_uids(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, claim("uid-2"))
    with pytest.raises(ClaimNotFound, match=r"uid uid-1.*uid uid-2"):
        ApiClaims(connection).get(CLAIM)


@pytest.mark.parametrize(
    ("namespace", "name", "uid"),
    [
        ("", "a", "u"),
        ("a", "", "u"),
        ("a", "b/c", "u"),
        ("a", "..", "u"),
        ("a", "b..c", "u"),
        ("a/b", "c", "u"),
        ("..", "c", "u"),
        ("a.b", "c", "u"),
        ("a", "b?watch=1", "u"),
        ("a", "b%2fc", "u"),
        ("a", "B", "u"),
        ("a", "b\n", "u"),
        ("a", "b" * 64, "u"),
        ("a", ".".join(["b" * 60] * 5), "u"),
        ("a", "b", ""),
    ],
)
def test_claim_that_cannot_exist_is_refused_before_any_request(
    server: Server, connection: Connection, namespace: str, name: str, uid: str
) -> None:
    with pytest.raises(ClaimNotFound):
        ApiClaims(connection).get(ClaimRef(namespace, name, uid))
    assert server.requests == []


@pytest.mark.parametrize("name", ["a", "a.b", "0-1.x", "b" * 63, "my-pod-gpu-x7k2f"])
def test_every_valid_name_is_asked_for(server: Server, connection: Connection, name: str) -> None:
    server.answer = lambda request: Answer(200, claim())
    ApiClaims(connection).get(ClaimRef("a", name, "uid-1"))
    assert server.requests[0].path.endswith(f"/{name}")


def test_refusal_is_an_api_error(server: Server, connection: Connection) -> None:
    server.answer = lambda request: status(403, "cannot get resource")
    with pytest.raises(ApiError, match="cannot get resource"):
        ApiClaims(connection).get(CLAIM)


def test_api_server_in_trouble_is_unreachable(server: Server, connection: Connection) -> None:
    server.answer = lambda request: status(503, "starting")
    with pytest.raises(ApiUnreachable):
        ApiClaims(connection).get(CLAIM)


def test_allocated_claims_are_listed_over_all_pages(server: Server, connection: Connection) -> None:
    def pages(request: Request) -> Answer:
        if request.query.get("continue") == "more":
            return Answer(200, {"metadata": {}, "items": [claim("uid-3")]})
        return Answer(200, {"metadata": {"continue": "more"}, "items": [claim("uid-1"), claim("uid-2")]})

    server.answer = pages
    found = ApiClaims(connection).list_allocated()
    assert [item["metadata"]["uid"] for item in found] == ["uid-1", "uid-2", "uid-3"]


@pytest.mark.parametrize(
    "item",
    [
        claim(driver=None),
        claim(driver="other.example.com"),
        claim() | {"status": None},
        claim() | {"status": {"allocation": {"devices": None}}},
    ],
)
def test_claims_without_a_device_of_ours_are_left_out(
    server: Server, connection: Connection, item: dict[str, Any]
) -> None:
    server.answer = lambda request: Answer(200, {"items": [item]})
    assert ApiClaims(connection).list_allocated() == []


def test_empty_list_is_no_error(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, {"items": None})
    assert ApiClaims(connection).list_allocated() == []


# DeviceClasses.

LIMITED = {"metadata": {"name": "limited"}, "spec": {"selectors": []}}


def test_class_is_read_by_name_once_a_minute(server: Server, connection: Connection) -> None:
    server.answer = lambda request: Answer(200, LIMITED)
    now = [0.0]
    classes = ApiClasses(connection, lambda: now[0])
    assert [classes.get("limited"), classes.get("limited")] == [LIMITED, LIMITED]
    assert [request.path for request in server.requests] == ["/apis/resource.k8s.io/v1/deviceclasses/limited"]
    now[0] = 60.0
    classes.get("limited")
    assert len(server.requests) == 2


@pytest.mark.parametrize(("code", "told"), [(404, 0), (403, 1)])
def test_class_that_is_gone_or_not_for_us_is_none_and_the_missing_right_is_told_once(
    server: Server, connection: Connection, caplog: pytest.LogCaptureFixture, code: int, told: int
) -> None:
    server.answer = lambda request: status(code, "no")
    classes = ApiClasses(connection)
    assert [classes.get("a"), classes.get("b"), classes.get("a")] == [None, None, None]
    assert len(server.requests) == 2
    assert caplog.text.count("the right to get deviceclasses") == told


def test_class_that_cannot_be_read_now_is_an_error_and_asked_for_again(server: Server, connection: Connection) -> None:
    server.answer = lambda request: status(500, "no")
    classes = ApiClasses(connection)
    with pytest.raises(ApiError):
        classes.get("limited")
    server.answer = lambda request: Answer(200, LIMITED)
    assert classes.get("limited") == LIMITED
