"""The layer with nvidia-cdi-hook. The driver copies the program out of its image to where the host can call it."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from dra_driver.cdi.tools import HOOK
from hack.image import cache, elf, layers
from hack.image.errors import ImageError
from hack.image.platforms import Machine

PLACE: Final = f"usr/bin/{HOOK}"
"""A directory of the image's PATH, which is where the driver looks."""

RECIPE: Final = 1
_REMEDY: Final = "name one built for the image; `python -m hack.cluster tool nvidia` builds one for this machine"


def layer(program: Path, machine: Machine) -> tuple[Path, bool]:
    """The layer's file, and whether it came from the cache. Raises ImageError for what cannot run in the image."""
    try:
        _check(program, machine)
        key = cache.key_of("hook", RECIPE, layers.digest_of(program))
    except OSError as error:
        raise ImageError(f"--{HOOK}: found {program}, {error.strerror}: {_REMEDY}") from error
    return cache.kept(f"hook-{key}.tar.gz", lambda file: _build(program, file))


def _check(program: Path, machine: Machine) -> None:
    try:
        found, loader = elf.machine_of(program), elf.loader_of(program)
    except elf.NotElf as error:
        raise ImageError(f"--{HOOK}: {error}: {_REMEDY}") from error
    if found != machine.elf:
        raise ImageError(
            f"--{HOOK}: found {program} for ELF machine {found}, the image is for {machine.name}, which is "
            f"{machine.elf}: {_REMEDY}"
        )
    if loader is not None and Path(loader).name != machine.loader:
        raise ImageError(
            f"--{HOOK}: found {program}, which asks for the loader {loader}, the image has {machine.loader}: {_REMEDY}"
        )


def _build(program: Path, output: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="image-hook-") as scratch:
        target = Path(scratch) / PLACE
        target.parent.mkdir(parents=True)
        shutil.copyfile(program, target)
        for path in (target, target.parent, target.parent.parent):
            path.chmod(0o755)
        layers.write(Path(scratch), output)
