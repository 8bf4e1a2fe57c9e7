"""What is shown: the commands, the files that they are given, and what of their output is not the same each time."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = Path(__file__).parent / "examples"

_PROGRAM: Final = "dra-driver"
_LIMIT_S: Final = 120.0
_COLUMNS: Final = "110"

_HOST: Final = {
    "etc/containerd/config.toml": 'version = 3\n\n[plugins."io.containerd.cri.v1.runtime"]\nenable_cdi = false\n',
    "var/lib/kubelet/plugins_registry/.keep": "",
    "var/lib/kubelet/plugins/.keep": "",
    "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": (
        '{"Data": {"RegisteredDevices": {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}}}\n'
    ),
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
}
"""A node on which two things are amiss."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture. commands: as they are typed, ``dra-driver`` or ``cat``; code: that the last one ends with.

    files: path -> text, in the folder where they run, beside the examples. last: the last line that is shown.
    unseen: commands that come before, for a file that they write (``> FILE``).
    """

    commands: tuple[str, ...]
    code: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    last: int | None = None
    unseen: tuple[str, ...] = ()


SHOTS: Final = {
    "shot-demo": Shot(("dra-driver demo",), last=18),
    "shot-inventory": Shot(("dra-driver inventory --simulated-node h200x2",)),
    "shot-validate": Shot(("dra-driver validate claim.yaml",), code=1),
    "shot-explain": Shot(
        ("dra-driver explain claim/trainer-gpus -f slices.yaml -f pending.yaml",),
        code=1,
        unseen=("dra-driver inventory -o slices --simulated-node l4x1 --node-name node-1 > slices.yaml",),
    ),
    "shot-migrate": Shot(("cat plugin.yaml", "dra-driver migrate plugin.yaml -o new", "cat new/report.md")),
    "shot-doctor": Shot(("dra-driver doctor --root host --simulated-node h200x2",), code=1, files={
        f"host/{path}": text for path, text in _HOST.items()
    }),
}  # fmt: skip


def taken(shot: Shot) -> list[str]:
    """Lines of the terminal: prompts with commands, and what these print. Raises RuntimeError for another exit code."""
    with tempfile.TemporaryDirectory(prefix="shot-") as folder:
        for path in EXAMPLES.iterdir():
            Path(folder, path.name).write_bytes(path.read_bytes())
        for name, text in shot.files.items():
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, name).write_text(text, encoding="utf-8")
        for command in shot.unseen:
            words, _, file = command.partition(" > ")
            Path(folder, file).write_text(_run(words, folder, 0), encoding="utf-8")
        lines: list[str] = []
        for number, command in enumerate(shot.commands, 1):
            printed = _run(command, folder, shot.code if number == len(shot.commands) else 0)
            lines += [f"$ {command}", *steady(printed, folder).rstrip("\n").split("\n")]
    return lines[: shot.last]


def _run(command: str, folder: str, code: int) -> str:
    words = shlex.split(command)
    argv = [sys.executable, "-m", "dra_driver", *words[1:]] if words[0] == _PROGRAM else words
    paths = os.pathsep.join((str(ROOT), str(ROOT / "api")))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "COLUMNS": _COLUMNS, "HOME": folder}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode != code:
        raise RuntimeError(f"{command}: exit code {done.returncode}, want {code}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def steady(text: str, folder: str) -> str:
    """The text with what differs from run to run, or from machine to machine, made the same. Lengths stay. Pure."""
    text = text.replace(f"{folder}/", "").replace(f"{ROOT}/", "")
    text = _numbered(text, r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "{0:08x}-0000-4000-8000-{0:012x}")
    text = _numbered(text, r"(?<=-gpu-)[b-df-hj-np-tv-z2-9]{5}\b|(?<=-node-a-)[a-z0-9]{5}\b", "{:05x}")
    return re.sub(r"\bin \d+\.\d s\b", "in 4.0 s", text)


def _numbered(text: str, pattern: str, form: str) -> str:
    """Each distinct find replaced by its number, from 1, in this form."""
    found: Sequence[str] = list(dict.fromkeys(re.findall(pattern, text)))
    return re.sub(pattern, lambda match: form.format(found.index(match[0]) + 1), text)
