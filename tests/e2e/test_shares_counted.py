"""How many claims the real scheduler puts on devices in shares, and what the real API server keeps of them.

On a Node without a kubelet: nothing is run here, so that eighty pods cost no more than eighty objects.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hack.cluster.cluster import Cluster
from tests.e2e.host_driver import DEVICE_CLASSES
from tests.e2e.manifests import Json, asking, claim, from_template, named, pod, request, template
from tests.e2e.paper_node import PaperNode, on_paper
from tests.e2e.scheduler import FULL, MIG_CARD, extended, several_devices
from tests.e2e.world import World, in_namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def world(cluster: Cluster) -> Iterator[World]:
    """A namespace of its own. No driver runs, so there is none to leave anything behind."""
    with in_namespace(cluster, "counted") as made:
        yield made


@pytest.fixture
def paper(cluster: Cluster, world: World) -> Iterator[PaperNode]:
    """The node, which offers nothing yet."""
    with on_paper(cluster, world, DEVICE_CLASSES) as made:
        yield made


def scenario(path: Path, *groups: Json) -> str:
    """Write one."""
    path.write_text(yaml.safe_dump({"driver": {"version": "580.159.04"}, "gpus": list(groups)}), encoding="utf-8")
    return str(path)


def pods(count: int, kind: str = "share") -> list[Json]:
    """Pods with a claim each from a template."""
    return [pod(f"{kind}-{number}", gpu=from_template(kind)) for number in range(count)]


def wish(name: str, **requests: str) -> Json:
    """Template of a claim that asks for amounts of a GPU."""
    return template(name, request("gpu", **({"capacity": {"requests": requests}} if requests else {})))


@pytest.mark.parametrize("shares", ["1", "10", "memory", "unlimited"])
@pytest.mark.parametrize("scenario", ["h200x8", "a100x8-mig"])
def test_api_server_keeps_all_that_is_published_of_shared_devices(paper: PaperNode, scenario: str, shares: str) -> None:
    count = "6" if (scenario, shares) == ("a100x8-mig", "10") else shares
    sent, kept = paper.offer(scenario, f"--consumable-shares={count}")
    assert kept == sent
    assert all(device["allowMultipleAllocations"] for device in kept)


@extended
def test_eighty_replicas_fit_on_eight_gpus_in_ten_shares_and_the_81st_is_told_why_it_waits(
    paper: PaperNode, world: World
) -> None:
    paper.offer("h200x8", "--consumable-shares=10")
    paper.apply([asking(f"share-{number}") for number in range(81)])
    (why,) = paper.wait_placed(80, 1)
    assert FULL in why
    assert Counter(paper.devices()) == {f"gpu-{number}": 10 for number in range(8)}


@several_devices
def test_seven_mig_devices_in_three_shares_have_room_for_21_pods(
    paper: PaperNode, world: World, tmp_path: Path
) -> None:
    paper.offer(scenario(tmp_path / "card.yaml", MIG_CARD), "--consumable-shares=3")
    world.apply(template("share", request("gpu", deviceClassName="mig.nvidia.com")))
    paper.apply(pods(22))
    (why,) = paper.wait_placed(21, 1)
    assert FULL in why
    assert set(Counter(paper.devices()).values()) == {3}


@several_devices
def test_shares_of_mig_devices_that_must_match_are_of_one_card(paper: PaperNode, world: World, tmp_path: Path) -> None:
    two = {**MIG_CARD, "count": 2, "mig": [{"profile": "1g.5gb", "starts": [0, 1]}]}
    _, kept = paper.offer(scenario(tmp_path / "cards.yaml", two), "--consumable-shares=2")
    parents = {each["name"]: each["attributes"]["parentUUID"]["string"] for each in kept}
    mig = {"deviceClassName": "mig.nvidia.com"}
    # Three of the first card's four shares are taken: two more shares of one card are those of the second.
    world.apply(template("share", request("gpu", **mig)))
    paper.apply(pods(3))
    paper.wait_placed(3, 0)
    alike = [{"requests": ["a", "b"], "matchAttribute": "gpu.nvidia.com/parentUUID"}]
    world.apply(claim("pair", request("a", **mig), request("b", **mig), constraints=alike))
    paper.apply([pod("pair", gpus=named("pair"))])
    paper.wait_placed(4, 0)
    taken = [parents[device] for _, device in world.allocated("pair")]
    assert taken == [parents["gpu-1-mig-1g5gb-19-0"]] * 2


def test_claims_of_two_shares_fill_four_and_one_of_five_waits_with_a_reason(paper: PaperNode, world: World) -> None:
    paper.offer("l4x1", "--consumable-shares=4")
    world.apply(wish("half", shares="2"), wish("too-much", shares="5"))
    paper.apply(pods(1, "too-much"))
    (why,) = paper.wait_placed(0, 1)
    assert FULL in why
    paper.apply(pods(3, "half"))
    assert len(paper.wait_placed(2, 2)) == 2
    assert paper.consumed() == [{"memory": "0", "shares": "2"}] * 2


@extended
@pytest.mark.parametrize(("scenario", "placed"), [("l4x1", 0), ("h200x2", 1)])
def test_pod_that_asks_for_two_by_resource_gets_shares_of_two_gpus_or_waits(
    paper: PaperNode, scenario: str, placed: int
) -> None:
    paper.offer(scenario, "--consumable-shares=10")
    greedy = asking("greedy")
    greedy["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    paper.apply([greedy])
    paper.wait_placed(placed, 1 - placed)
    assert sorted(paper.devices()) == (["gpu-0", "gpu-1"] if placed else [])


def test_request_beyond_the_most_of_a_claim_waits_while_others_are_placed(
    paper: PaperNode, world: World, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text("rules:\n- {match: {minor: 0}, shares: 4, maxPerClaim: 1}\n", encoding="utf-8")
    paper.offer("l4x1", f"--sharing-profile={profile}")
    world.apply(wish("share"), wish("half", shares="2"))
    paper.apply(pods(1, "half"))
    (why,) = paper.wait_placed(0, 1)
    assert FULL in why
    paper.apply(pods(4))
    paper.wait_placed(4, 1)


def test_memory_of_a_gpu_is_given_out_by_what_claims_ask_for_and_all_of_it_to_one_that_asks_for_nothing(
    paper: PaperNode, world: World
) -> None:
    _, (gpu,) = paper.offer("l4x1", "--consumable-shares=memory")
    world.apply(wish("part", memory="10Gi"), wish("share"))
    paper.apply(pods(3, "part"))
    (why,) = paper.wait_placed(2, 1)
    assert FULL in why
    assert paper.consumed() == [{"memory": "10Gi"}] * 2
    world.request_deletion(f"/api/v1/namespaces/{world.namespace}/pods", grace_s=0)
    paper.wait_placed(0, 0)
    paper.apply(pods(2))
    paper.wait_placed(1, 1)
    assert paper.consumed() == [{"memory": gpu["capacity"]["memory"]["value"]}]


@pytest.mark.parametrize(("shares", "made", "placed"), [("unlimited", 30, 30), ("1", 2, 1)])
def test_unlimited_shares_take_every_claim_and_a_single_one_takes_one(
    paper: PaperNode, world: World, shares: str, made: int, placed: int
) -> None:
    paper.offer("l4x1", f"--consumable-shares={shares}")
    world.apply(wish("share"))
    paper.apply(pods(made))
    paper.wait_placed(placed, made - placed)
