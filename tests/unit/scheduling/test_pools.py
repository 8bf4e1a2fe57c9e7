"""Which devices a node can have, and what keeps a device from a request."""

from typing import Any

import pytest

from dra_driver.scheduling import node_terms
from dra_driver.scheduling.consumption import Usage
from dra_driver.scheduling.fitting import Fitting, Kind, Obstacle, Pick
from dra_driver.scheduling.pools import Candidate, candidates, pools
from dra_driver.scheduling.requests import Request, requests_of
from dra_driver.scheduling.selectors import SelectorError
from dra_driver.scheduling.small_cel import compile_selector

Json = dict[str, Any]
DRIVER = "d.example.com"
CLASS: Json = {"metadata": {"name": "any"}, "spec": {}}


def pool_slice(name: str, **spec: Any) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": pool, **spec}}


def device(name: str, **parts: Any) -> Json:
    return {"name": name, **parts}


def names(found: list[Candidate]) -> list[str]:
    return [each.device["name"] for each in found]


def request(**exactly: Any) -> Request:
    claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", **exactly}}]}}}
    ((made,),) = requests_of(claim, {"any": CLASS})
    return made


def judge(wanted: Request, candidate: Candidate, used: Usage | None = None) -> Pick | Obstacle:
    return Fitting(compile_selector).judge(wanted, candidate, used or Usage())


def kind(found: Pick | Obstacle) -> Kind | None:
    return found.kind if isinstance(found, Obstacle) else None


def test_slices_reach_nodes_by_name_by_labels_all_of_them_or_device_by_device() -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    slices = [
        pool_slice("1", nodeName="n", devices=[device("named")]),
        pool_slice("2", pool={"name": "q"}, allNodes=True, devices=[device("everywhere")]),
        pool_slice("3", pool={"name": "r"}, nodeSelector=zone, devices=[device("zonal")]),
        pool_slice(
            "4",
            pool={"name": "s"},
            perDeviceNodeSelection=True,
            devices=[device("own", nodeName="n"), device("other", nodeName="m")],
        ),
    ]
    assert names(candidates(slices, "n", {"zone": "a"})) == ["named", "everywhere", "zonal", "own"]
    assert names(candidates(slices, "m", {"zone": "b"})) == ["everywhere", "other"]


def test_pool_that_misses_a_slice_is_known_and_offers_nothing() -> None:
    slices = [pool_slice("1", nodeName="n", devices=[device("d")], pool={"resourceSliceCount": 2})]
    (found,) = pools(slices)
    assert (found.complete, len(found.specs), found.expected) == (False, 1, 2)
    assert candidates(slices, "n") == []


@pytest.mark.parametrize(
    ("requirement", "labels", "taken"),
    [
        ({"operator": "In", "values": ["a", "b"]}, {"k": "b"}, True),
        ({"operator": "In", "values": ["a"]}, {}, False),
        ({"operator": "NotIn", "values": ["a"]}, {}, True),
        ({"operator": "NotIn", "values": ["a"]}, {"k": "a"}, False),
        ({"operator": "Exists"}, {"k": ""}, True),
        ({"operator": "DoesNotExist"}, {"k": ""}, False),
        ({"operator": "Gt", "values": ["4"]}, {"k": "5"}, True),
        ({"operator": "Gt", "values": ["4"]}, {"k": "4"}, False),
        ({"operator": "Lt", "values": ["4"]}, {"k": "-1"}, True),
        ({"operator": "Lt", "values": ["4"]}, {"k": "none"}, False),
    ],
)
def test_node_selectors_are_read_as_the_scheduler_does(requirement: Json, labels: dict[str, str], taken: bool) -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", **requirement}]}]}
    assert node_terms.matches(selector, "n", labels) is taken


def test_empty_node_selector_term_takes_no_node_and_fields_count() -> None:
    assert not node_terms.matches({"nodeSelectorTerms": [{}]}, "n", {})
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    assert node_terms.matches({"nodeSelectorTerms": [{}, field]}, "n", {})


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({}, False),
    ],
)
def test_tainted_device_needs_a_toleration(toleration: Json, tolerated: bool) -> None:
    tainted = Candidate(
        driver=DRIVER, pool="p", device=device("d", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    )
    found = judge(request(tolerations=[toleration]), tainted)
    assert kind(found) is (None if tolerated else Kind.TAINT)
    if isinstance(found, Obstacle):
        assert found.text == "k=v:NoSchedule"


def test_taint_without_an_effect_that_blocks_keeps_nobody_away() -> None:
    tainted = Candidate(driver=DRIVER, pool="p", device=device("d", taints=[{"key": "k", "effect": "None"}]))
    assert kind(judge(request(), tainted)) is None


def test_partitions_of_a_card_use_its_counters_up() -> None:
    def part(name: str, slots: int) -> Json:
        counters = [{"counterSet": "card", "counters": {"slots": {"value": str(slots)}}}]
        return device(name, consumesCounters=counters)

    shared = [{"name": "card", "counters": {"slots": {"value": "4"}}}]
    slices = [
        pool_slice("1", nodeName="n", sharedCounters=shared, pool={"resourceSliceCount": 2}),
        pool_slice(
            "2",
            nodeName="n",
            devices=[part("whole", 4), part("half", 2), part("other-half", 2)],
            pool={"resourceSliceCount": 2},
        ),
    ]
    whole, half, other = candidates(slices, "n")
    used = Usage(frozenset({half.id}))
    assert kind(judge(request(), whole)) is None
    found = judge(request(), whole, used)
    assert isinstance(found, Obstacle)
    assert (found.kind, found.text) == (Kind.COUNTER, "slots of card: 4 needed, 2 of 4 left")
    assert kind(judge(request(), other, used)) is None


def test_selector_of_a_device_that_is_taken_is_not_come_to() -> None:
    selector = {"cel": {"expression": "device.attributes['d.example.com'].missing == 'x'"}}
    candidate = Candidate(driver=DRIVER, pool="p", device=device("d"))
    with pytest.raises(SelectorError, match=r"request r: CEL runtime error"):
        judge(request(selectors=[selector]), candidate)
    assert kind(judge(request(selectors=[selector]), candidate, Usage(frozenset({candidate.id})))) is Kind.IN_USE


def test_device_that_several_have_uses_its_counters_once() -> None:
    consumes = [{"counterSet": "card", "counters": {"slots": {"value": "4"}}}]
    shared = device(
        "shared", allowMultipleAllocations=True, capacity={"units": {"value": "8"}}, consumesCounters=consumes
    )
    shared["capacity"]["units"]["requestPolicy"] = {"default": "1"}
    sets = [{"name": "card", "counters": {"slots": {"value": "4"}}}]
    two = {"resourceSliceCount": 2}
    slices = [
        pool_slice("1", nodeName="n", sharedCounters=sets, pool=two),
        pool_slice("2", nodeName="n", devices=[shared], pool=two),
    ]
    (candidate,) = candidates(slices, "n")
    first = judge(request(), candidate)
    assert isinstance(first, Pick)
    assert kind(judge(request(), candidate, Usage().plus(candidate.id, first.amounts))) is None
