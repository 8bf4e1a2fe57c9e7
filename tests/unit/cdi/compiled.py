"""Driver trees of libraries that a linker made and a loader loads, and images with a program to load them.

NVIDIA's generator reads SONAMEs from sections, which the small libraries of ``tests.driver_tree`` do not have, and asks
NVML for the driver's version. Needs a C compiler.
"""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from dra_driver.cdi import elf
from hack.image.elf import loader_of
from tests.driver_tree import VERSION, DriverTree, Layout, driver_tree

_LIBRARY: Final = 'const char *of_driver(void) { return "%s"; }\n'
_NVML: Final = """
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 0; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    const char *from = of_driver();
    for (unsigned i = 0; i < length; i++) if (!(text[i] = from[i])) break;
    return 0;
}
"""
_PROBE: Final = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        const char *(*of_driver)(void) = library ? (const char *(*)(void))dlsym(library, "of_driver") : 0;
        printf("%s %s\\n", names[i], of_driver ? of_driver() : dlerror());
    }
    return 0;
}
"""
_STAND_IN: Final = "soname-of-a-library-that-is-put-in-later"
"""So that one run of the compiler makes all libraries."""

PROBE: Final = "/probe"


def compiled_tree(base: Path, layout: Layout, version: str = VERSION) -> DriverTree:
    """A whole installation whose libraries say which driver they are of."""
    tree = driver_tree(base, layout)
    for path in {*tree.root.rglob("*.so.*"), *tree.root.rglob("*.so")}:
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            compile_library(path, version)
    return tree


def compile_library(path: Path, version: str) -> None:
    """Put a library there, with the SONAME of the file that is there, or its own name."""
    soname = (elf.soname(path) if path.exists() else None) or path.name
    write_library(path, _LIBRARY % version + (_NVML if soname == "libnvidia-ml.so.1" else ""), soname)


def write_library(path: Path, source: str, soname: str) -> None:
    """Compile a library of this source to ``path``."""
    library = _compiled(source, ("-shared", "-fPIC", f"-Wl,-soname,{_STAND_IN}"))
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(library.replace(_STAND_IN.encode(), soname.encode().ljust(len(_STAND_IN), b"\0")))


def image(rootfs: Path) -> Path:
    """A root file system with nothing but a C library of Debian's kind, its loader, and ``PROBE``.

    There is always an ``/etc``: the kubelet mounts a hosts file into it.
    """
    for name in ("proc", "sys", "dev", "tmp", "etc"):
        (rootfs / name).mkdir(parents=True)
    probe = rootfs / PROBE.lstrip("/")
    probe.write_bytes(_compiled(_PROBE, ("-ldl",)))
    probe.chmod(0o755)
    loader = Path(loader_of(probe) or "")
    library = Path(_run("gcc", "-print-file-name=libc.so.6")).resolve()
    for source, place in ((loader, loader), (library, Path("/usr/lib") / library.parent.name / "libc.so.6")):
        target = rootfs / place.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755)
    return rootfs


@functools.cache
def _compiled(source: str, options: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        code, output = Path(scratch) / "code.c", Path(scratch) / "output"
        code.write_text(source)
        _run("gcc", "-w", "-o", str(output), str(code), *options)
        return output.read_bytes()


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
