"""A tiny image for tests: static busybox, and ``gpu-report``, which tells what GPUs its container was given."""

import shutil
import tempfile
from pathlib import Path
from typing import Final

from hack.image import cache, elf, layers, programs
from hack.image.errors import ImageError
from hack.image.oci import Image
from hack.image.platforms import Machine

NAME: Final = "localhost/gpu-report:v1"
_SCRIPT: Final = Path(__file__).with_name("gpu-report")
_REMEDY: Final = "install Debian's package busybox-static, or name one with --busybox FILE"


def image(name: str, machine: Machine, busybox: Path | None = None) -> tuple[Image, int]:
    """The image, and how many of its layers came from the cache. Raises ImageError."""
    program = busybox or programs.find("busybox", _REMEDY)
    if not is_static(program):
        raise ImageError(f"{program} is not a static program, an image holds nothing that it could link to: {_REMEDY}")
    key = cache.key_of("gpu-report", layers.digest_of(program), _SCRIPT.read_text())
    path, cached = cache.kept(f"report-{key}.tar.gz", lambda file: _build(program, file))
    made = Image(
        name=name,
        architecture=machine.name,
        layers=[layers.read(path, "busybox and gpu-report")],
        entrypoint=("gpu-report",),
        environment={"PATH": "/bin"},
    )
    return made, int(cached)


def is_static(program: Path) -> bool:
    """Whether a program asks for no loader. False for what is no 64-bit ELF file."""
    try:
        return elf.loader_of(program) is None
    except elf.NotElf:
        return False


def _build(busybox: Path, output: Path) -> None:
    applets = programs.run([busybox, "--list"], 10.0).split()
    with tempfile.TemporaryDirectory(prefix="image-report-") as scratch:
        root = Path(scratch)
        for name in ("bin", "etc", "dev", "proc", "sys", "tmp", "root"):
            (root / name).mkdir()
        (root / "tmp").chmod(0o1777)
        shutil.copyfile(busybox, root / "bin/busybox")
        (root / "bin/busybox").chmod(0o755)
        for applet in applets:
            if applet != "busybox":
                (root / "bin" / applet).symlink_to("busybox")
        shutil.copyfile(_SCRIPT, root / "bin/gpu-report")
        (root / "bin/gpu-report").chmod(0o755)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\n")
        layers.write(root, output)
