"""The small API client against a TLS server with certificates of the cluster's own making."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import kubeconfigs
from hack.cluster.api import Api, condition
from hack.cluster.certificates import Authority
from hack.cluster.errors import ApiRefused, ClusterError, NotReady

CORE = {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True}, {"name": "pods/log", "kind": "Pod"}]}
CLASSES = {"resources": [{"name": "deviceclasses", "kind": "DeviceClass", "namespaced": False}]}


class Handler(BaseHTTPRequestHandler):
    """Answers from ``server.answers`` and keeps what was asked in ``server.asked``."""

    server: "Server"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.command, self.path, self.rfile.read(length), dict(self.headers)))
        status, answer = self.server.answers.get(self.path, (404, {"message": "not found"}))
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PATCH(self) -> None:
        self.do_GET()

    def log_message(self, *words: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    asked: list[tuple[str, str, bytes, dict[str, str]]]
    answers: dict[str, tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    authority.server("api", ["localhost"], ["127.0.0.1"]).keep(tmp_path, "server")
    authority.pair.keep(tmp_path, "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "ca.crt")
    context.verify_mode = ssl.CERT_OPTIONAL
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.asked = []
        server.answers = {"/api/v1": (200, CORE), "/apis/resource.k8s.io/v1": (200, CLASSES)}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def api(server: Server, authority: Authority, tmp_path: Path) -> Api:
    url = f"https://127.0.0.1:{server.server_port}"
    pair = authority.client("admin", ("system:masters",))
    document = kubeconfigs.with_certificate(url, authority.pair.certificate, "admin", pair)
    return Api(kubeconfigs.keep(tmp_path / "kubeconfig", document))


def test_object_is_applied_in_its_namespace(server: Server, api: Api) -> None:
    path = "/api/v1/namespaces/team/pods/a?fieldManager=hack-cluster&force=true"
    server.answers[path] = (200, {"kind": "Pod"})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "team"}}
    assert api.apply(pod) == {"kind": "Pod"}
    method, asked, body, headers = server.asked[-1]
    assert (method, asked, json.loads(body)) == ("PATCH", path, pod)
    assert headers["Content-Type"] == "application/apply-patch+yaml"


def test_object_without_namespace_goes_to_default(api: Api) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    assert api.path(pod) == "/api/v1/namespaces/default/pods"


def test_object_of_the_cluster_has_no_namespace(api: Api) -> None:
    found = api.path({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "a"}})
    assert found == "/apis/resource.k8s.io/v1/deviceclasses"


def test_kind_that_is_unknown_is_named(api: Api) -> None:
    with pytest.raises(ClusterError, match="knows no kind Pot in /api/v1"):
        api.path({"apiVersion": "v1", "kind": "Pot", "metadata": {"name": "a"}})


def test_refusal_has_status_and_text(server: Server, api: Api) -> None:
    server.answers["/api/v1/nodes"] = (403, {"message": "forbidden: no"})
    with pytest.raises(ApiRefused, match=r"HTTP 403: .*forbidden: no") as caught:
        api.get("/api/v1/nodes")
    assert caught.value.status == 403


def test_object_that_is_missing_is_none(api: Api) -> None:
    assert api.find("/api/v1/namespaces/default/pods/none") is None


def test_query_is_part_of_the_request(server: Server, api: Api) -> None:
    server.answers["/x?fieldSelector=a%3Db"] = (200, {"items": []})
    assert api.get("/x", fieldSelector="a=b") == {"items": []}


def test_token_is_sent(server: Server, authority: Authority, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{server.server_port}"
    document = kubeconfigs.with_token(url, authority.pair.certificate, "driver", "secret")
    Api(kubeconfigs.keep(tmp_path / "token", document)).get("/api/v1")
    assert server.asked[-1][3]["Authorization"] == "Bearer secret"


def test_server_of_another_authority_is_not_trusted(server: Server, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{server.server_port}"
    document = kubeconfigs.with_token(url, Authority().pair.certificate, "driver", "secret")
    with pytest.raises(ClusterError, match="CERTIFICATE_VERIFY_FAILED"):
        Api(kubeconfigs.keep(tmp_path / "other", document)).get("/api/v1")


def test_server_that_never_gets_ready_is_given_up(server: Server, api: Api) -> None:
    server.answers["/readyz"] = (500, {"message": "etcd failed"})
    with pytest.raises(NotReady, match="HTTP 500"):
        api.wait_ready(0.0)


def test_missing_kubeconfig_asks_whether_the_cluster_is_up(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"No such file.*is the cluster up\?"):
        Api(tmp_path / "kubeconfig")


def test_condition_that_is_not_there_is_empty() -> None:
    assert condition({"status": {}}, "Ready") == {}
