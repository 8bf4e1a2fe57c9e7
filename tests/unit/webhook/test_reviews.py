import json

import pytest

from dra_driver.webhook.reviews import BadReview, Verdict, answer, parse
from tests.unit.webhook.builders import config, encoded, parameters, review


def test_question_is_read_as_the_api_server_sends_it():
    asked = parse(encoded(review(config(parameters()))))

    assert asked.uid == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert (asked.operation, asked.group, asked.version, asked.resource) == (
        "CREATE",
        "resource.k8s.io",
        "v1",
        "resourceclaims",
    )
    assert asked.name == "ns/c"
    assert asked.object is not None
    assert asked.old_object is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 500_000, "not JSON"),
        (b"[]", "found list"),
        (b"null", "found NoneType"),
        (b"{}", "found None None"),
        (encoded(review() | {"apiVersion": "admission.k8s.io/v1beta1"}), "found admission.k8s.io/v1beta1"),
        (encoded(review() | {"kind": "ResourceClaim"}), "found admission.k8s.io/v1 ResourceClaim"),
        (encoded(review() | {"request": None}), "has no request"),
        (encoded(review(uid=None)), "request.uid"),
        (encoded(review(uid="")), "request.uid"),
        (encoded(review(uid="u" * 1000)), "request.uid"),
        (encoded(review(resource="x") | {"request": {"uid": "u", "resource": "resourceclaims"}}), "request.resource"),
        (encoded(review(object=[1])), "request.object: want an object or null, found list"),
        (encoded(review(oldObject="x")), "request.oldObject"),
    ],
)
def test_what_is_no_question_is_refused_with_what_is_wrong(body, said):
    with pytest.raises(BadReview) as refused:
        parse(body)

    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_foreign_text_becomes_one_line_of_a_bearable_length():
    asked = parse(encoded(review(name="a\nb" * 1000, namespace="\x1b[31m")))

    assert asked.name.isprintable()
    assert len(asked.name) <= 100


def test_answer_carries_the_uid_and_says_nothing_more_when_all_is_well():
    asked = parse(encoded(review()))

    assert answer(asked, Verdict()) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": asked.uid, "allowed": True},
    }


@pytest.mark.parametrize(("reason", "code"), [("Invalid", 422), ("BadRequest", 400)])
def test_refusal_is_a_failure_with_its_reason(reason, code):
    response = answer(parse(encoded(review())), Verdict("because", reason))["response"]

    assert response["allowed"] is False
    assert response["status"] == {"status": "Failure", "message": "because", "reason": reason, "code": code}


def test_warning_is_cut_to_what_the_api_server_passes_on():
    response = answer(parse(encoded(review())), Verdict(warnings=("short", "long" * 100)))["response"]

    assert response["allowed"] is True
    assert [len(text) for text in response["warnings"]] == [5, 256]


def test_answer_can_be_sent_whatever_characters_the_refusal_quotes():
    asked = parse(b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": '
                  b'{"uid": "\\ud800", "resource": {}}}')  # fmt: skip

    assert "\\ud800" in json.dumps(answer(asked, Verdict("\ud800")))
