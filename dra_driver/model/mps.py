"""MPS control daemons: what one is to serve, and where containers meet it. Frozen values, no I/O."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDaemon:
    """One MPS control daemon, of one claim and one of its configs.

    id: ``<claim uid>-<5 hex digits>``, see ``sharing.mps``. devices: UUIDs of its GPUs and MIG devices, sorted.
    gpus: UUIDs of the cards that are in compute mode EXCLUSIVE_PROCESS for it; no card of a MIG device is.
    thread_percentage: default of its clients, None leaves it to the daemon.
    memory_limits: (device UUID, limit such as ``1024M``), default of its clients, sorted by UUID.
    multi_user: one server for clients of several users.
    """

    id: str
    devices: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    thread_percentage: int | None = None
    memory_limits: tuple[tuple[str, str], ...] = ()
    multi_user: bool = False

    @property
    def claim_uid(self) -> str:
        """The claim it belongs to."""
        return self.id.rpartition("-")[0]

    def dump(self) -> dict[str, Any]:
        """Its fields, for JSON."""
        return asdict(self)

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> "MpsDaemon":
        """From what ``dump`` gave, also after JSON; keys that are not known are dropped.

        Raises ValueError, TypeError, KeyError or AttributeError on what is no daemon.
        """
        percentage = raw.get("thread_percentage")
        return cls(
            id=str(raw["id"]),
            devices=tuple(str(uuid) for uuid in raw["devices"]),
            gpus=tuple(str(uuid) for uuid in raw.get("gpus", ())),
            thread_percentage=None if percentage is None else int(str(percentage)),
            memory_limits=tuple((str(uuid), str(limit)) for uuid, limit in raw.get("memory_limits", ())),
            multi_user=bool(raw.get("multi_user", False)),
        )


@dataclass(frozen=True, slots=True)
class MpsFolders:
    """Folders of a daemon that its clients are given, as the host sees them.

    pipe: sockets and pipes of the daemon. shm: memory that it shares with them.
    """

    pipe: str
    shm: str
