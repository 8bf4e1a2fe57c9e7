"""Images of the pods: a root file system with Python, the program on top, and what tells one image from another."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.hardware import gpu_work, pod_root
from hack.image import layers, oci, platforms
from hack.image.oci import Image

_LOADER_FILES: Final = (
    ("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"),
    ("etc/ld.so.conf.d/x86_64-linux-gnu.conf", "/usr/local/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu\n"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What an image has. files: path below ``/``, content. asks_for_all: NVIDIA_VISIBLE_DEVICES=all is in it."""

    name: str
    files: tuple[tuple[str, str], ...] = ()
    asks_for_all: bool = False

    @property
    def image(self) -> str:
        """Its name and tag."""
        return f"dra.local/gpu-work:{self.name}"


BARE: Final = Kind("bare")
"""Neither a shell nor /etc/ld.so.conf."""
KINDS: Final = (
    BARE,
    Kind("conf", _LOADER_FILES),
    Kind("bare-all", asks_for_all=True),
    Kind("conf-all", _LOADER_FILES, asks_for_all=True),
)


def archives(output: Path, environment: Mapping[str, str]) -> list[Path]:
    """Write an archive for each kind of image. environment: for all. Raises HardwareError, ImageError."""
    output.mkdir(parents=True, exist_ok=True)
    root, program = output / "root.tar.gz", output / "program.tar.gz"
    with tempfile.TemporaryDirectory(prefix="hardware-pod-") as scratch:
        python = pod_root.make(Path(scratch))
        layers.write(Path(scratch), root)
    source = Path(gpu_work.__file__).read_text(encoding="utf-8")
    _write_layer({pod_root.PROGRAM: source}, program)
    below = [layers.read(root, "Python"), layers.read(program, "gpu-work")]
    written = []
    for kind in KINDS:
        own = []
        if kind.files:
            _write_layer(dict(kind.files), output / f"{kind.name}.tar.gz")
            own = [layers.read(output / f"{kind.name}.tar.gz", "configuration of the loader")]
        image = Image(
            name=kind.image,
            architecture=platforms.native().name,
            layers=[*below, *own],
            entrypoint=(str(python), "-IB", f"/{pod_root.PROGRAM}"),
            environment={**environment, **({"NVIDIA_VISIBLE_DEVICES": "all"} if kind.asks_for_all else {})},
        )
        oci.write(image, output / f"{kind.name}.tar")
        written.append(output / f"{kind.name}.tar")
    return written


def _write_layer(files: Mapping[str, str], output: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hardware-layer-") as name:
        for path, content in files.items():
            file = Path(name) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        layers.write(Path(name), output)
