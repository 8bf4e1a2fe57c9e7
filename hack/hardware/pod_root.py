"""The root file system of pods: this machine's Python, what one program loads of its library, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hack.hardware import gpu_work
from hack.hardware.errors import HardwareError

PROGRAM: Final = "gpu-work"
"""Where the images have ``gpu_work``, below ``/``."""

_PYTHON: Final = Path("/usr/bin/python3")
_FOLDERS: Final = ("dev", "etc", "proc", "run", "sys", "tmp")
_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\n",
    "etc/group": "root:x:0:\n",
}
_OF_NVIDIA: Final = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
"""What NVIDIA's libraries link to, and Python need not."""
_SECONDS: Final = 60.0
_LOADED: Final = """\
import sys
sys.path.insert(0, "FOLDER")
import gpu_work
import encodings.ascii, encodings.latin_1, encodings.utf_8
found = {getattr(module, "__file__", None) for module in sys.modules.values()}
print("\\n".join(sorted(filter(None, found))))
"""


def make(target: Path) -> Path:
    """Fill a folder; the path that Python has in it. Raises HardwareError."""
    if not _PYTHON.exists():
        raise HardwareError(f"{_PYTHON} is missing: pods run the system's Python")
    python = Path(os.path.realpath(_PYTHON))
    folder = str(Path(gpu_work.__file__).parent)
    modules = _run(str(python), "-IB", "-c", _LOADED.replace("FOLDER", folder)).splitlines()
    own = [Path(module) for module in modules if not module.startswith(folder)]
    programs = [python, *(path for path in own if ".so" in path.name)]
    for name in _FOLDERS:
        (target / name).mkdir(parents=True, exist_ok=True)
    for inside, content in _FILES.items():
        (target / inside).write_text(content, encoding="utf-8")
    for path in {*programs, *own, *libraries(programs)}:
        copy(path, target)
    return python


def libraries(programs: Iterable[Path]) -> set[Path]:
    """What programs are linked to, the loader among it, and glibc's parts that NVIDIA's libraries need."""
    found = set()
    for program in programs:
        # "libm.so.6 => /lib/.../libm.so.6 (0x...)", and "/lib64/ld-linux-x86-64.so.2 (0x...)" for the loader.
        found |= {
            Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", _run("ldd", str(program)), re.MULTILINE)
        }
    glibc = next((path.parent for path in found if path.name == "libc.so.6"), None)
    if glibc is None:
        raise HardwareError(f"{sys.executable}: links to no glibc")
    return found | {glibc / name for name in _OF_NVIDIA if (glibc / name).exists()}


def copy(path: Path, target: Path, root: Path = Path("/")) -> None:
    """Copy a file to the same place below ``target``, with the links that lead to it, and a module's bytecode."""
    at = Path()
    parts = list(path.relative_to(root).parts)
    while parts:
        at /= parts.pop(0)
        if (root / at).is_symlink():
            link = os.readlink(root / at)
            (target / at).parent.mkdir(parents=True, exist_ok=True)
            if not (target / at).is_symlink():
                (target / at).symlink_to(link)
            whole = os.path.normpath(os.path.join("/", at.parent, link)).lstrip("/")
            at, parts = Path(), [*Path(whole).parts, *parts]
    (target / at).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(root / at, target / at)
    for compiled in (root / at.parent / "__pycache__").glob(f"{at.stem}.*.pyc") if at.suffix == ".py" else ():
        (target / at.parent / "__pycache__").mkdir(exist_ok=True)
        shutil.copy2(compiled, target / at.parent / "__pycache__")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise HardwareError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise HardwareError(f"{command[0]}: exit code {done.returncode}: {' '.join(done.stderr.split())[-500:]}")
    return done.stdout
