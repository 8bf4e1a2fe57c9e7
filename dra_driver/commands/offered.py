"""The ResourceSlices that the driver would publish on this node now, found as the driver finds them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import dra_driver
from dra_driver.cdi.tools import HOOK
from dra_driver.claims.store import STATE_FILE, Store
from dra_driver.model.devices import Inventory
from dra_driver.model.errors import ApiError
from dra_driver.model.records import ClaimRecord
from dra_driver.ports import DeviceSource
from dra_driver.settings import Settings
from dra_driver.shared_devices import profile_reader
from dra_driver.sharing.profile import Sharing, Terms, idle_words
from dra_driver.sharing.standing import Standing
from dra_driver.slices.build import PoolSlice
from dra_driver.slices.offering import Offering
from dra_driver.slices.profiles import Decision, Profiles

SETTINGS: Final = frozenset(
    {
        "kubeconfig",
        "kubelet_plugins_directory",
        "state_directory",
        "gates",
        "consumable_shares",
        "sharing_profile",
        "max_clients_per_gpu",
        # What becomes of memory limits depends on the hook program.
        "cdi_edits",
        "cdi_hooks",
        "cdi_hook_path",
        "ctk_path",
        "dev_root",
        "container_dev_root",
    }
)
"""Settings that decide what of the inventory is offered, and how."""


def offered(inventory: Inventory, node_name: str, read: Settings) -> tuple[Sequence[PoolSlice], Sequence[str]]:
    """The slices, and what there is to say of them, a line each.

    The API server is asked only where the sharing profile has node labels, and is taken to know shared devices. Raises
    SettingError for a profile that is wrong, ApiError when the labels are not to be had, StateError when there are
    records of claims that cannot be read.
    """
    profile = profile_reader(read)
    records = _live(read)
    outcome = _Outcome()
    terms = Terms(default=read.consumable_shares, max_clients=read.max_clients_per_gpu)
    profiles = Profiles(terms, profile, lambda: _labels(read, node_name))
    Offering(node_name, profiles, lambda: records, outcome.publish, lambda: False, outcome).show(inventory)
    return outcome.slices, outcome.notes


@contextmanager
def limited_source(read: Settings) -> Iterator[DeviceSource]:
    """The GPUs with what becomes of memory limits on them, asked as the running driver asks; nothing is left behind.

    Raises SettingError or DriverError.
    """
    from dra_driver.cdi.claim_specs import ClaimSpecs
    from dra_driver.cdi.directory import CdiDirectory
    from dra_driver.hardware import Hardware

    with TemporaryDirectory(prefix="dra-driver-") as name:
        scratch = Path(name)
        # Where the driver runs it has made its copy of the hook program, and the same one would be made again.
        copied = (read.plugin_directory / HOOK).exists()
        plugins = read.kubelet_plugins_directory if copied else scratch
        hardware = Hardware(replace(read, state_directory=scratch, kubelet_plugins_directory=plugins))
        try:
            specs = ClaimSpecs(CdiDirectory(scratch / "cdi"), hardware.files, str)
            yield hardware.limited(specs.why_no_memory_limits)
        finally:
            hardware.source.close()


class _Outcome:
    """Takes what the driver would publish and tell."""

    def __init__(self) -> None:
        self.slices: Sequence[PoolSlice] = ()
        self.notes: list[str] = []

    def publish(self, slices: Iterable[PoolSlice]) -> None:
        self.slices = tuple(slices)
        self.notes += [note for each in self.slices for note in each.notes]

    def undecided(self, why: str) -> None:
        raise ApiError(why)

    def decided(self, decision: Decision, sharing: Sharing, standing: Standing) -> None:
        reasons = [*sharing.problems.values(), *standing.withheld.values(), *standing.exceeded.values()]
        self.notes += dict.fromkeys(reasons)
        if sharing.idle:
            self.notes.append(f"sharing profile: {idle_words(sharing.idle)}")


def _labels(read: Settings, node_name: str) -> Mapping[str, str]:
    """Labels of the Node. Raises ApiError; SettingError when it is not known where the API server is."""
    from dra_driver.cluster.connection import connect
    from dra_driver.cluster.nodes import ApiNode

    kubeconfig = str(read.kubeconfig) if read.kubeconfig else None
    return ApiNode(connect(kubeconfig, f"dra-driver/{dra_driver.__version__}"), node_name).labels()


def _live(read: Settings) -> Sequence[ClaimRecord]:
    """Claims that are prepared here; none where no driver has kept any. Raises StateError."""
    path = read.state_directory / STATE_FILE
    if not path.exists():
        return ()
    store = Store.open_read_only(path)
    try:
        return list(store.records())
    finally:
        store.close()
