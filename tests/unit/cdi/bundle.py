"""A container as a runtime makes it, short of starting it: mounts bound into a root file system, then the hooks called.

Run as a program with a description on standard input, in mounts of its own that go with the process; then probe
programs are run inside the root, as the container's user would. Needs root.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.spec import Edits
from dra_driver.hostfs import resolve_inside

_CLONE_NEWNS: Final = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_SECONDS: Final = 60


@dataclass(frozen=True)
class Seen:
    """What came of it. hooks: exit code and output of each call. probes: output of each program run inside."""

    hooks: list[tuple[int, str]]
    probes: list[str]


def create(rootfs: Path, edits: Edits, seen: Mapping[str, str], probes: Sequence[Sequence[str]] = ()) -> Seen:
    """Make a container of ``rootfs``. seen: host path -> where it is in this test, prefixes allowed.

    probes: command lines run inside, after the hooks, with an empty environment.
    """
    description = {
        "rootfs": str(rootfs),
        "mounts": [(_seen(mount.host_path, seen), mount.container_path) for mount in edits.mounts],
        "hooks": [(_seen(hook.path, seen), hook.args, hook.env) for hook in edits.hooks],
        "probes": [list(probe) for probe in probes],
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.cdi.bundle"],
        input=json.dumps(description),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return Seen([(code, output) for code, output in answer["hooks"]], answer["probes"])


def _seen(path: str, seen: Mapping[str, str]) -> str:
    for prefix, place in seen.items():
        if path == prefix or path.startswith(prefix.rstrip("/") + "/"):
            return place + path[len(prefix.rstrip("/")) :]
    return path


def main() -> None:
    """Do what standard input describes."""
    given = json.load(sys.stdin)
    rootfs = Path(given["rootfs"])
    _check(ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS))
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    _mount(str(rootfs), str(rootfs), _MS_BIND | _MS_REC)
    for source, place in given["mounts"]:
        _mount(source, str(_mountpoint(rootfs, place, Path(source).is_dir())), _MS_BIND | _MS_REC)
    bundle = rootfs.parent
    (bundle / "config.json").write_text(json.dumps({"ociVersion": "1.2.0", "root": {"path": str(rootfs)}}))
    state = {"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": os.getpid(), "bundle": str(bundle)}
    hooks = [_hook(path, args, env, state) for path, args, env in given["hooks"]]
    probes = [_inside(rootfs, probe) for probe in given["probes"]]
    json.dump({"hooks": hooks, "probes": probes}, sys.stdout)


def _mountpoint(rootfs: Path, place: str, directory: bool) -> Path:
    """Made where it is missing, as runtimes do it: links of the image are followed inside the root."""
    path = rootfs
    for part in Path(place).parts[1:-1]:
        found = resolve_inside(rootfs, (path / part).relative_to(rootfs))
        path = found if found is not None else path / part
        path.mkdir(exist_ok=True)
    last = path / Path(place).name
    found = resolve_inside(rootfs, last.relative_to(rootfs))
    if found is not None:
        return found
    last.mkdir() if directory else last.touch()
    return last


def _hook(path: str, args: Sequence[str], env: Sequence[str], state: Mapping[str, Any]) -> tuple[int, str]:
    done = subprocess.run(
        args,
        executable=path,
        env=dict(entry.split("=", 1) for entry in env),
        input=json.dumps(state),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def _inside(rootfs: Path, command: Sequence[str]) -> str:
    def enter() -> None:
        os.chroot(rootfs)
        os.chdir("/")

    done = subprocess.run(
        command,
        env={},
        preexec_fn=enter,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return done.stdout.strip()


def _mount(source: str | None, target: str, flags: int) -> None:
    encoded = None if source is None else source.encode()
    _check(ctypes.CDLL(None, use_errno=True).mount(encoded, target.encode(), None, flags, None), target)


def _check(code: int, what: str = "unshare") -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
