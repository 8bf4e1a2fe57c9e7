"""The Python layers: what the driver depends on, and the driver itself. Wheels come through pip and are unpacked.

Dependencies change seldom and weigh most, so they have a layer of their own that nodes need not pull again.
"""

import csv
import shutil
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hack.image import bytecode, cache, layers, platforms, programs
from hack.image.errors import ImageError
from hack.image.platforms import Machine, Release

REPOSITORY: Final = Path(__file__).resolve().parents[2]
RECIPE: Final = 2
_SECONDS: Final = 600.0

_SOURCES: Final = ["dra_driver", "api", "pyproject.toml", "README.md", "LICENSE"]
_UNNEEDED: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Notes of the installation: paths and choices of this machine."""

_RARELY_LOADED: Final = r"/kubernetes/(client/(models|api)|dynamic|stream|watch|leaderelection|informer)/"
"""A thousand modules that only exotic kubeconfigs load: their bytecode would weigh more than all the rest."""

_ASYNC_CLIENT: Final = "kubernetes/aio"
_ONLY_FOR_IT: Final = (
    "aiohappyeyeballs",
    "aiohttp",
    "aiohttp_retry",
    "aiosignal",
    "attrs",
    "frozenlist",
    "multidict",
    "propcache",
    "yarl",
)
"""Left out: the Kubernetes client a second time, for asyncio, and what that alone needs. Half of all bytes."""

_PROOF: Final = """\
import importlib, pkgutil
import dra_driver, dra_driver_api
from dra_driver.cluster import lean
for package in (dra_driver, dra_driver_api):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
lean.load_whole()
"""
"""Loads every module of the driver, and the Kubernetes client as exotic kubeconfigs need it."""

_LAUNCHER: Final = """\
#!/usr/bin/python{python} -IB
import sys

from dra_driver.commands.main import main

sys.exit(main())
"""


def dependencies(base: Path, base_key: str, release: Release, machine: Machine) -> tuple[Path, bool]:
    """The layer with the run-time dependencies in the versions of constraints.txt, and whether it was cached.

    Raises ImageError.
    """
    wanted = project()["dependencies"]
    constraints = (REPOSITORY / "constraints.txt").read_text()
    key = cache.key_of("dependencies", RECIPE, bytecode.RECIPE, base_key, wanted, constraints)

    def fill(target: Path) -> None:
        command: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
        command += ["--disable-pip-version-check", "--no-deps" if not wanted else "--no-warn-script-location"]
        command += ["--target", target, "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", release.python, "--abi", release.python_tag, "--abi", "abi3", "--abi", "none"]
        for platform in platforms.wheel_platforms(machine, release):
            command += ["--platform", platform]
        command += ["--constraint", REPOSITORY / "constraints.txt", *wanted]
        programs.run(command, _SECONDS)
        leave_out(target)

    return cache.kept(
        f"dependencies-{key}.tar.gz", lambda file: _build([base], release, machine, fill, file, skip=_RARELY_LOADED)
    )


def driver(below: list[Path], release: Release, machine: Machine) -> tuple[Path, bool]:
    """The layer with this project's wheel and its command, and whether it was cached.

    below: the layers it is to run on. Raises ImageError, also when something the driver loads is not in them.
    """
    names = [path.name for path in below]
    key = cache.key_of("driver", RECIPE, bytecode.RECIPE, names, cache.files_key(REPOSITORY, _SOURCES))

    def fill(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="image-wheel-") as scratch:
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
            programs.run([*command, "--wheel-dir", scratch, REPOSITORY], _SECONDS)
            wheels = list(Path(scratch).glob("*.whl"))
            if len(wheels) != 1:
                raise ImageError(f"pip made {len(wheels)} wheels of {REPOSITORY}, must be one")
            with zipfile.ZipFile(wheels[0]) as archive:
                archive.extractall(target)
        command_file = target.parents[3] / "local/bin/dra-driver"
        command_file.parent.mkdir(parents=True)
        command_file.write_text(_LAUNCHER.format(python=release.python))
        command_file.chmod(0o755)

    return cache.kept(f"driver-{key}.tar.gz", lambda file: _build(below, release, machine, fill, file, proof=_PROOF))


def project() -> dict[str, Any]:
    """The ``project`` table of pyproject.toml."""
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"])


def _build(
    below: list[Path],
    release: Release,
    machine: Machine,
    fill: Callable[[Path], None],
    output: Path,
    *,
    skip: str = "",
    proof: str = "",
) -> None:
    """Fill a layer, compile it but for ``skip``, and run ``proof`` on it and the layers below."""
    with tempfile.TemporaryDirectory(prefix="image-python-") as scratch:
        root, tree = Path(scratch) / "root", Path(scratch) / "tree"
        target = tree / release.site_packages
        target.mkdir(parents=True)
        fill(target)
        _tidy(target)
        root.mkdir()
        for layer in below:
            layers.unpack(layer, root)
        with bytecode.interpreter(release, machine, root) as python:
            bytecode.compile_tree(python, tree, [release.site_packages], skip)
            if proof and python.root == root:
                path = [str(tree / release.site_packages), str(root / release.site_packages)]
                python.run(["-c", f"import sys; sys.path[:0] = {path}\n{proof}"])
        layers.write(tree, output)


def leave_out(target: Path) -> None:
    """Remove the second Kubernetes client, and its packages as their own records list them."""
    shutil.rmtree(target / _ASYNC_CLIENT, ignore_errors=True)
    for name in _ONLY_FOR_IT:
        for record in target.glob(f"{name}-*.dist-info/RECORD"):
            for line in csv.reader(record.read_text().splitlines()):
                path = target / line[0]
                if path.is_relative_to(target):
                    path.unlink(missing_ok=True)
    for folder in sorted((path for path in target.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _tidy(target: Path) -> None:
    """Leave what the interpreter reads, in modes that no umask decides."""
    shutil.rmtree(target / "bin", ignore_errors=True)
    for path in target.rglob("*"):
        if path.is_symlink():
            continue
        if path.parent.suffix == ".dist-info" and path.name in _UNNEEDED:
            path.unlink()
        else:
            path.chmod(0o755 if path.is_dir() else 0o644)
