"""The base layer: Debian packages unpacked, without a package manager, a shell or documentation.

``mmdebstrap`` finds and verifies the packages; this module thins them out, compiles Python's library, and adds the few
files that no package brings. Copyright files and package records stay, for people and for scanners.
"""

import fnmatch
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from dra_driver import hostfs
from hack.image import bytecode, cache, elf, layers, programs
from hack.image.errors import ImageError
from hack.image.platforms import Machine, Release

RECIPE: Final = 1
"""Raised with every change of what this module leaves out or adds, since cached layers know nothing of it."""

_SECONDS: Final = 600.0

_RECORD_PACKAGES: Final = (
    'mkdir -p "$1/var/lib/dpkg/status.d"; for deb in "$1"/var/cache/apt/archives/*.deb; do '
    'dpkg-deb --field "$deb" > "$1/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"; done'
)

_UNNEEDED: Final = (
    "./boot/*",
    "./dev/*",
    "./etc/alternatives/*",
    "./etc/apt/*",
    "./etc/cron*",
    "./etc/dpkg/*",
    "./etc/fstab",
    "./etc/hostname",
    "./etc/logrotate.d/*",
    "./etc/resolv.conf",
    "./etc/rmt",
    "./bin/*",
    "./sbin/*",
    "./lib/systemd/*",
    "./usr/lib/systemd/*",
    "./usr/bin/[!p]*",
    "./usr/bin/p[!y]*",
    "./usr/sbin/*",
    "./usr/libexec/*",
    "./usr/lib/dpkg/*",
    "./usr/lib/*/gconv/*",
    "./usr/lib/*/perl-base/*",
    "./usr/lib/*/libdb-5.3.so",
    "./usr/lib/python3*/lib-dynload/_dbm.*",
    "./usr/lib/python3*/test/*",
    "./usr/lib/python3*/pydoc_data/*",
    "./usr/lib/python3*/turtle*",
    "./usr/share/[!d]*",
    "./usr/share/dpkg/*",
    "./usr/share/doc/*/[!c]*",
    "./usr/share/doc/*/changelog*",
    "./var/cache/*",
    "./var/log/*",
    "./var/lib/apt/*",
    "./var/lib/dpkg/[!s]*",
    "./var/lib/dpkg/status",
    "./var/lib/dpkg/status-old",
)

_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_FOLDERS: Final = ("dev", "proc", "sys", "run", "root", "tmp", "var/tmp")


def layer(release: Release, machine: Machine, *, fresh: bool = False) -> tuple[Path, str, bool]:
    """The layer's file, its cache key, and whether it came from the cache.

    fresh: ask Debian for today's packages. Raises ImageError.
    """
    key = cache.key_of("base", RECIPE, bytecode.RECIPE, release.suite, machine.name, release.packages)
    path, found = cache.kept(f"base-{key}.tar.gz", lambda file: _build(release, machine, file), fresh=fresh)
    return path, key, found


def _build(release: Release, machine: Machine, output: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="image-base-") as scratch:
        packed, root = Path(scratch) / "debian.tar", Path(scratch) / "root"
        _debootstrap(release, machine, packed)
        root.mkdir()
        with tarfile.open(packed) as archive:
            wanted = [member for member in archive if _is_wanted(member)]
            archive.extractall(root, members=wanted, filter="tar")
        _finish(release, root)
        _check(root, f"usr/bin/python{release.python}")
        with bytecode.interpreter(release, machine, root) as python:
            bytecode.compile_tree(python, root, [f"usr/lib/python{release.python}"])
        layers.write(root, output)


def _debootstrap(release: Release, machine: Machine, output: Path) -> None:
    mmdebstrap = programs.find("mmdebstrap", "it is a Debian package of that name: apt-get install mmdebstrap")
    command: list[str | Path] = [
        mmdebstrap,
        "--quiet",
        "--variant=extract",
        f"--architectures={machine.name}",
        f"--include={','.join(release.packages)}",
        "--aptopt=Acquire::Languages none",
        f"--extract-hook={_RECORD_PACKAGES}",
        release.suite,
        output,
    ]
    programs.run(command, _SECONDS)


def _is_wanted(member: tarfile.TarInfo) -> bool:
    if member.isdev() or any(fnmatch.fnmatchcase(member.name, pattern) for pattern in _UNNEEDED):
        return member.name.endswith("/copyright")
    return True


def _check(root: Path, program: str) -> None:
    """The kernel must find the loader of the interpreter, or no container of this image would start."""
    loader = elf.loader_of(root / program)
    if loader is None or hostfs.resolve_inside(root, loader) is None:
        raise ImageError(f"{program} asks for the loader {loader}, which is not in the packages")


def _finish(release: Release, root: Path) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    shutil.rmtree(root / "var/run", ignore_errors=True)
    (root / "var/run").symlink_to("/run")
    for name in ("bin", "lib", "lib64", "sbin"):
        # From Debian 13 on the packages have everything in usr, and rely on these links.
        if not (root / name).exists() and (root / "usr" / name).is_dir():
            (root / name).symlink_to(f"usr/{name}")
    for name, content in _FILES.items():
        (root / name).write_text(content)
    (root / "etc/os-release").write_text(
        f'PRETTY_NAME="Debian {release.suite}"\nID=debian\nVERSION_CODENAME={release.suite}\n'
    )
    _remove_empty(root / "usr")
    _remove_empty(root / "etc")
    _remove_empty(root / "var")


def _remove_empty(folder: Path) -> None:
    """Folders that held only what was left out."""
    kept = {"tmp", "run"}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and path.name not in kept and not any(path.iterdir()):
            path.rmdir()
