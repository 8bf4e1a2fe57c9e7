"""The seam between the facade and what runs a daemon's supervisor: a process of this node, or a Deployment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dra_driver.model.mps import MpsDaemon


class Launcher(Protocol):
    """Has ``dra-driver mps-daemon DIR`` run for each daemon. Every call may be made again after a kill at any point.

    directory: the daemon's folder as this process sees it. It is whole (daemon.json, pipe, log, shm mounted) when
    ``launch`` is called, and may be half gone, or gone, when ``end`` is.
    """

    @property
    def name(self) -> str:
        """``process`` or ``deployment``; daemon.json keeps it, so that a daemon is ended by what launched it."""

    def launch(self, daemon: MpsDaemon, directory: Path) -> None:
        """Have the supervisor run. Does not wait for it. Raises MpsError, or ApiError."""

    def why_not_ready(self, daemon_id: str, directory: Path) -> str:
        """What it waits for, in words, '' when that is not known. Asked again and again while someone waits.

        Raises MpsError, or ApiError, for what waiting will not mend.
        """

    def end(self, daemon_id: str, directory: Path, timeout_s: float) -> None:
        """End supervisor and daemon, which was sent ``quit`` before, and wait until both are gone.

        One that is not there is success. Raises MpsError when something is still there after ``timeout_s`` seconds,
        or ApiError.
        """

    def present(self) -> Sequence[MpsDaemon]:
        """The daemons that this launcher knows of on this node; what it does not know of one is empty."""
