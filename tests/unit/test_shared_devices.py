"""How devices are shared, as kept for who asks between two looks at the node."""

import pytest

from dra_driver.model.errors import DriverNotReady
from dra_driver.shared_devices import KnownShares
from dra_driver.sharing.profile import Profile, Sharing
from dra_driver.sharing.shares import WHOLE, ConsumableShares, SharesMode
from dra_driver.sharing.standing import Standing
from dra_driver.slices.profiles import Decision


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def undecided(self, why: str) -> None:
        self.told.append(why)

    def decided(self, decision: Decision, sharing: Sharing, standing: Standing) -> None:
        self.told.append(sharing)


TEN = Sharing(shares={"gpu-0": ConsumableShares(SharesMode.COUNT, 10), "gpu-1": ConsumableShares(SharesMode.MEMORY)})


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def known(heard: Heard) -> KnownShares:
    return KnownShares(heard)


def decide(known: KnownShares, sharing: Sharing) -> None:
    known.decided(Decision(sharing=sharing, profile=Profile()), sharing, Standing(withheld={}, exceeded={}))


def test_nobody_knows_the_shares_of_a_device_before_they_were_decided(known: KnownShares) -> None:
    known.undecided("the labels of this Node are not known")
    with pytest.raises(DriverNotReady, match="not decided yet"):
        known.count("gpu-0")


def test_number_of_shares_is_what_was_decided_last_and_0_where_there_was_none(known: KnownShares) -> None:
    decide(known, TEN)
    known.undecided("not now")
    assert [known.count(name) for name in ("gpu-0", "gpu-1", "gpu-2")] == [10, 0, 0]


def test_late_claim_still_has_the_part_that_its_shares_were_when_their_number_is_taken_away(known: KnownShares) -> None:
    decide(known, TEN)
    decide(known, Sharing(shares={"gpu-0": WHOLE}))
    assert known.count("gpu-0") == 10
    decide(known, Sharing(problems={"gpu-0": "two rules"}))
    assert known.count("gpu-0") == 10
    decide(known, Sharing(shares={"gpu-0": ConsumableShares(SharesMode.COUNT, 4)}))
    assert known.count("gpu-0") == 4


def test_shares_are_known_ahead_of_what_live_claims_mean_for_them(known: KnownShares, heard: Heard) -> None:
    known.learn(None)
    with pytest.raises(DriverNotReady):
        known.count("gpu-0")
    known.learn(TEN)
    assert (known.count("gpu-0"), heard.told) == (10, [])


def test_what_was_decided_is_handed_on(known: KnownShares, heard: Heard) -> None:
    known.undecided("not now")
    decide(known, TEN)
    assert heard.told == ["not now", TEN]
