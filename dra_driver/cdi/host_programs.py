"""Programs of the host: where they are seen in here, and running them.

A host's program may have been built for a newer C library than the one in here; it is then run with the host's own
loader and libraries.
"""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.hostfs import LIBRARY_DIRECTORIES, DriverRoots, find_file, resolve_inside
from dra_driver.model.texts import in_one_line
from dra_driver.processes import ENVIRONMENT, INITIAL_PID_NAMESPACE, Finished, run_limited

log = logging.getLogger(__name__)

_LOADERS: Final = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
_SHOWN: Final = 200
_LOGGED: Final = re.compile(r'^time="[^"]*" level=\w+ msg=')


class ProgramFailed(Exception):
    """A program cannot be run, failed or took too long; the text names it."""


@dataclass(frozen=True, slots=True)
class HostProgram:
    """seen: where it is seen here. host_path: its path on the host. root: the host's ``/`` as seen here, if another."""

    seen: Path
    host_path: Path
    root: Path | None = None

    @property
    def is_there(self) -> bool:
        """Whether there is such a file; False also where this process may not look."""
        return os.path.isfile(self.seen)

    def run(self, arguments: Sequence[str], timeout_s: float) -> Finished:
        """Run it to its end. Raises ProgramFailed, also for an exit code that is not 0."""
        try:
            finished = run_limited((str(self.seen), *arguments), ENVIRONMENT, timeout_s)
            if finished.code != 0 and "GLIBC_" in finished.output and (loader := self._loader()):
                finished = run_limited((*loader, str(self.seen), *arguments), ENVIRONMENT, timeout_s)
        except TimeoutError as error:
            raise ProgramFailed(f"{self.host_path} was ended: {error}") from error
        except OSError as error:
            raise ProgramFailed(f"{self.host_path} cannot be run: {error.strerror or error}") from error
        if finished.code != 0:
            raise ProgramFailed(f"{self.host_path} {finished.ending}: {_last_line(finished.output)}")
        return finished

    def _loader(self) -> tuple[str, ...]:
        """The host's loader as a command, () where there is none of its own."""
        name = _LOADERS.get(os.uname().machine)
        if self.root is None or name is None:
            return ()
        loader = resolve_inside(self.root, name)
        library = find_file(self.root, LIBRARY_DIRECTORIES, "libc.so.6")
        return () if loader is None or library is None else (str(loader), "--library-path", str(library.parent))


class Toolbox:
    """Where the host's programs are seen.

    shared: a directory that has the same path here and on the host. The host's ``/`` is seen only where it is the
    driver root.
    """

    def __init__(self, roots: DriverRoots, shared: Path) -> None:
        self._roots = roots
        self._shared = shared
        self._host = roots.container_driver_root if roots.driver_root == Path("/") else None

    @property
    def sees_host(self) -> bool:
        """Whether the host's own directories are seen here."""
        return self._host is not None

    def place(self, host_path: Path) -> HostProgram | None:
        """The program at a path of the host, there or not, links resolved if it is; None when it is not seen here."""
        seen = self._seen(host_path)
        return None if seen is None else HostProgram(seen, host_path, self._host)

    def lacks(self, *paths: str) -> bool:
        """Whether the host is known to have none of these paths, relative to its ``/``."""
        host = self._host
        return host is not None and all(resolve_inside(host, path) is None for path in paths)

    def _seen(self, host_path: Path) -> Path | None:
        root, seen_root = self._roots.driver_root, self._roots.container_driver_root
        # Where the driver root is seen at its own path, this process may run on the host itself.
        if root == seen_root and (os.path.isfile(host_path) or _runs_on_host()):
            return host_path
        if host_path.is_relative_to(self._shared):
            return host_path
        if not host_path.is_relative_to(root):
            return None
        relative = host_path.relative_to(root)
        return resolve_inside(seen_root, relative) or seen_root / relative


def _runs_on_host() -> bool:
    """Whether ``/`` is the host's; False also where that cannot be told."""
    try:
        return os.readlink("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE and os.path.samefile("/", "/proc/1/root")
    except OSError:
        return False


def _last_line(output: str) -> str:
    """What the program said last, less what the toolkit's log puts before it. Reasons come at the end of a line."""
    lines = [line for raw in output.splitlines() if (line := in_one_line(raw))]
    said = _LOGGED.sub("", lines[-1]) if lines else "it said nothing"
    return said if len(said) <= _SHOWN else f"...{said[-_SHOWN:]}"
