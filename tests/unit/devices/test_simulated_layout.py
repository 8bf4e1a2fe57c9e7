"""A simulated card whose MIG devices are made and destroyed while the node runs."""

import logging
from pathlib import Path
from typing import Final

import pytest

from dra_driver.devices.driver_tree import STATE
from dra_driver.devices.simulated import SimulatedNode

FIRST: Final = [f"gpu-0-mig-1g5gb-19-{start}" for start in range(7)]


class Node:
    """Eight A100 in MIG mode, materialised."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.start()

    def start(self) -> None:
        """As a program that starts anew finds it."""
        node = SimulatedNode.load("a100x8-mig")
        node.materialise(self.root)
        self.source = node.source()

    @property
    def layout(self) -> Path:
        """Where the layout of the first card can be said."""
        card = self.source.scan().gpus[0]
        return self.root / STATE / card.uuid / "mig_layout"

    def first(self) -> list[str]:
        """What the first card offers."""
        return [name for name in self.source.scan().devices if name.startswith("gpu-0")]

    def instances(self) -> list[str]:
        """The GPU instances that the kernel shows of it."""
        folder = self.root / "proc/driver/nvidia/capabilities/gpu0/mig"
        return sorted(path.name for path in folder.glob("gi*") if (path / "ci0/access").is_file())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_layout_of_a_card_is_what_its_state_says_until_that_is_gone(node: Node) -> None:
    node.layout.write_text("[{profile: 2g.10gb, starts: [0]}, {profile: 1g.5gb, starts: [3, 6]}]")
    assert node.first() == ["gpu-0-mig-2g10gb-14-0", "gpu-0-mig-1g5gb-19-3", "gpu-0-mig-1g5gb-19-6"]
    node.layout.unlink()
    assert node.first() == FIRST


def test_devices_that_stay_keep_uuid_and_gpu_instance(node: Node) -> None:
    before = node.source.scan().devices["gpu-0-mig-1g5gb-19-6"]
    node.layout.write_text("[{profile: 1g.5gb, starts: [6]}]")
    assert node.source.scan().devices["gpu-0-mig-1g5gb-19-6"] == before


def test_capability_files_come_and_go_with_the_gpu_instances(node: Node) -> None:
    others = node.root / "proc/driver/nvidia/capabilities/gpu1/mig/gi7/access"
    minor = others.read_text()
    node.layout.write_text("[{profile: 1g.5gb, starts: [6]}]")
    node.source.scan()
    assert node.instances() == ["gi13"]
    node.layout.write_text("[{profile: 3g.20gb, starts: [0]}, {profile: 1g.5gb, starts: [6]}]")
    node.source.scan()
    assert node.instances() == ["gi13", "gi7"]
    assert others.read_text() == minor


def test_card_without_mig_devices_is_in_mig_mode_all_the_same(node: Node) -> None:
    node.layout.write_text("[]")
    assert node.first() == []
    assert node.source.scan().gpus[0].mig_enabled
    assert node.instances() == []


def test_layout_outlives_the_program_and_what_was_before_it_returns(node: Node) -> None:
    layout = node.layout
    layout.write_text("[{profile: 1g.5gb, starts: [6]}]")
    node.source.scan()
    node.start()
    assert node.first() == [FIRST[6]]
    layout.unlink()
    node.start()
    assert node.first() == FIRST
    assert len(node.instances()) == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[{profile: 9g.5gb, starts: [0]}]", "found '9g.5gb': migProfiles has: 1g.5gb"),
        ("[{profile: 2g.10gb, starts: [0]}, {profile: 1g.5gb, starts: [1]}]", "found 1: overlaps"),
        ("[{profile: 1g.5gb, starts: [0], gi: 7}]", "mig.0.gi is not a known key (known: profile, starts)"),
        ("[{", "not YAML"),
    ],
    ids=["profile", "overlap", "key", "yaml"],
)
def test_wrong_layout_is_told_once_and_left_aside(
    node: Node, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    node.layout.write_text(text)
    with caplog.at_level(logging.ERROR):
        assert node.first() == FIRST
        assert node.first() == FIRST
    (message,) = caplog.messages
    assert "mig_layout" in message
    assert told in message
