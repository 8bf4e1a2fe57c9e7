"""A claim lifecycle on fakes and a real state database."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra_driver.claims.daemons import ClaimDaemons
from dra_driver.claims.gpu_steps import GpuSteps
from dra_driver.claims.lifecycle import ClaimLifecycle, Edges
from dra_driver.claims.locks import ClaimLocks, ProcessTurn
from dra_driver.claims.orphans import Orphans
from dra_driver.claims.store import Store
from dra_driver.model.claims import ClaimRef
from dra_driver.model.devices import Inventory
from dra_driver.sharing.memory_limits import NO_EVEN_PARTS, LimitTerms
from dra_driver.sharing.mps import MpsStrategy
from dra_driver.sharing.strategy import Strategies
from dra_driver.sharing.time_slicing import TimeSlicingStrategy
from tests.builders import NODE, claim_ref, make_inventory, resource_claim
from tests.fakes.node import FakeCdi, FakeClaims, FakeClasses, FakeControl, FakeEvents, FakeMpsDaemons


@dataclass
class Node:
    """A node whose driver can be restarted; fakes keep their state over that."""

    directory: Path
    api: FakeClaims = field(default_factory=FakeClaims)
    cdi: FakeCdi = field(default_factory=FakeCdi)
    control: FakeControl = field(default_factory=FakeControl)
    events: FakeEvents = field(default_factory=FakeEvents)
    inventory: Inventory = field(default_factory=make_inventory)
    strategies: Strategies = field(default_factory=lambda: {"TimeSlicing": TimeSlicingStrategy(), "MPS": MpsStrategy()})
    mps: FakeMpsDaemons = field(default_factory=FakeMpsDaemons)
    observe_only: bool = False
    max_clients: int = 48
    classes: FakeClasses = field(default_factory=FakeClasses)
    limit_terms: LimitTerms = NO_EVEN_PARTS
    watched: list[str] = field(default_factory=list)

    def start(self) -> None:
        """(Re)start the driver's part."""
        self.store = Store.open(self.directory / "state.db")
        self.turn = ProcessTurn(self.directory / "turn.lock")
        self.edges = Edges(
            api=self.api,
            cdi=self.cdi,
            store=self.store,
            steps=GpuSteps(self.control, self.store, self.observe_only),
            daemons=ClaimDaemons(self.mps),
            events=self.events,
            inventory=lambda: self.inventory,
            classes=self.classes,
            limit_terms=self.limit_terms,
            watch_memory=lambda: self.watched.append("woken"),
        )
        self.locks = ClaimLocks(self.turn)
        self.lifecycle = ClaimLifecycle(self.edges, self.strategies, NODE, self.locks, self.max_clients)
        self.orphans = Orphans(self.edges, self.locks)

    def stop(self) -> None:
        """Stop it."""
        self.store.close()
        self.turn.close()

    def restart(self) -> None:
        """As a killed and restarted process."""
        self.stop()
        self.start()

    def claim(self, number: int, results: list[object], *configs: object) -> ClaimRef:
        """An allocated claim in the API."""
        return self.api.add(resource_claim(claim_ref(number), results, list(configs)))

    def prepare(self, claim: ClaimRef) -> list[tuple[str, str]]:
        """(device, UUID) of the answer."""
        return [(device.device, device.uuid) for device in self.lifecycle.prepare(claim)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A running node of two GPUs with time slicing switched on."""
    node = Node(tmp_path)
    node.start()
    yield node
    node.stop()
