"""Which rule of a profile a device follows, and the ceiling of clients on a physical GPU."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.model.devices import Device
from dra_driver.sharing.profile import Match, Profile, Rule, Terms, idle_words, share_out
from dra_driver.sharing.shares import WHOLE, ConsumableShares
from tests.builders import gpu_uuid, make_gpu, make_mig

G0, G1 = make_gpu(0), make_gpu(1, product_name="Tesla T4")
PARENT = make_gpu(2, mig_enabled=True)
M0, M1 = make_mig(PARENT, 0), make_mig(PARENT, 4, profile="3g.71gb", profile_id=9)
ALL: list[Device] = [G0, G1, M0, M1]


def profile(*rules: tuple[Match, str]) -> Profile:
    return Profile(
        tuple(
            Rule(index=index, line=2 + 2 * index, match=match, shares=ConsumableShares.parse(shares))
            for index, (match, shares) in enumerate(rules)
        )
    )


def shared(*rules: tuple[Match, str], labels: dict[str, str] | None = None, default: str = "disabled") -> set[str]:
    """Names of the devices with 4 shares."""
    terms = Terms(default=ConsumableShares.parse(default))
    found = share_out(ALL, profile(*rules), labels or {}, terms)
    return {name for name, shares in found.shares.items() if shares.count == 4}


@pytest.mark.parametrize(
    ("match", "meant"),
    [
        ({"minor": 0}, [G0]),
        ({"minor": 2}, [M0, M1]),
        ({"uuid": gpu_uuid(1)}, [G1]),
        ({"uuid": PARENT.uuid}, [M0, M1]),
        ({"uuid": M1.uuid}, [M1]),
        ({"product_name": "Tesla T4"}, [G1]),
        ({"product_name": "Tesla"}, []),
        ({"mig_profile": "1g.18gb"}, [M0]),
        ({"minor": 0, "mig_profile": "1g.18gb"}, []),
        ({"minor": 2, "mig_profile": "3g.71gb"}, [M1]),
        ({"node_labels": (("pool", "dev"),)}, ALL),
        ({"node_labels": (("pool", "prod"),)}, []),
        ({"node_labels": (("pool", "dev"), ("zone", "a"))}, []),
        ({"node_labels": (("pool", "dev"),), "minor": 1}, [G1]),
    ],
    ids=str,
)
def test_rule_means_devices_for_which_all_holds(match: dict[str, Any], meant: list[Device]) -> None:
    assert shared((Match(**match), "4"), labels={"pool": "dev"}) == {device.name for device in meant}


def test_device_that_no_rule_means_takes_the_default() -> None:
    assert shared((Match(minor=0), "disabled"), default="4") == {G1.name, M0.name, M1.name}


def test_order_of_rules_does_not_matter() -> None:
    rules = [(Match(minor=0), "4"), (Match(minor=1), "memory")]
    terms = Terms()
    assert share_out(ALL, profile(*rules), {}, terms).shares == share_out(ALL, profile(*rules[::-1]), {}, terms).shares


def test_two_rules_for_one_device_are_a_problem_of_that_device_that_names_both() -> None:
    found = share_out(ALL, profile((Match(minor=0), "4"), (Match(product_name="NVIDIA H200"), "2")), {}, Terms())
    assert list(found.problems) == ["gpu-0"]
    assert [w for w in ("gpu-0", "rules[0] (line 2)", "rules[1] (line 4)") if w not in found.problems["gpu-0"]] == []
    assert found.shares.keys() == {device.name for device in ALL} - {"gpu-0"}


def test_rules_that_mean_no_device_are_named() -> None:
    found = share_out(ALL, profile((Match(minor=0), "4"), (Match(product_name="L4"), "2")), {}, Terms())
    assert [str(rule) for rule in found.idle] == ["rules[1] (line 4)"]


def test_labels_are_asked_for_only_where_a_rule_needs_them() -> None:
    assert not profile((Match(minor=0), "4")).asks_labels
    assert profile((Match(minor=0), "4"), (Match(node_labels=(("a", "b"),)), "4")).asks_labels


def partitions(number: int) -> list[Device]:
    return [make_mig(PARENT, start) for start in range(number)]


def ceiling(devices: list[Device], *rules: tuple[Match, str], default: str = "disabled", most: int = 48) -> list[str]:
    terms = Terms(default=ConsumableShares.parse(default), max_clients=most)
    return sorted(set(share_out(devices, profile(*rules), {}, terms).problems.values()))


def test_seven_partitions_with_three_shares_are_fine() -> None:
    assert ceiling(partitions(7), default="3") == []


def test_seven_partitions_with_seven_shares_are_one_client_too_many_and_the_arithmetic_is_told() -> None:
    (problem,) = ceiling(partitions(7), default="7")
    assert problem.startswith(
        f"7 MIG devices x 7 shares = 49 clients on {PARENT.uuid} (gpu-2), at most 48 are allowed: "
    )


def test_different_numbers_are_summed_up() -> None:
    devices: list[Device] = [make_mig(PARENT, start, profile="1g" if start < 3 else "2g") for start in range(5)]
    rules = ((Match(mig_profile="1g"), "10"), (Match(mig_profile="2g"), "8"))
    assert ceiling(devices, *rules) == []
    (problem,) = ceiling(devices, *rules, most=45)
    assert problem.startswith("3 MIG devices x 10 shares + 2 MIG devices x 8 shares = 46 clients")


def test_whole_partition_beside_shared_ones_is_a_client_too() -> None:
    (problem,) = ceiling([*partitions(6), M1], (Match(mig_profile="1g.18gb"), "8"))
    assert problem.startswith("6 MIG devices x 8 shares + 1 MIG device x 1 share = 49 clients")


@pytest.mark.parametrize("default", ["disabled", "memory", "unlimited"])
def test_ceiling_is_for_numbers_of_shares(default: str) -> None:
    assert ceiling(partitions(7), default=default, most=1) == []


def test_ceiling_of_one_gpu_leaves_the_others_alone() -> None:
    found = share_out([G0, *partitions(7)], Profile(), {}, Terms(default=ConsumableShares.parse("7")))
    assert found.shares == {"gpu-0": ConsumableShares.parse("7")}
    assert len(found.problems) == 7


@given(st.lists(st.sampled_from(["disabled", "1", "3", "7", "20", "memory"]), min_size=1, max_size=7))
def test_no_gpu_ever_gets_more_clients_than_allowed(words: list[str]) -> None:
    devices = partitions(len(words))
    rules = [(Match(uuid=device.uuid), word) for device, word in zip(devices, words, strict=True)]
    found = share_out(devices, profile(*rules), {}, Terms(max_clients=20))
    assert sum(shares.count for shares in found.shares.values()) <= 20
    assert found.shares.keys() | found.problems.keys() == {device.name for device in devices}
    assert not found.shares.keys() & found.problems.keys()


def test_empty_profile_leaves_every_device_whole() -> None:
    found = share_out(ALL, Profile(), {}, Terms())
    assert set(found.shares.values()) == {WHOLE}


def test_thousand_rules_make_no_longer_text_than_nine() -> None:
    many = [Rule(index=n, line=n + 2, match=Match(minor=0), shares=ConsumableShares()) for n in range(1000)]
    found = share_out([make_gpu(0)], Profile(tuple(many)), {}, Terms())
    assert found.problems["gpu-0"].count("rules[") == 8
    assert "rules[7] (line 9) and 992 more: narrow" in found.problems["gpu-0"]
    assert idle_words(many).endswith("rules[7] (line 9) and 992 more mean no device of this node")
    assert idle_words(many[:1]) == "rules[0] (line 2) means no device of this node"


def test_card_may_have_as_many_clients_as_are_allowed_and_not_one_more() -> None:
    migs = [make_mig(PARENT, start) for start in range(6)]
    for devices, shares in (([G0], "48"), (migs, "8")):
        for most, problems in ((48, 0), (47, len(devices))):
            terms = Terms(default=ConsumableShares.parse(shares), max_clients=most)
            assert len(share_out(devices, Profile(), {}, terms).problems) == problems
