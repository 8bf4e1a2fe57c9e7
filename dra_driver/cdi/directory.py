"""The directory of transient CDI specs: one file a claim, written whole or not at all.

What is in the files is not known here. Other programs keep specs in the same directory: only files named as
ours are listed or removed.
"""

import logging
import os
import re
import stat
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dra_driver.hostfs import write_atomically
from dra_driver.model.errors import CdiError, SettingError
from dra_driver_api import names

log = logging.getLogger(__name__)

LEFTOVER_SECONDS: Final = 60.0
"""Age from which a temporary file has no writer any more; a younger one may be another instance's, at work.
"""

_CLAIM_UID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,126}[A-Za-z0-9])?")
_FILE_PREFIX, _FILE_SUFFIX = names.cdi_spec_file("*").split("*")
_LEFTOVER = re.compile(r"\.[a-z0-9_]{8}\.tmp")


class CdiDirectory:
    """A directory that container runtimes read, by default ``/etc/cdi`` or ``/var/run/cdi``."""

    def __init__(self, root: Path) -> None:
        """Create ``root`` where it is missing, prove that it can be written, sweep leftover temporary files.

        Raises SettingError naming the path.
        """
        self.root = root
        try:
            root.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._prove_writable()
        except OSError as error:
            raise SettingError(
                f"--cdi-root (CDI_ROOT): found {root}, cannot write there: {error.strerror}; must be a directory "
                f"that this process may create and write and the container runtime reads, e.g. /var/run/cdi"
            ) from error
        self._sweep_leftovers()

    def path(self, claim_uid: str) -> Path:
        """The claim's file. Raises CdiError for a UID that is no plain name; nothing is touched then."""
        if not _CLAIM_UID.fullmatch(claim_uid):
            raise CdiError(
                f"claim UID {claim_uid[:80]!r} cannot name a CDI spec: must be letters, digits, - and _, "
                f"at most 128, with a letter or digit at the ends"
            )
        return self.root / names.cdi_spec_file(claim_uid)

    def write(self, claim_uid: str, text: str) -> None:
        """Write the claim's file, readable for all. Raises CdiError naming the path, e.g. when the disk is
        full.
        """
        path = self.path(claim_uid)
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            raise CdiError(f"CDI spec {path} cannot be written: {error.strerror}") from error

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; missing is success. Raises CdiError naming the path."""
        path = self.path(claim_uid)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(f"CDI spec {path} cannot be removed: {error.strerror}") from error

    def exists(self, claim_uid: str) -> bool:
        """Whether the claim's file is a regular file and not empty."""
        try:
            found = self.path(claim_uid).lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0

    def list(self) -> tuple[str, ...]:
        """UIDs of the claims that have a file, sorted. Raises CdiError when the directory cannot be read."""
        try:
            files = os.listdir(self.root)
        except OSError as error:
            raise CdiError(f"CDI directory {self.root} cannot be read: {error.strerror}") from error
        claim_uids = (
            file.removeprefix(_FILE_PREFIX).removesuffix(_FILE_SUFFIX)
            for file in files
            if file.startswith(_FILE_PREFIX) and file.endswith(_FILE_SUFFIX)
        )
        return tuple(sorted(uid for uid in claim_uids if _CLAIM_UID.fullmatch(uid)))

    def remove_strays(self, living: Collection[str]) -> tuple[str, ...]:
        """Remove our files of claims that are not ``living``, return their UIDs; other programs' files stay.

        Raises CdiError naming the first path that cannot be removed.
        """
        strays = tuple(uid for uid in self.list() if uid not in living)
        for claim_uid in strays:
            self.remove(claim_uid)
            log.info("CDI spec of claim uid %s removed: nothing is prepared under it", claim_uid)
        return strays

    def _prove_writable(self) -> None:
        probe = self.root / f".{names.CDI_VENDOR}-{os.getpid()}.probe"
        write_atomically(probe, b"\n")
        probe.unlink(missing_ok=True)

    def _sweep_leftovers(self) -> None:
        """A process killed between writing and renaming leaves its temporary file behind."""
        for file in os.listdir(self.root):
            path = self.root / file
            try:
                if _LEFTOVER.fullmatch(file) and time.time() - path.lstat().st_mtime > LEFTOVER_SECONDS:
                    path.unlink()
                    log.info("leftover temporary file %s removed", path)
            except OSError as error:
                log.warning("leftover temporary file %s cannot be removed: %s", path, error.strerror)
