"""The directory of transient CDI specs: one file a claim, written whole or not at all.

What is in the files is not known here. Other programs keep specs in the same directory: only files named as
ours are listed or removed, and of those only regular files: opening a FIFO would wait for ever.
"""

import errno
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
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class CdiDirectory:
    """A directory that container runtimes read, by default ``/etc/cdi`` or ``/var/run/cdi``."""

    def __init__(self, root: Path) -> None:
        """Create ``root`` where it is missing, prove that it can be written, sweep leftover temporary files.

        A full disk is only logged: prepared claims need no new file, and room may come back. Raises SettingError
        naming the path.
        """
        self.root = root
        self._foreign: frozenset[str] = frozenset()
        try:
            self._make_root()
            self._prove_writable()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise SettingError(
                    f"--cdi-root (CDI_ROOT): found {root}, cannot write there: {error.strerror}; must be a directory "
                    f"that this process may create and write and the container runtime reads, e.g. /var/run/cdi"
                ) from error
            log.warning("CDI directory %s is full (%s): claims fail until there is room", root, error.strerror)
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
        """Write the claim's file, readable for all; a directory that has vanished is made again.

        Raises CdiError naming the path, e.g. when the disk is full.
        """
        path = self.path(claim_uid)
        content = text.encode()
        try:
            try:
                write_atomically(path, content)
            except FileNotFoundError:
                self._make_root()
                log.warning("CDI directory %s had vanished and is made again", self.root)
                write_atomically(path, content)
        except OSError as error:
            raise CdiError(f"CDI spec {path} cannot be written: {error.strerror}") from error

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; missing is success. Raises CdiError naming the path, also for what is no file."""
        path = self.path(claim_uid)
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise CdiError(f"CDI spec {path} cannot be removed: it is no regular file; move it away")
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CdiError(f"CDI spec {path} cannot be removed: {error.strerror}") from error

    def exists(self, claim_uid: str) -> bool:
        """Whether the claim's file is a regular file and not empty."""
        try:
            found = self.path(claim_uid).lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size > 0

    def read(self, claim_uid: str, limit: int) -> bytes:
        """The claim's file, of at most ``limit`` bytes. Raises CdiError when it is larger or no regular file, and
        OSError.
        """
        path = self.path(claim_uid)
        if not stat.S_ISREG(path.lstat().st_mode):
            raise CdiError("no regular file")
        # What has taken the file's place since is not followed and not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_size > limit:
                raise CdiError(f"larger than {limit} bytes")
            return file.read(limit)

    def holds(self, claim_uid: str, text: str) -> bool:
        """Whether the claim's file has exactly this text. Never raises."""
        try:
            content = text.encode()
            if self.path(claim_uid).lstat().st_size != len(content):
                return False
            return self.read(claim_uid, len(content)) == content
        except (OSError, ValueError, CdiError):
            return False

    def list(self) -> tuple[str, ...]:
        """UIDs of the claims that have a file, sorted; none when the directory has vanished.

        What is named like a claim's file and is no regular file is logged once and left out. Raises CdiError when
        the directory cannot be read.
        """
        claim_uids: set[str] = set()
        foreign: set[str] = set()
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    uid = _uid_of(entry.name)
                    if uid is not None:
                        (claim_uids if entry.is_file(follow_symlinks=False) else foreign).add(uid)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CdiError(f"CDI directory {self.root} cannot be read: {error.strerror}") from error
        for uid in foreign - self._foreign:
            log.warning("CDI spec %s is no regular file and is left alone: move it away", self.path(uid))
        self._foreign = frozenset(foreign)
        return tuple(sorted(claim_uids))

    def remove_strays(self, living: Collection[str]) -> tuple[str, ...]:
        """Remove our files of claims that are not ``living``, return their UIDs; other programs' files stay.

        Raises CdiError naming the first path that cannot be removed.
        """
        strays = tuple(uid for uid in self.list() if uid not in living)
        for claim_uid in strays:
            self.remove(claim_uid)
            log.info("CDI spec of claim uid %s removed: nothing is prepared under it", claim_uid)
        return strays

    def _make_root(self) -> None:
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)

    def _prove_writable(self) -> None:
        probe = self.root / f".{names.CDI_VENDOR}-{os.getpid()}.probe"
        write_atomically(probe, b"\n")
        probe.unlink(missing_ok=True)

    def _sweep_leftovers(self) -> None:
        """A process killed between writing and renaming leaves its temporary file behind."""
        try:
            files = os.listdir(self.root)
        except OSError as error:
            log.warning("CDI directory %s cannot be searched for leftovers: %s", self.root, error.strerror)
            return
        for file in files:
            path = self.root / file
            try:
                if _LEFTOVER.fullmatch(file) and time.time() - path.lstat().st_mtime > LEFTOVER_SECONDS:
                    path.unlink()
                    log.info("leftover temporary file %s removed", path)
            except OSError as error:
                log.warning("leftover temporary file %s cannot be removed: %s", path, error.strerror)


def _uid_of(file: str) -> str | None:
    """UID of the claim whose file has this name, None for another program's."""
    if not (file.startswith(_FILE_PREFIX) and file.endswith(_FILE_SUFFIX)):
        return None
    uid = file.removeprefix(_FILE_PREFIX).removesuffix(_FILE_SUFFIX)
    return uid if _CLAIM_UID.fullmatch(uid) else None
