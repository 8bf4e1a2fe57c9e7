import logging
import socket

import pytest

from dra_driver.webhook import http
from dra_driver.webhook.reviews import Verdict
from tests.unit.webhook.builders import config, encoded, parameters, review


def test_question_gets_its_answer_on_a_connection_that_stays(serve):
    client = serve(lambda asked: Verdict("not so", warnings=("mind",))).client()

    for _ in range(2):
        status, found = client.review(encoded(review()))
        assert status == 200
        assert found["response"]["allowed"] is False
        assert found["response"]["warnings"] == ["mind"]
        assert client.connection.sock is not None


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_content_type_may_say_its_charset(serve, content_type):
    assert serve().client().review(encoded(review()), Content_Type=content_type)[0] == 200


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/yaml", "application/json-patch+json", "x" * 5000]
)
def test_other_content_types_are_415(serve, content_type):
    status, text = serve().client().review(encoded(review()), Content_Type=content_type)

    assert status == 415
    assert text.endswith("want application/json\n")
    assert len(text) < 200


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b"[" * 100_000, b"\0" * 1000])
def test_what_is_no_review_is_400(serve, body):
    assert serve().client().review(body)[0] == 400


@pytest.mark.parametrize("how", ["with its length", "in chunks"])
def test_body_that_is_too_large_is_413_and_its_text_stays_out_of_the_log(serve, how, caplog):
    caplog.set_level(logging.DEBUG)
    parts = [b"private " * 65_536] * 10
    body = b"".join(parts) if how == "with its length" else iter(parts)
    connection = serve().client().connection

    connection.putrequest("POST", http.VALIDATE)
    connection.putheader("Content-Type", "application/json")
    chunked = how == "in chunks"
    connection.putheader(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))))
    connection.endheaders()
    # The server answers before all is sent, and may then close.
    try:
        for part in body if chunked else [body]:
            connection.send(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
    except OSError:
        pass
    answer = connection.getresponse()

    assert answer.status == 413
    assert "private" not in caplog.text


def test_largest_update_that_etcd_can_hold_is_read(serve):
    seen = []
    client = serve(lambda asked: seen.append(asked.object) or Verdict()).client()
    whole = {"metadata": {"annotations": {"a": "x" * 1_500_000}}}

    assert client.review(encoded(review(operation="UPDATE", object=whole, oldObject=whole)))[0] == 200
    assert seen == [whole]


def test_body_that_never_ends_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(http, "BODY_SECONDS", 0.1)
    connection = serve().client().connection
    connection.putrequest("POST", http.VALIDATE)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "1000")
    connection.endheaders()
    connection.send(b"{")

    assert connection.getresponse().status == 408


def test_client_that_leaves_in_the_middle_does_no_harm(serve, caplog):
    webhook = serve()
    connection = webhook.client().connection
    connection.putrequest("POST", http.VALIDATE)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "1000")
    connection.endheaders()
    connection.send(b"{")
    connection.sock.shutdown(socket.SHUT_RDWR)

    assert webhook.client().ask()[0] == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("HEAD", "/readyz", 200),
        ("POST", "/readyz", 405),
        ("GET", "/validate-resource-claim-parameters", 405),
        ("GET", "/", 404),
        ("POST", "/validate", 404),
    ],
)
def test_pages(serve, method, path, status):
    assert serve().client().ask(method, path)[0] == status


def test_refusal_is_logged_in_part(serve, caplog):
    caplog.set_level(logging.INFO)
    client = serve(lambda asked: Verdict("x" * 100_000)).client()

    client.review(encoded(review(config(parameters(padding="private")))))

    assert "refused CREATE of resourceclaims ns/c: xxx" in caplog.text
    assert len(caplog.text) < 2000
    assert "private" not in caplog.text
