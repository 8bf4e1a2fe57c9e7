"""Unpacks on the machine with the GPUs. Standard library only: nothing is installed there yet."""

import json
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from hack.hardware import layout
from hack.hardware.errors import HardwareError

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = (3, 12)
"""Which Python the pack's packages are for."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DONE: Final = "unpacked.json"


def unpack(pack: Path, target: Path) -> Path:
    """Unpack all archives into a folder, unless the same are there already; the folder. Raises HardwareError."""
    try:
        facts = (pack / layout.FACTS).read_text(encoding="ascii")
        json.loads(facts)
    except (OSError, ValueError) as error:
        raise HardwareError(f"{pack} holds no pack: {error}; make one: python -m hack.hardware pack") from error
    done = target / _DONE
    if done.is_file() and done.read_text(encoding="ascii") == facts:
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(_extract, pack / name, target) for name in layout.ARCHIVES]:
            each.result()
    for name in layout.NODE_NAMES:
        os.link(target / layout.PROGRAMS / layout.NODE, target / layout.PROGRAMS / name)
    done.write_text(facts, encoding="ascii")
    return target


def install(system: Path, root: Path = Path("/")) -> list[str]:
    """Copy files that Debian's packages would bring to where they belong; those copied.

    What is there already, a program anywhere on PATH included, is left as it is.
    """
    copied = []
    for source in sorted(path for path in system.rglob("*") if path.is_file()):
        inside = source.relative_to(system)
        target = root / inside
        if target.exists() or (target.parent.name in ("bin", "sbin") and shutil.which(inside.name, path=_PATH)):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        copied.append(f"/{inside}")
    return copied


def _extract(archive: Path, target: Path) -> None:
    try:
        with tarfile.open(archive, "r:xz") as file:
            file.extractall(target, filter="tar")
    except (OSError, tarfile.TarError, EOFError) as error:
        raise HardwareError(f"{archive}: {error}") from error
