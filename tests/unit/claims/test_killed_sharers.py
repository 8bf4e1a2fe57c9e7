"""Claims with shares of one card while the driver is killed before or after each single thing that it does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dra_driver.claims.recovery import Rebuild
from dra_driver.model.claims import ClaimRef
from tests.builders import NODE, config_entry, gpu_uuid, result, time_slicing
from tests.unit.claims.conftest import Node

LONG = config_entry(time_slicing("Long"))
U0 = gpu_uuid(0)
EFFECTS = ("store.put", "store.complete", "store.remove", "control.set_time_slice", "cdi.write", "cdi.remove")


class Killed(BaseException):
    """The process ends here: nobody catches it."""


@dataclass
class Killer:
    """Ends the process at one moment: before effect number n at moment 2n, after it at 2n + 1."""

    at: int
    now: int = 0

    def around(self, effect: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **more: Any) -> Any:
            self._moment()
            done = effect(*arguments, **more)
            self._moment()
            return done

        return guarded

    def _moment(self) -> None:
        self.now += 1
        if self.now - 1 == self.at:
            raise Killed


MOMENTS = 2 * (4 + 2 + 3 + 4)
"""Before and after each effect of the four calls: the first claim sets the slice, the last one sets it back."""


class Life:
    """Two claims that share a card, and the calls that the kubelet makes for them."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self._patch = node, monkeypatch
        shares = [result(shareID=f"share-{number}", consumedCapacity={"shares": "1"}) for number in range(2)]
        self.claims = [node.claim(number, [share], LONG) for number, share in enumerate(shares)]
        first, second = self.claims
        self.calls: list[tuple[str, ClaimRef]] = [
            ("prepare", first),
            ("prepare", second),
            ("unprepare", first),
            ("unprepare", second),
        ]
        self.running: set[str] = set()

    def go_on(self) -> None:
        """Make the calls that are left; each must leave the node as it should be."""
        while self.calls:
            self.call(*self.calls[0])
            del self.calls[0]

    def call(self, what: str, claim: ClaimRef) -> None:
        """One call. Whose pods run then has its file, its record and its slice; nobody else has anything."""
        getattr(self.node.lifecycle, what)(claim)
        (self.running.add if what == "prepare" else self.running.discard)(claim.uid)
        assert self.node.cdi.files.keys() == self.running
        assert {record.claim.uid for record in self.node.store.records()} == self.running
        assert self.node.control.slices.get(U0, 0) == (3 if self.running else 0)

    def go_on_until_killed(self, at: int) -> bool:
        """Whether it came to that; the driver is started again then."""
        killer = Killer(at)
        with self._patch.context() as patch:
            for effect in EFFECTS:
                part, name = effect.split(".")
                owner = getattr(self.node, part)
                patch.setattr(owner, name, killer.around(getattr(owner, name)))
            try:
                self.go_on()
            except Killed:
                pass
            else:
                return False
        node = self.node
        node.restart()
        Rebuild(node.edges, NODE, node.strategies, node.orphans.adopt, node.orphans.discard).run(node.inventory.devices)
        return True


@pytest.mark.parametrize("at", range(MOMENTS))
def test_call_that_was_killed_at_any_moment_is_made_again_and_nothing_is_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    life = Life(node, monkeypatch)
    assert life.go_on_until_killed(at)
    life.go_on()


@pytest.mark.parametrize("at", range(12))
def test_pod_that_goes_after_its_prepare_was_killed_leaves_nothing_to_the_other(
    node: Node, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    life = Life(node, monkeypatch)
    assert life.go_on_until_killed(at)
    _, gone = life.calls.pop(0)
    life.call("unprepare", gone)
    life.calls = [(what, claim) for what, claim in life.calls if claim != gone]
    life.go_on()


def test_these_are_all_moments(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Life(node, monkeypatch).go_on_until_killed(MOMENTS)
