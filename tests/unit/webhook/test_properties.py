import string

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.features import parse_gates
from dra_driver.webhook.judgement import judge
from dra_driver.webhook.reviews import BadReview, answer, parse
from tests.unit.webhook.builders import config, encoded, parameters, review

GATES = parse_gates("TimeSlicingSettings=true")
WORDS = st.sampled_from(
    [
        "name",
        "requests",
        "config",
        "opaque",
        "driver",
        "parameters",
        "gpu.nvidia.com",
        "exactly",
        "firstAvailable",
        "gpu",
    ]
)
TEXTS = WORDS | st.text(string.printable, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
ENTRIES = JSON | st.builds(config, JSON | st.builds(parameters, JSON), requests=JSON)


@given(requests=JSON | st.lists(JSON, max_size=3), entries=JSON | st.lists(ENTRIES, max_size=3), template=st.booleans())
@settings(max_examples=100, deadline=None)
def test_whatever_a_claim_holds_there_is_an_answer(requests, entries, template):
    document = review(resource="resourceclaimtemplates" if template else "resourceclaims")
    spec = document["request"]["object"]["spec"]
    (spec["spec"] if template else spec)["devices"] = {"requests": requests, "config": entries}
    asked = parse(encoded(document))

    response = answer(asked, judge(asked, GATES))["response"]

    assert response["uid"] == asked.uid
    assert response["allowed"] is not bool(response.get("status"))


@given(request=JSON | st.fixed_dictionaries({"uid": TEXTS, "resource": JSON, "object": JSON, "operation": JSON}))
@settings(max_examples=100, deadline=None)
def test_whatever_is_asked_it_is_answered_or_refused_as_no_question(request):
    try:
        asked = parse(encoded({**review(), "request": request}))
    except BadReview:
        return
    assert answer(asked, judge(asked, GATES))["response"]["uid"] == asked.uid
