"""NVIDIA's nvidia-cuda-mps-control: where it is under the driver root, how it is started, what it answers."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver import hostfs
from dra_driver.model.errors import MpsError
from dra_driver.model.mps import MpsDaemon
from dra_driver.model.texts import in_one_line
from dra_driver.processes import ENVIRONMENT, run_limited

CONTROL: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"
_LIBRARY: Final = "libcuda.so.1"
_LIBRARIES: Final = ("libcuda*.so*", "libnvidia-*.so*")
MARK: Final = "DRA_DRIVER_MPS_FOLDER"
"""In the environment of all processes of a daemon: the folder that they are of."""

_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Programs:
    """The two programs and the library that they need, links resolved, under a driver root as this process sees it."""

    control: Path
    server: Path
    library: Path


class MpsTool:
    """NVIDIA's MPS programs under a driver root. They are looked for each time: the driver can come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def programs(self) -> Programs:
        """Raises MpsError, naming the first file that is missing and where it was looked for."""
        return Programs(
            _found(hostfs.find_binary(self.root, CONTROL), CONTROL, self.root, hostfs.BINARY_DIRECTORIES),
            _found(hostfs.find_binary(self.root, SERVER), SERVER, self.root, hostfs.BINARY_DIRECTORIES),
            _found(hostfs.find_library(self.root, _LIBRARY), _LIBRARY, self.root, hostfs.LIBRARY_DIRECTORIES),
        )

    def link_libraries(self, folder: Path) -> None:
        """Make a folder of links to the driver's libraries, and to no others. Raises MpsError and OSError.

        The programs search it first. In the libraries' own folder there may be the host's C library too, which does
        not go with the loader of a container.
        """
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        directory = self.programs().library.parent
        for pattern in _LIBRARIES:
            for library in directory.glob(pattern):
                target = hostfs.resolve_inside(self.root, library.relative_to(self.root))
                if target is not None:
                    (folder / library.name).symlink_to(target)
        # Where a link of that name leads to another folder, it is not among them.
        with contextlib.suppress(FileExistsError):
            (folder / _LIBRARY).symlink_to(self.programs().library)


@dataclass(frozen=True, slots=True)
class Control:
    """A daemon's control: commands to it, and how it is started. Paths are those that its processes see."""

    programs: Programs
    pipe: Path
    log: Path
    libraries: Path
    folder: Path

    def environment(self, daemon: MpsDaemon | None = None) -> Mapping[str, str]:
        """Of its programs; nothing of our own gets there. daemon: for the daemon itself."""
        folders = dict.fromkeys((str(self.programs.control.parent), str(self.programs.server.parent)))
        environment = {
            "PATH": ":".join((*folders, ENVIRONMENT["PATH"])),
            "LD_LIBRARY_PATH": str(self.libraries),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            MARK: str(self.folder),
        }
        if daemon is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(daemon.devices)
        return environment

    def command(self, daemon: MpsDaemon) -> list[str]:
        """The command line of the daemon, in the foreground."""
        return [str(self.programs.control), "-f", *(["-M"] if daemon.multi_user else [])]

    def ask(self, line: str, timeout_s: float) -> str:
        """What the daemon says to a command, without line ends around it.

        Exit code 0 tells only that there is a daemon. Raises MpsError when there is none, or no answer in time.
        """
        shown = f'{CONTROL} "{line}"'
        try:
            finished = run_limited([str(self.programs.control)], self.environment(), timeout_s, text=f"{line}\n")
        except TimeoutError as error:
            raise MpsError(f"{shown} was ended: {error}") from error
        except OSError as error:
            raise MpsError(f"{self.programs.control} cannot be run: {error.strerror}") from error
        if finished.code != 0:
            raise MpsError(f"{shown} {finished.ending}: {shown_output(finished.output)}")
        return finished.output.strip()


def shown_output(text: str) -> str:
    """The last lines of an output, in one."""
    line = in_one_line(text)
    return line if len(line) <= _SHOWN else f"...{line[3 - _SHOWN :]}"


def _found(path: Path | None, name: str, root: Path, directories: tuple[str, ...]) -> Path:
    if path is None:
        where = ", ".join(directory or "." for directory in directories)
        raise MpsError(f"MPS: {name} is not there (searched {root}: {where}); it comes with the NVIDIA driver")
    return path
