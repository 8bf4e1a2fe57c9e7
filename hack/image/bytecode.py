"""Compiles the Python files of an image with the image's own interpreter, so that no container does it at its start.

The interpreter runs from its unpacked root through its own loader: neither root rights nor a matching Python here are
needed.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.image import layers, platforms, programs
from hack.image.errors import ImageError
from hack.image.platforms import Machine, Release

RECIPE: Final = 1
_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python in an unpacked root of this machine's architecture."""

    root: Path
    release: Release
    machine: Machine

    def run(self, arguments: Sequence[str | Path]) -> str:
        """Run it with these arguments; its output. Raises ImageError, also when the root has no loader."""
        folders = [self.root / top / self.machine.triplet for top in ("lib", "usr/lib")]
        command: list[str | Path] = [
            # By its real place: the usual link to it is absolute and would lead to the loader of this machine.
            self._loader(folders),
            "--library-path",
            ":".join(str(folder) for folder in folders),
            self.root / f"usr/bin/python{self.release.python}",
        ]
        # Hash randomisation would put sets into the bytecode in another order each time.
        environ = {"PYTHONHOME": str(self.root / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return programs.run([*command, "-s", *arguments], _SECONDS, environ)

    def _loader(self, folders: Sequence[Path]) -> Path:
        for folder in folders:
            if (folder / self.machine.loader).is_file():
                return folder / self.machine.loader
        raise ImageError(
            f"{self.root}: no {self.machine.loader} in lib or usr/lib/{self.machine.triplet}: not such a root"
        )


@contextlib.contextmanager
def interpreter(release: Release, machine: Machine, root: Path) -> Iterator[Interpreter]:
    """The interpreter of ``root``; for another architecture, this machine's own of the same release.

    Bytecode is the same on all of them. Raises ImageError.
    """
    from hack.image import base  # which builds its own layer with this module

    native = platforms.native()
    if machine == native:
        yield Interpreter(root, release, machine)
        return
    path, _, _ = base.layer(release, native)
    with tempfile.TemporaryDirectory(prefix="image-python-") as scratch:
        layers.unpack(path, Path(scratch))
        yield Interpreter(Path(scratch), release, native)


def compile_tree(python: Interpreter, tree: Path, folders: Sequence[str], skip: str = "") -> None:
    """Write bytecode next to the Python files of these folders of ``tree``, never to be checked against them again.

    skip: regular expression of paths to leave out. Files that no Python of this version can read are left as they
    are. The bytecode names the paths that the image will have. Raises ImageError.
    """
    options: list[str | Path] = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    options += ["-s", tree, "-p", "/"]
    if skip:
        options += ["-x", skip]
    python.run([*options, *(tree / folder for folder in folders)])
