"""Field and label selectors."""

import pytest

from dra_driver.simulator.kinds import PODS
from dra_driver.simulator.selectors import field_match, label_match
from dra_driver.simulator.statuses import StatusError

POD = {"metadata": {"name": "p", "labels": {"app": "web"}}, "spec": {"nodeName": "node-a"}}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("spec.nodeName=node-a", True),
        ("spec.nodeName==node-b", False),
        ("spec.nodeName!=node-b,metadata.name=p", True),
        ("status.phase=", True),
    ],
)
def test_field_selector(selector: str, matches: bool) -> None:
    assert field_match(PODS, selector)(POD) is matches


def test_field_selector_on_a_field_without_index_is_refused() -> None:
    with pytest.raises(StatusError, match=r"field label not supported: spec\.hostname"):
        field_match(PODS, "spec.hostname=x")


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("app=web", True),
        ("app!=web", False),
        ("app", True),
        ("!app", False),
        ("app in (api, web)", True),
        ("app notin (api,web),tier!=x", False),
        ("tier notin (x)", True),
    ],
)
def test_label_selector(selector: str, matches: bool) -> None:
    assert label_match(selector)(POD) is matches


def test_label_selector_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(StatusError, match="unable to parse requirement"):
        label_match("a b")
