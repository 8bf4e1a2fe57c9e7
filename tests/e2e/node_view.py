"""What the driver keeps on a node, read from outside: state database, CDI files, the simulated cards and their tool."""

from pathlib import Path

from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.devices.driver_tree import CALL_LOG, STATE
from dra_driver_api.names import DRIVER_NAME
from hack.cluster.node import Node


class NodeView:
    """The files of a node with a driver on simulated GPUs."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def folder(self) -> Path:
        """The driver's folder."""
        return self._node.plugins_directory / DRIVER_NAME

    @property
    def tree(self) -> Path:
        """Root of the simulated NVIDIA driver."""
        return self.folder / "simulated-node"

    def rows(self) -> dict[str, str]:
        """Prepared claims: UID -> state."""
        store = Store.open_read_only(self.folder / STATE_FILE)
        try:
            return {record.claim.uid: record.state.value for record in store.records()}
        finally:
            store.close()

    def cdi_files(self) -> list[str]:
        """Names of all files in the node's CDI folder."""
        return sorted(path.name for path in self._node.cdi_directory.iterdir())

    def time_slices(self) -> dict[str, str]:
        """Time slice of each card, 0 to 3, by UUID."""
        return self._states("time_slice")

    def compute_modes(self) -> dict[str, str]:
        """Compute mode of each card, such as Default, by UUID."""
        return self._states("compute_mode")

    def daemon_folders(self) -> list[Path]:
        """The folders of MPS control daemons."""
        folder = self.folder / "mps"
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def tool_calls(self) -> list[str]:
        """Command lines that the stand-in for nvidia-smi was run with."""
        return (self.tree / CALL_LOG).read_text(encoding="utf-8").splitlines()

    def left_behind(self) -> list[str]:
        """What a node must not have once there is no claim any more."""
        slices = {uuid: found for uuid, found in self.time_slices().items() if found != "0"}
        modes = {uuid: found for uuid, found in self.compute_modes().items() if found != "Default"}
        found = {
            "rows": self.rows(),
            "CDI files": self.cdi_files(),
            "time slices": slices,
            "compute modes": modes,
            "MPS daemons": self.daemon_folders(),
        }
        return [f"{what}: {content}" for what, content in found.items() if content]

    def _states(self, name: str) -> dict[str, str]:
        cards = (self.tree / STATE / "gpus").read_text(encoding="utf-8").splitlines()
        uuids = [line.split()[0] for line in cards]
        return {uuid: (self.tree / STATE / uuid / name).read_text("utf-8").strip() for uuid in uuids}
