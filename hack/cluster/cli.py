"""The command line of the cluster."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hack.cluster import build, cleanup, packages, versions
from hack.cluster.cluster import DIRECTORY, Cluster
from hack.cluster.driver import ROOT, check, command_line
from hack.cluster.errors import ClusterError
from hack.cluster.images import BUSYBOX
from hack.cluster.plan import Plan

DEVICE_CLASSES: Final = ROOT / "dra_driver" / "simulator" / "device_classes.yaml"

_DESCRIPTION = """\
A Kubernetes on this machine, without a container engine: etcd, control plane, kubelets and containerd, built from
Go modules, in namespaces of their own. Needs root."""

_EPILOG = """\
examples:
  python -m hack.cluster up --nodes 2 --driver h200x2 --gates TimeSlicingSettings=true
  python -m hack.cluster up --driver h200x2 --gates ConsumableShares=true -- --consumable-shares=10
  python -m hack.cluster kubectl get resourceslices
  python -m hack.cluster down

Exit codes: 0 done, 1 failed, 2 wrong usage; kubectl's own for kubectl."""

_USE = """\
{kubernetes} is up: {nodes}. Programs, for your shell:
  export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
  kubectl get nodes,deviceclasses,resourceslices
Pods can use the image {image}. Logs: {logs}
{end}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more may be written, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hack.cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, default=DIRECTORY, metavar="DIR", help=f"default: {DIRECTORY}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    up = _command(commands, "up", _up, "start a cluster; one that is there already is replaced")
    _add_version(up)
    up.add_argument("--nodes", type=int, default=1, metavar="N", help="default: 1")
    up.add_argument("--driver", metavar="NAME|FILE", help="run the driver on all nodes, with these simulated GPUs")
    up.add_argument("--gates", type=_gates, default={}, metavar="GATES", help="feature gates of that driver")
    up.add_argument("--cluster-gates", type=_gates, default={}, metavar="GATES", help="feature gates of Kubernetes")
    up.add_argument("flags", nargs="*", metavar="-- FLAG", help="further flags of that driver: dra-driver run --help")
    down = _command(commands, "down", _down, "remove the cluster and all that it has started")
    down.add_argument("--keep-logs", action="store_true", help="leave the folder of logs")
    _command(commands, "status", _status, "what runs, and what has ended")
    kubectl = _command(commands, "kubectl", _kubectl, "run kubectl on the cluster")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    _add_version(_command(commands, "build", _build, "build the programs, should they not be there yet"))
    tool = _command(commands, "tool", _tool, "build one of the tools, and print the folder with its programs")
    tool.add_argument("name", choices=build.TOOLS)
    _add_version(_command(commands, "lock", _lock, "write the module requirements of a version into the checkout"))
    return parser


def _up(options: argparse.Namespace) -> int:
    _check_driver(options)
    plan = Plan(kubernetes=options.k8s, nodes=options.nodes, gates=options.cluster_gates)
    cluster = Cluster(options.dir, plan, _say).up()
    if options.driver:
        cluster.apply(DEVICE_CLASSES)
        for node in cluster.nodes:
            cluster.start_driver(node, *options.flags, gates=options.gates, scenario=options.driver)
    down = "make cluster-down" if options.dir == DIRECTORY else f"python -m hack.cluster --dir {options.dir} down"
    print(
        _USE.format(
            kubernetes=f"Kubernetes {plan.kubernetes}",
            nodes=", ".join(node.name for node in cluster.nodes),
            kubeconfig=cluster.files.kubeconfig,
            programs=cluster.programs,
            image=BUSYBOX,
            logs=cluster.logs,
            end=f"End: {down}",
        )
    )
    return 0


def _check_driver(options: argparse.Namespace) -> None:
    """Before minutes are spent on a cluster. Raises ClusterError."""
    if options.driver:
        check(command_line("node-1", options.dir / "driver.kubeconfig", options.driver, options.gates, options.flags))
    elif options.flags or options.gates:
        given = " ".join((*options.flags, *options.gates))
        raise ClusterError(f"{given}: for a driver, but none is asked for; add --driver h200x2, say")


def _down(options: argparse.Namespace) -> int:
    cleanup.remove(options.dir, options.keep_logs)
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.dir)
    found = cluster.status()
    for machine, processes in found.items():
        for process, state in processes.items():
            print(f"{machine:14} {process:24} {state}")
    for node in cluster.api.get("/api/v1/nodes")["items"]:
        print(f"{node['metadata']['name']:14} {'boot id':24} {node['status']['nodeInfo']['bootID']}")
    return 0 if all(state == "running" for each in found.values() for state in each.values()) else 1


def _kubectl(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.dir)
    os.execve(cluster.programs / "kubectl", ["kubectl", *options.arguments], cluster.environment())


def _build(options: argparse.Namespace) -> int:
    packages.ensure(_say)
    print(build.ensure(versions.kubernetes(options.k8s), _say))
    return 0


def _tool(options: argparse.Namespace) -> int:
    print(build.have(build.tool_product(options.name), _say))
    return 0


def _lock(options: argparse.Namespace) -> int:
    print(build.lock(versions.kubernetes(options.k8s)))
    return 0


def _add_version(parser: argparse.ArgumentParser) -> None:
    known = versions.KUBERNETES
    parser.add_argument("--k8s", default=known[0], metavar="VERSION", help=f"of Kubernetes: {', '.join(known)}, ...")


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: object, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    if name != "kubectl":
        # Here too; but words after kubectl are kubectl's.
        parser.add_argument("--dir", type=Path, default=argparse.SUPPRESS, metavar="DIR", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)
    return parser


def _gates(text: str) -> dict[str, bool]:
    gates = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value not in ("true", "false"):
            raise argparse.ArgumentTypeError(f"found {part!r}, must be NAME=true or NAME=false")
        gates[name] = value == "true"
    return gates


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)
