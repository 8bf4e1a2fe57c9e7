"""Gathers what a machine without a network needs, in a few archives that are small together.

Programs and Debian files are those of this machine; Python packages are for the other machine's Python. Compressing
takes minutes: an archive is made again only when what is in it has changed.
"""

import hashlib
import json
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster import build, node_files, packages, versions
from hack.cluster.build import Product
from hack.cluster.machine import PATH
from hack.hardware import layout, unpack
from hack.hardware.errors import HardwareError
from hack.image import layers, platforms, wheels
from hack.image.platforms import Release

MOST_BYTES: Final = 60 << 20
UBUNTU: Final = Release(suite="noble", python="{}.{}".format(*unpack.PYTHON), glibc=39)
"""The machine with the GPUs, as wheels see it."""

_SOURCE: Final = Path(__file__).parent / "go" / "main.go"
_NOT_NEEDED: Final = ("rich", "shtab", "starlette", "uvicorn")
"""Dependencies for commands that people use, and for the simulator; nothing of that runs there."""
_ALSO_NEEDED: Final = ("cryptography",)
"""The cluster makes its certificates with it."""
_CNI: Final = ("host-local", "loopback", "ptp")
_OF_GLIBC: Final = re.compile(r"/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv))\.so")
_PIP_S: Final = 600.0
_FILTERS: Final = ({"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 27},)


@dataclass(frozen=True, slots=True)
class Archive:
    """key: changes with the content. fill: puts the content into a folder."""

    name: str
    key: str
    fill: Callable[[Path], None]


def write(output: Path, say: Callable[[str], None]) -> int:
    """Write all archives into a folder, those that are there and current left as they are; their bytes together.

    Raises HardwareError, also when they are too large to be carried, ClusterError and ImageError.
    """
    packages.ensure(say)
    output.mkdir(parents=True, exist_ok=True)
    known = _read_facts(output)
    wanted = [_kubernetes(say), _runtime(say), _python()]
    stale = [each for each in wanted if known.get(each.name) != each.key or not (output / each.name).is_file()]
    with tempfile.TemporaryDirectory(prefix="hardware-pack-") as scratch, ProcessPoolExecutor(2) as pool:
        started = []
        for archive in stale:
            say(f"packing {archive.name}")
            folder = Path(scratch) / archive.name
            folder.mkdir()
            archive.fill(folder)
            started.append((archive, pool.submit(compress, folder, output / archive.name)))
        for archive, each in started:
            each.result()
            known[archive.name] = archive.key
            _write_facts(output, known)
    size = sum((output / name).stat().st_size for name in layout.ARCHIVES)
    if size > MOST_BYTES:
        raise HardwareError(f"{output} has {size / 2**20:.1f} MiB, must be under {MOST_BYTES >> 20}")
    return size


def compress(folder: Path, archive: Path) -> None:
    """A folder as tar, sorted by path, through xz."""
    fresh = archive.with_suffix(".new")
    with lzma.open(fresh, "wb", filters=_FILTERS) as file:
        layers.write_tar(folder, file)
    fresh.replace(archive)


def _read_facts(output: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads((output / layout.FACTS).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    return found


def _write_facts(output: Path, facts: dict[str, str]) -> None:
    (output / layout.FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="ascii")


def _kubernetes(say: Callable[[str], None]) -> Archive:
    product = build.have(build.kubernetes_product(versions.KUBERNETES[0]), say)
    return Archive("kubernetes.tar.xz", product.name, lambda folder: _copy_tree(product, folder / layout.PROGRAMS))


def _runtime(say: Callable[[str], None]) -> Archive:
    products = [build.have(product, say) for product in (node_product(), build.tool_product("nvidia"))]
    system = dict(system_files())

    def fill(folder: Path) -> None:
        for product in products:
            _copy_tree(product, folder / layout.PROGRAMS)
        for inside, source in system.items():
            target = folder / layout.SYSTEM / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    sizes = [(inside, source.stat().st_size) for inside, source in system.items()]
    return Archive("runtime.tar.xz", _key([product.name for product in products], sizes), fill)


def node_product() -> Product:
    """containerd, ctr and the shim as one program: a third of the bytes of three."""
    module = [build.SOURCES / "containerd" / name for name in ("go.mod", "go.sum")]
    flags = f"-s -w {build.TOOL_FLAGS['containerd']}"

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="hardware-build-") as work:
            for file in (*module, _SOURCE):
                shutil.copy(file, work)
            output = str(folder / layout.NODE)
            build.go(["build", "-trimpath", "-ldflags", flags, "-o", output, "."], Path(work))

    return Product("hardware-node", _key([file.read_text() for file in (*module, _SOURCE)], flags)[:12], make)


def system_files() -> Iterator[tuple[str, Path]]:
    """runc, ip, busybox and the CNI plugins, with the libraries that they link to: place below / -> file here."""
    programs = {f"usr/sbin/{name}": _program(name) for name in ("runc", "ip")}
    libraries = {library for program in programs.values() for library in linked(program)}
    yield from programs.items()
    yield "bin/busybox", Path("/bin/busybox")
    for name in _CNI:
        yield f"{node_files.CNI_PROGRAMS.lstrip('/')}/{name}", Path(node_files.CNI_PROGRAMS, name)
    for library in sorted(libraries):
        yield f"usr/lib/x86_64-linux-gnu/{Path(library).name}", Path(library)


def linked(program: Path) -> list[str]:
    """Libraries that a program loads at its start, without glibc's."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=30, check=False).stdout
    return [path for path in re.findall(r"=> (/\S+)", listed) if not _OF_GLIBC.search(path)]


def _python() -> Archive:
    wanted = requirements()
    constraints = (wheels.REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    key = _key(wheels.RECIPE, UBUNTU.python, wanted, constraints)
    return Archive("python.tar.xz", key, lambda folder: install(wanted, folder / layout.SITE))


def requirements() -> list[str]:
    """What to install: the driver's dependencies that run there, and the cluster's."""
    names = [each for each in wheels.project()["dependencies"] if re.split(r"[^\w-]", each)[0] not in _NOT_NEEDED]
    return [*names, *_ALSO_NEEDED]


def install(wanted: Sequence[str], target: Path) -> None:
    """Let pip put packages for the other machine's Python into a folder. Raises HardwareError."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    command += ["--target", str(target), "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", UBUNTU.python, "--abi", UBUNTU.python_tag, "--abi", "abi3", "--abi", "none"]
    for platform in platforms.wheel_platforms(platforms.MACHINES["amd64"], UBUNTU):
        command += ["--platform", platform]
    command += ["--constraint", str(wheels.REPOSITORY / "constraints.txt"), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)
    if done.returncode:
        raise HardwareError(f"pip: exit code {done.returncode}: {' | '.join(done.stderr.strip().splitlines()[-5:])}")
    wheels.leave_out(target)
    shutil.rmtree(target / "bin", ignore_errors=True)


def _copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


def _program(name: str) -> Path:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise HardwareError(f"{name} is missing: {', '.join(packages.missing()) or 'install it'}")
    return Path(found)


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
