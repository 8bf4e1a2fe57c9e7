"""The command line of the bench."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from dra_driver.model.errors import DriverError
from hack.bench import driver, inside, report, suite, targets
from hack.bench.errors import BenchError
from hack.bench.suite import Given, Plan, Suite

_DESCRIPTION = """\
Measure a DRA driver through the kubelet's protocol: start, memory, prepare, repeated prepare and
unprepare, in sequence and many at a time, with and without time slicing; one claim a call.

Without options everything is started here and ended again: a simulated API server, and the driver on
simulated nodes with as many GPUs as claims and a stand-in nvidia-smi. With --cluster the API server is that
of a real Kubernetes, and the driver runs on its first node with a service account of its own."""

_EPILOG = """\
examples:
  python -m hack.bench
  python -m hack.bench --quick -o json
  python -m hack.cluster up && python -m hack.bench --cluster /tmp/dra-cluster
  python -m hack.bench --kubeconfig ~/.kube/config --node worker-1 \\
      --socket /var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock --pid 4711

With --socket, claims that ask for time slicing are made only if --time-slicing is given: they change the
settings of the GPUs behind that socket.

Exit codes: 0 measured (targets may be missed), 1 a call failed or nothing could be measured, 2 wrong usage."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench and print the figures. Returns the exit code."""
    options = _parser().parse_args(argv)
    _check(options)
    signal.signal(signal.SIGTERM, _stop)
    try:
        if options.cluster is not None:
            return inside.run(options.cluster, _absolute(options, sys.argv[1:] if argv is None else argv))
        plan, given = _plan(options), _given(options)
        measured = Suite(plan, given, quiet=options.quiet).run()
    except (BenchError, DriverError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(report.FORMATS[options.output](measured, targets.rows(measured, plan.at_once)))
    return 1 if any(timing.failures for timing in measured.timings) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--output", choices=tuple(report.FORMATS), default="text", help="default: text")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    what = parser.add_argument_group("what to measure")
    what.add_argument("--quick", action="store_true", help="few claims: shows that all works, not how fast")
    what.add_argument(
        "--levels", type=_levels, metavar="N,N", help="claims prepared at the same time (default: 8,100,400,1000)"
    )
    what.add_argument("--at-once", type=_positive, default=16, metavar="N", help="parallel calls (default: 16)")
    what.add_argument("--starts", type=_positive, metavar="N", help="starts to measure (default: 5)")
    what.add_argument("--tool-ms", type=_positive, default=20, metavar="MS", help="one nvidia-smi run (default: 20)")
    what.add_argument(
        "--time-slicing", action=argparse.BooleanOptionalAction, default=None, help="claims that ask for a time slice"
    )
    given = parser.add_argument_group("what is there already")
    given.add_argument(
        "--cluster", type=Path, metavar="DIR", help="the cluster of hack/cluster in DIR, without a driver"
    )
    given.add_argument("--kubeconfig", type=Path, metavar="FILE", help="use this API server")
    given.add_argument("--driver-kubeconfig", type=Path, metavar="FILE", help="of the driver (default: the same)")
    given.add_argument("--socket", type=Path, metavar="PATH", help="measure the driver behind this DRA socket")
    given.add_argument(
        "--node",
        default="",
        metavar="NAME",
        help="the node of that driver; without --socket: of the drivers started here",
    )
    given.add_argument("--pid", type=_process, metavar="PID", help="process of that driver, for memory and CPU time")
    given.add_argument("--driver-command", metavar="WORDS", help="start this, and not the installed dra-driver")
    given.add_argument("--directory", type=Path, metavar="DIR", help="for temporary files, the driver's state too")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Ends with exit code 2 when options do not go together."""
    parser = _parser()
    if options.socket is not None and (options.kubeconfig is None or not options.node):
        parser.error("--socket needs --kubeconfig and --node: claims are allocated to the devices of that node")
    if options.socket is None and options.pid is not None:
        parser.error("--pid belongs to --socket")
    if options.kubeconfig is None and (options.node or options.driver_kubeconfig is not None):
        parser.error("--node and --driver-kubeconfig belong to --kubeconfig: they say what is known to that API server")
    if options.cluster is not None and options.kubeconfig is not None:
        parser.error("--cluster and --kubeconfig both name an API server: give one of them")
    for name in ("cluster", "kubeconfig", "driver_kubeconfig", "socket", "directory"):
        path = getattr(options, name)
        if path is not None and not path.exists():
            parser.error(f"--{name.replace('_', '-')}: found {path}, which does not exist")


def _absolute(options: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Arguments for a bench that runs in another folder."""
    return [*arguments, *([f"--directory={options.directory.absolute()}"] if options.directory else [])]


def _plan(options: argparse.Namespace) -> Plan:
    slicing = options.socket is None if options.time_slicing is None else options.time_slicing
    return Plan(
        levels=options.levels or ((8,) if options.quick else suite.LEVELS),
        at_once=options.at_once,
        starts=options.starts or (0 if options.quick else suite.STARTS),
        shares=16 if options.quick else suite.SHARES,
        tool_ms=options.tool_ms,
        slicing=slicing,
        repetitions=3 if options.quick else suite.REPETITIONS,
    )


def _given(options: argparse.Namespace) -> Given:
    command = driver.command(options.driver_command) if options.driver_command else driver.default_command()
    return Given(
        kubeconfig=options.kubeconfig,
        driver_kubeconfig=options.driver_kubeconfig,
        socket=options.socket,
        node=options.node,
        pid=options.pid,
        command=tuple(command),
        directory=options.directory,
    )


def _levels(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _positive(text: str, most: int = 10_000) -> int:
    if not text.isdecimal() or not 0 < int(text) <= most:
        raise argparse.ArgumentTypeError(f"found {text!r}, must be a whole number from 1 to {most}")
    return int(text)


def _process(text: str) -> int:
    return _positive(text, 2**22)


def _stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the bench as Ctrl-C does, so that what it started ends too."""
    raise KeyboardInterrupt
