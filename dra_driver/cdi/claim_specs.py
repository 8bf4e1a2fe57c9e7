"""CDI specs of claims: built from the node's driver files, kept in the CDI directory, read back for
recovery.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import yaml

from dra_driver.cdi.directory import CdiDirectory
from dra_driver.cdi.driver_files import DriverFiles
from dra_driver.cdi.spec import ClaimSpec, DeviceEdits, DeviceNode, Edits, Env, Hook, Mount, build_spec
from dra_driver.model.devices import Device
from dra_driver.model.errors import CdiError, DriverError
from dra_driver.model.mps import MpsFolders
from dra_driver.ports import NO_DAEMONS, NO_LIMITS, PlannedSpec
from dra_driver_api import names

log = logging.getLogger(__name__)

LIMIT_VARIABLES: Final = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")
"""What nvidia-cdi-hook reads as soft and hard limit, in MiB. Equal: what was promised to a claim is what it has."""

MPS_PIPE_DIRECTORY: Final = "/tmp/nvidia-mps"  # noqa: S108 - in the container: where CUDA looks by default
_MPS_ENV: Final = Env("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPE_DIRECTORY)
_MPS_MOUNT: Final = ("rw", "nosuid", "nodev", "bind")

_COMMON_EDITS: Final = "\ncontainerEdits:"
_MAX_FILE_BYTES: Final = 4 << 20
_UNREADABLE: Final = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    yaml.YAMLError,
    CdiError,
)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ClaimSpecs:
    """Implements ``ports.CdiSpecs``. ``driver_version`` gives the running driver's, as NVML writes it."""

    def __init__(self, directory: CdiDirectory, files: DriverFiles, driver_version: Callable[[], str]) -> None:
        self._directory = directory
        self._files = files
        self._driver_version = driver_version

    def plan(
        self,
        claim_uid: str,
        devices: Sequence[Device],
        memory_limits: Mapping[str, int] = NO_LIMITS,
        daemons: Mapping[str, MpsFolders] = NO_DAEMONS,
    ) -> ClaimSpec:
        """Build and check; nothing is written. Raises CdiError naming the path that is missing.

        memory_limits: device -> bytes of GPU memory that the container's driver shall keep it to.
        daemons: device -> folders of the MPS control daemon that serves it.
        """
        self._directory.path(claim_uid)
        edits = [
            DeviceEdits(
                name=device.name,
                edits=self._edits(device, memory_limits.get(device.name), daemons.get(device.name)),
            )
            for device in devices
        ]
        return build_spec(claim_uid, edits, self._files.common(self._driver_version()))

    def _edits(self, device: Device, memory_limit: int | None, daemon: MpsFolders | None) -> Edits:
        nodes = self._files.device_nodes(device)
        if daemon is not None:
            # A claim that MPS serves has no share of a device, so no memory limit either.
            return Edits(device_nodes=nodes, env=(_MPS_ENV,), mounts=_mps_mounts(daemon))
        if memory_limit is None:
            return _edits_with(nodes)
        # A spec's variable takes the place of the image's and of the pod's own.
        mebibytes = str(memory_limit >> 20)
        env = tuple(Env(name, mebibytes) for name in LIMIT_VARIABLES)
        return _edits_with(nodes, env, (self._files.memory_limit_hook(self._driver_version(), device.uuid),))

    def why_no_memory_limits(self, driver_version: str) -> str:
        """Why containers cannot be given memory limits by a hook, '' where they can."""
        try:
            self._files.memory_limit_hook(driver_version, "")
        except CdiError as error:
            return str(error)
        return ""

    def look_ahead(self) -> None:
        """Find the driver's files before a claim waits for them. Never raises: claims will be told what is amiss."""
        try:
            self._files.look_ahead(self._driver_version())
        except DriverError as error:
            log.warning("containers cannot be given GPUs: %s", error)

    def write(self, spec: PlannedSpec) -> None:
        """Write atomically. Raises CdiError."""
        self._directory.write(spec.claim_uid, spec.text)

    def remove(self, claim_uid: str) -> None:
        """Remove; missing is success. Raises CdiError."""
        self._directory.remove(claim_uid)

    def exists(self, claim_uid: str) -> bool:
        """Whether the claim's file is there and not empty. Raises CdiError for a UID that is no plain name."""
        return self._directory.exists(claim_uid)

    def holds(self, spec: PlannedSpec) -> bool:
        """Whether the claim's file has exactly the spec's text. Never raises."""
        return self._directory.holds(spec.claim_uid, spec.text)

    def written(self) -> Mapping[str, tuple[str, ...]]:
        """Claim UID -> device names in the file's order; a file that cannot be read as ours maps to ()."""
        return {uid: _devices_in(self._directory, uid) for uid in self._directory.list()}


def _mps_mounts(daemon: MpsFolders) -> tuple[Mount, ...]:
    """The daemon's pipes, and the memory that it shares with its clients in place of the container's own."""
    return (
        Mount(host_path=daemon.shm, container_path="/dev/shm", options=_MPS_MOUNT),  # noqa: S108
        Mount(host_path=daemon.pipe, container_path=MPS_PIPE_DIRECTORY, options=_MPS_MOUNT),
    )


@lru_cache(maxsize=1024)
def _edits_with(device_nodes: tuple[DeviceNode, ...], env: tuple[Env, ...] = (), hooks: tuple[Hook, ...] = ()) -> Edits:
    """One object for each GPU as long as its nodes stay as they are, so that its text is made once."""
    return Edits(device_nodes=device_nodes, env=env, hooks=hooks)


def _devices_in(directory: CdiDirectory, claim_uid: str) -> tuple[str, ...]:
    try:
        document = _load(directory.read(claim_uid, _MAX_FILE_BYTES).decode())
        if document["kind"] != names.CDI_KIND:
            raise CdiError(f"kind is {document['kind']!r}, must be {names.CDI_KIND}")
        return tuple(_short_name(device["name"], claim_uid) for device in document["devices"])
    except _UNREADABLE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        log.warning("CDI spec %s cannot be read as a claim's: %s", directory.path(claim_uid), reason)
        return ()


def _load(text: str) -> Any:
    """The document, its common edits left out where they come last, as in our files: they are most of the
    text.
    """
    head, common_edits, _ = text.partition(_COMMON_EDITS)
    document = yaml.load(head, Loader=_Loader)  # noqa: S506 - a safe loader, with or without libyaml
    if common_edits and not (isinstance(document, dict) and "devices" in document):
        document = yaml.load(text, Loader=_Loader)  # noqa: S506
    return document


def _short_name(name: str, claim_uid: str) -> str:
    prefix = names.cdi_device_name(claim_uid, "")
    if not name.startswith(prefix):
        raise CdiError(f"device {name!r} does not belong to claim {claim_uid}")
    return name.removeprefix(prefix)
