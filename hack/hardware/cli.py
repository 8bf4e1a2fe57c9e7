"""The command line. Until a pack is unpacked only the standard library is there, so the parts are loaded late."""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hack.hardware import layout, unpack
from hack.hardware.errors import HardwareError

if TYPE_CHECKING:
    from hack.hardware.findings import Findings

PACK: Final = Path("build/hardware")
DIRECTORY: Final = Path("/tmp/dra-hardware")
LETTERS: Final = "abcf"
FACTS: Final = "facts.json"
PLOT: Final = "throughput.svg"
LOGS: Final = "logs.tar.gz"

_DESCRIPTION = """\
The driver on real GPUs under a real Kubernetes, on a machine without a network. Cards are only read: the driver runs
with --gpu-control=observe, and settings of the cards are compared before and after. Needs root."""

_EPILOG = """\
scenes:
  a  two pods share a card: same UUID, both compute; with d, throughput alone and shared, and e, the driver killed
  b  two requests are two cards; a pod without a claim sees none
  c  each way to hand over driver files, images with and without /etc/ld.so.conf and NVIDIA_VISIBLE_DEVICES=all
  f  time from start to slices, prepare and unprepare on real NVML, memory

examples:
  python -m hack.hardware pack
  python3 -m hack.hardware run --output out                    # on the machine with the GPUs
  python -m hack.hardware run --simulated h200x2 --output out  # here

Exit codes: 0 all checks hold, 1 one does not or something failed, 2 wrong usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except HardwareError as error:
        print(f"hardware: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.hardware",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    pack = commands.add_parser("pack", help="gather programs, Python packages and the pods' root file system")
    pack.add_argument("--output", type=Path, default=PACK, metavar="DIR", help=f"default: {PACK}")
    pack.set_defaults(run=_pack)
    run = commands.add_parser("run", help="unpack, start a cluster, play the scenes")
    run.add_argument("--pack", type=Path, default=PACK, metavar="DIR", help=f"default: {PACK}")
    run.add_argument("--output", type=Path, required=True, metavar="DIR", help=f"for {FACTS}, {PLOT} and {LOGS}")
    run.add_argument("--dir", type=Path, default=DIRECTORY, metavar="DIR", help=f"of cluster and pack ({DIRECTORY})")
    run.add_argument("--simulated", default="", metavar="NAME|FILE", help="GPUs of a scenario, not real ones")
    run.add_argument("--driver-root", type=Path, default=None, metavar="DIR", help="default: where libcuda is found")
    run.add_argument("--scenes", type=_letters, default=LETTERS, metavar="LETTERS", help=f"default: {LETTERS}")
    run.add_argument("--slot", type=float, default=2.0, metavar="SECONDS", help="of one kind of work (default: 2)")
    run.set_defaults(run=_run)
    return parser


def _letters(text: str) -> str:
    if not text or set(text) - set(LETTERS):
        raise argparse.ArgumentTypeError(f"found {text!r}, must be letters of {LETTERS}")
    return text


def _pack(options: argparse.Namespace) -> int:
    from hack.cluster.errors import ClusterError
    from hack.hardware import pack
    from hack.image.errors import ImageError

    try:
        size = pack.write(options.output, _say)
    except (ClusterError, ImageError) as error:
        raise HardwareError(str(error)) from error
    print(f"{options.output}: {size / 2**20:.1f} MiB")
    return 0


def _run(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise HardwareError("a cluster needs root: it makes namespaces, mounts and network interfaces")
    unpacked = unpack.unpack(options.pack, options.dir / "pack")
    site = str(unpacked / layout.SITE)
    if sys.version_info[:2] == unpack.PYTHON and site not in os.environ.get("PYTHONPATH", "").split(":"):
        # Once more, with the pack's packages in front of all that this interpreter has.
        words = [sys.executable, "-m", "hack.hardware", *sys.argv[1:]]
        sys.stdout.flush()
        os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": site})
    return _play(options, unpacked)


def _play(options: argparse.Namespace, unpacked: Path) -> int:
    sys.path.insert(0, str(unpack.ROOT / "api"))
    require(("cryptography", "grpc", "kubernetes", "pydantic", "yaml"))
    from hack.cluster.errors import ClusterError
    from hack.hardware import play
    from hack.hardware.stage import Setting

    setting = Setting(
        scenario=options.simulated,
        driver_root=options.driver_root or driver_root(Path("/")),
        slot_s=options.slot,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    place = play.Place(unpacked, options.dir / "cluster", options.output / LOGS)
    try:
        findings, cards = play.run(setting, place, options.scenes, _say)
    except ClusterError as error:
        raise HardwareError(str(error)) from error
    return _tell(findings, cards, options.output)


def _tell(findings: "Findings", cards: Sequence[str], output: Path) -> int:
    from hack.hardware import findings as told
    from hack.hardware import plot

    document = findings.document(cards)
    (output / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(told.table(findings.checks))
    for name in ("machine", "driver_files", "starts_s", "calls_ms", "memory_mib", "apart"):
        if name in document:
            print(f"{name}: {json.dumps(document[name])}")
    if "throughput" in document:
        print(told.shares_table(document["throughput"]))
        panels = plot.of_throughput(document["throughput"])
        (output / PLOT).write_text(plot.svg(plot.SHARED, panels))
    return 1 if findings.broken else 0


def require(modules: Sequence[str]) -> None:
    """Raises HardwareError when this Python lacks one of these modules."""
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    if lacking:
        wanted, found = (".".join(map(str, version)) for version in (unpack.PYTHON, sys.version_info[:2]))
        raise HardwareError(
            f"Python {found} lacks {', '.join(lacking)}, and the pack's packages are for {wanted}: "
            f"start this with python{wanted}, or with one that has the driver's packages"
        )


def driver_root(root: Path) -> Path:
    """The root of NVIDIA's driver on this machine: where its installations are known to be, else ``/``."""
    own = root / "usr/local/nvidia"
    return Path("/usr/local/nvidia") if (own / "lib64/libcuda.so.1").exists() else Path("/")


def _say(text: str) -> None:
    print(f"hardware: {text}", file=sys.stderr, flush=True)
