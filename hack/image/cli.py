"""The command line: which image, for which machine, to where; then what it weighs."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hack.image import driver, gpu_report, oci, platforms
from hack.image.errors import ImageError
from hack.image.oci import Image

_DESCRIPTION = """\
Build a container image without a container engine: the driver's, from Debian packages and Python wheels, or a tiny
one for tests that prints which GPUs its container was given.

Layers are kept in ${XDG_CACHE_HOME:-~/.cache}/dra-driver-gpu/image; the same input gives the same bytes."""

_EPILOG = """\
examples:
  python -m hack.image --output build/driver.tar
  python -m hack.image --output build/driver.tar \\
    --nvidia-cdi-hook "$(python -m hack.cluster tool nvidia)/nvidia-cdi-hook"
  python -m hack.image gpu-report --output build/gpu-report.tar
  ctr -n k8s.io images import build/driver.tar

Exit codes: 0 built, 1 something is missing or failed, 2 wrong usage."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build one image and report its size. Returns the exit code."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    try:
        image, cached = _build(options)
        digest = oci.write(image, options.output)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"image: {options.output}: {error}", file=sys.stderr)
        return 1
    print(report(image, digest, options.output, cached, time.monotonic() - began))
    return 0


def report(image: Image, digest: str, output: Path, cached: int, seconds: float) -> str:
    """What was built, a layer a line; sizes in MB as registries count them."""
    rows = [
        f"  {layer.size / 1e6:6.1f} MB packed  {layer.unpacked / 1e6:6.1f} MB unpacked  {layer.what}"
        for layer in image.layers
    ]
    packed, unpacked = sum(layer.size for layer in image.layers), sum(layer.unpacked for layer in image.layers)
    total = f"  {packed / 1e6:6.1f} MB packed  {unpacked / 1e6:6.1f} MB unpacked  in all"
    head = f"{image.name} ({image.architecture}) {digest}"
    tail = f"{output}, {seconds:.1f} s, {cached} of {len(image.layers)} layers from the cache"
    return "\n".join([head, *rows, total, tail])


def _build(options: argparse.Namespace) -> tuple[Image, int]:
    if options.image == "gpu-report":
        return gpu_report.image(options.name or gpu_report.NAME, platforms.native(), options.busybox)
    machine = platforms.MACHINES[options.architecture] if options.architecture else platforms.native()
    release = platforms.RELEASES[options.base]
    return driver.image(
        options.name or driver.NAME, release, machine, fresh=options.refresh, hook=options.nvidia_cdi_hook
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.image",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("image", nargs="?", choices=("driver", "gpu-report"), default="driver", help="default: driver")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR|FILE.tar", help="OCI layout: a folder or a tar"
    )
    parser.add_argument("--name", metavar="NAME:TAG", help=f"default: {driver.NAME}, {gpu_report.NAME}")
    of_driver = parser.add_argument_group("the driver's image")
    of_driver.add_argument("--base", choices=tuple(platforms.RELEASES), default="debian", help="default: debian (12)")
    of_driver.add_argument("--architecture", choices=tuple(platforms.MACHINES), help="default: this machine's")
    of_driver.add_argument("--refresh", action="store_true", help="today's Debian packages, whatever is in the cache")
    of_driver.add_argument(
        "--nvidia-cdi-hook", type=Path, metavar="FILE", help="put this program of NVIDIA's container toolkit into it"
    )
    of_report = parser.add_argument_group("gpu-report")
    of_report.add_argument("--busybox", type=Path, metavar="FILE", help="static busybox (default: the one on PATH)")
    return parser
