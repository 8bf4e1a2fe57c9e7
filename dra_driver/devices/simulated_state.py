"""What a simulated node is like at a moment: files below ``var/state`` of its driver tree.

They outlive the program, and a test or an admin can change them behind its back.

    not-loaded           while it is there, the NVIDIA driver is not
    epoch                another text in it: the driver was loaded anew
    <uuid>/gone          while it is there, the card is off the bus; it comes back with default settings
    <uuid>/mig_mode      Enabled or Disabled, instead of what the scenario says
    <uuid>/mig_layout    the card's MIG devices, as in a scenario's ``mig``; one that is wrong is logged
    <uuid>/compute_mode, <uuid>/time_slice
    <uuid>/processes     who computes on the card, see ``simulated_memory``
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dra_driver.devices import scenario as scenarios
from dra_driver.devices.driver_tree import STATE, keep_capabilities
from dra_driver.devices.gpu_reader import OnceLog
from dra_driver.devices.simulated_cards import Card, relaid
from dra_driver.hostfs import write_atomically
from dra_driver.model.devices import ComputeMode
from dra_driver.model.errors import SettingError


class NodeState:
    """The files of a node; there are none until ``root``, of its driver tree, is set."""

    def __init__(self) -> None:
        self.root: Path | None = None
        self._once = OnceLog()

    def path(self, gpu_uuid: str, name: str) -> Path | None:
        """Path of a GPU's file, of the node's for ''; None without a tree."""
        return None if self.root is None else self.root / STATE / gpu_uuid / name

    def text(self, gpu_uuid: str, name: str) -> str | None:
        """The text in a file; None when it cannot be read."""
        path = self.path(gpu_uuid, name)
        try:
            return path.read_text(encoding="utf-8").strip() if path is not None else None
        except OSError:
            return None

    def has(self, gpu_uuid: str, name: str) -> bool:
        """Whether a file is there."""
        path = self.path(gpu_uuid, name)
        return path is not None and path.exists()

    def compute_mode(self, gpu_uuid: str) -> ComputeMode | None:
        """The mode of a card; None when nothing says it, or says what is none."""
        text = self.text(gpu_uuid, "compute_mode") or ""
        if text.isdecimal():
            return ComputeMode(int(text)) if int(text) < len(ComputeMode) else None
        return ComputeMode.__members__.get(text.upper())

    def reset(self, card: Card) -> None:
        """Give a card the settings that it starts with. Raises OSError."""
        folder = self.path(card.gpu.uuid, ".")
        if folder is None or not folder.is_dir():
            return
        mode = card.gpu.compute_mode or ComputeMode.DEFAULT
        write_atomically(folder / "compute_mode", f"{mode.name.title()}\n".encode())
        write_atomically(folder / "time_slice", b"0\n")

    def applied(self, card: Card) -> Card:
        """A card with the MIG devices and the MIG mode that its files say."""
        card = self._laid_out(card)
        mode = self.text(card.gpu.uuid, "mig_mode")
        return card if mode is None else replace(card, gpu=replace(card.gpu, mig_enabled=mode.lower() == "enabled"))

    def show(self, present: Sequence[Card]) -> None:
        """Have the tree's ``proc`` show the MIG devices of these cards, as the kernel would. Raises OSError."""
        if self.root is not None:
            keep_capabilities(self.root, present)

    def _laid_out(self, card: Card) -> Card:
        text = self.text(card.gpu.uuid, "mig_layout")
        if text is None:
            return card
        where = f"{STATE}/{card.gpu.uuid}/mig_layout"
        try:
            return relaid(card, scenarios.parse_layout(text, where), where)
        except SettingError as error:
            self._once.say(logging.ERROR, f"the scenario's MIG devices are kept: {error}")
            return card
