"""``dra-driver explain``: why a pod waits for its GPU, or why it has this one. Reads; changes nothing."""

import argparse
import os
from collections.abc import Iterator
from typing import Any, Final

from dra_driver import __version__
from dra_driver.commands import files
from dra_driver.commands.output import write, write_json
from dra_driver.model.errors import SettingError

_DESCRIPTION = """\
Say for each request of a pod, claim or template which devices match, what rules out the others
(a selector, a taint, another claim, capacity, a counter, a constraint), and what would help. Reads
the cluster, or files alone: ResourceSlices, DeviceClasses, claims, templates, pods and nodes in any
order, as `kubectl get ... -o yaml` prints them and `dra-driver inventory -o slices` too.

It follows the rules of Kubernetes' own scheduler for devices. What else a scheduler looks at (CPU,
memory, affinity to pods, quotas) is in the pod's events."""

_EPILOG = """\
examples:
  dra-driver explain pod/inference-0 -n team-a
  dra-driver explain claim/shared-gpu
  dra-driver explain -f claim.yaml -f classes.yaml -f slices.yaml
  dra-driver explain template/one-share -f template.yaml -f classes.yaml -f slices.yaml -o json

Exit codes: 0 everything asked about has its devices or could have them now, 1 something could not,
2 wrong usage, or what is asked about cannot be read."""

_KINDS: Final = {
    "pod": "Pod",
    "pods": "Pod",
    "claim": "ResourceClaim",
    "resourceclaim": "ResourceClaim",
    "resourceclaims": "ResourceClaim",
    "template": "ResourceClaimTemplate",
    "resourceclaimtemplate": "ResourceClaimTemplate",
    "resourceclaimtemplates": "ResourceClaimTemplate",
}
NOT_FITTING: Final = 1
_TARGETS: Final = "claim/NAME or template/NAME"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add what is asked about and where to look."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("target", nargs="?", metavar="KIND/NAME", help="pod/NAME, claim/NAME or template/NAME")
    parser.add_argument("-n", "--namespace", default="default", help="of what is asked about (default: default)")
    parser.add_argument(
        "-f", "--filename", action="append", default=[], metavar="FILE", help="read files, not a cluster; - is stdin"
    )
    parser.add_argument(
        "--kubeconfig",
        metavar="PATH",
        default=os.environ.get("KUBECONFIG"),
        help="how to reach the cluster (default: $KUBECONFIG, else ~/.kube/config, else the pod's service account)",
    )
    parser.add_argument("--node", metavar="NAME", help="look at this node only")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")


def run(options: argparse.Namespace) -> int:
    """Print the explanations, return the exit code. Raises SettingError for what cannot be asked or read."""
    from dra_driver.explain.answers import answer
    from dra_driver.explain.nodes import names_and_labels
    from dra_driver.explain.questions import NotThere, all_questions, questions
    from dra_driver.explain.sources import Unreadable
    from dra_driver.explain.state import Misshapen
    from dra_driver.explain.text import as_json, lines
    from dra_driver.scheduling.cel import Cel, CelMissing

    if options.target is None and not options.filename:
        raise SettingError(f"say what to explain: pod/NAME, {_TARGETS}, or give files with -f")
    try:
        compiler = Cel().compile_selector
        state = _state(options)
        asked = (
            questions(state, *_target(options.target), options.namespace) if options.target else all_questions(state)
        )
    except (CelMissing, Misshapen, NotThere, Unreadable) as error:
        raise SettingError(str(error)) from error
    if not asked:
        raise SettingError(_nothing(options, state))
    nodes = [name for name, _ in names_and_labels(state)]
    if options.node and nodes and options.node not in nodes:
        raise SettingError(
            f"--node {options.node}: no ResourceSlice offers devices there; it does on {', '.join(nodes)}"
        )
    answers = [answer(state, question, compiler, options.node) for question in asked]
    if options.output == "json":
        write_json({"ok": all(each.fits for each in answers), "answers": [as_json(each) for each in answers]})
    else:
        for each in answers:
            write("\n".join(lines(each)))
    return 0 if all(each.fits for each in answers) else NOT_FITTING


def _nothing(options: argparse.Namespace, state: Any) -> str:
    from dra_driver.explain.questions import unserved

    what = options.target or "what was read"
    text = f"nothing in {what} asks for devices: no resourceClaims, and no resource of a DeviceClass"
    if not options.target:
        return f"{text}. Of Deployments and other workloads, give a pod"
    names = unserved(state, *_target(options.target), options.namespace)
    if not names:
        return text
    served = sorted(filter(None, (each["spec"].get("extendedResourceName") for each in state.classes.values())))
    return (
        f"{text}. It asks for {', '.join(names)}, for which DRA knows no DeviceClass; "
        f"classes stand for: {', '.join(served) or 'no resource'}"
    )


def _target(target: str) -> tuple[str, str]:
    kind, slash, name = target.partition("/")
    if not slash:
        kind, name = "pod", target
    if kind.lower() not in _KINDS or not name:
        raise SettingError(
            f"{target!r} cannot be explained: give pod/NAME (of a workload, one of its pods), {_TARGETS}"
        )
    return _KINDS[kind.lower()], name


def _state(options: argparse.Namespace) -> Any:
    from dra_driver.explain.state import State

    if options.filename:
        return State.of(each for name in options.filename for each in _objects(name))
    from dra_driver.cluster.connection import connect
    from dra_driver.commands.kubeconfig import usual
    from dra_driver.explain.sources import from_cluster

    return from_cluster(connect(usual(options.kubeconfig), f"dra-driver-explain/{__version__}"))


def _objects(name: str) -> Iterator[Any]:
    from dra_driver.validation.documents import Unreadable, read_documents

    shown = files.shown(name)
    try:
        for document in read_documents(files.read_text(name)):
            if not isinstance(document.data, dict):
                raise SettingError(f"{shown}:{document.line()}: no Kubernetes object")
            yield document.data
    except Unreadable as error:
        raise SettingError(f"{shown}:{error.line}: {error}") from error
    except (OSError, ValueError) as error:
        raise SettingError(f"{shown} cannot be read: {files.reason(error)}") from error
