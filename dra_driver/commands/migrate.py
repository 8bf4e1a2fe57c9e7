"""``dra-driver migrate``: from device plugin and platform settings to DRA objects, chart values and a plan."""

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from dra_driver import __version__
from dra_driver.commands import files
from dra_driver.commands.output import plural, write
from dra_driver.model.errors import ApiError, SettingError

_DESCRIPTION = """\
Read how GPUs are shared today and write what says the same here: values of the chart with a sharing
profile, DeviceClasses, claims for workloads that need them, a report of what maps, what is lost and
what needs a decision, and a plan from node to node with its way back. Nothing is changed anywhere.

Understood: device plugin configs (ConfigMaps with named configs, or the files in them), the GPU
Operator's ClusterPolicy, mig-parted layouts, Bottlerocket user data (TOML), GKE node pools (their
description, or a script with --accelerator flags), a portal's export (portal: ...), ResourceQuotas,
Karpenter NodePools, Nodes, and all workloads with pods."""

_EPILOG = """\
examples:
  dra-driver migrate device-plugin.yaml deployment.yaml -o migration
  dra-driver migrate --from-cluster -o migration
  dra-driver migrate bottlerocket.toml apps/*.yaml --kubernetes-version 1.34 -o migration

Exit codes: 0 all is mapped, 1 something needs a decision or was wrong (all is in report.md),
2 wrong usage, or a file or the cluster cannot be read."""

UNDECIDED: Final = 1
_LEAST_MINOR: Final = 34
_NEWEST_MINOR: Final = 37
_USUAL_VERSION: Final = "1.36"
_READ: Final = (
    ("/apis/nvidia.com/v1/clusterpolicies", "ClusterPolicy"),
    ("/api/v1/configmaps", "ConfigMap"),
    ("/api/v1/nodes", "Node"),
    ("/api/v1/resourcequotas", "ResourceQuota"),
    ("/apis/karpenter.sh/v1/nodepools", "NodePool"),
    ("/apis/apps/v1/deployments", "Deployment"),
    ("/apis/apps/v1/statefulsets", "StatefulSet"),
    ("/apis/apps/v1/daemonsets", "DaemonSet"),
    ("/apis/batch/v1/cronjobs", "CronJob"),
    ("/apis/batch/v1/jobs", "Job"),
    ("/api/v1/pods", "Pod"),
)
_ABSENT: Final = (403, 404)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add sources, target and choices."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML, JSON, TOML or a script; - is stdin")
    parser.add_argument("--from-cluster", action="store_true", help="read the cluster instead, which needs list rights")
    parser.add_argument(
        "--kubeconfig",
        metavar="PATH",
        default=os.environ.get("KUBECONFIG"),
        help="how to reach it (default: $KUBECONFIG, else ~/.kube/config, else the pod's service account)",
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="new folder for what is written")
    parser.add_argument(
        "--kubernetes-version",
        metavar="1.N",
        help="of the cluster: 1.34 to 1.37 (default: the one that is read, for files 1.36)",
    )
    parser.add_argument("--default-config", metavar="NAME", help="device plugin config of nodes without a label")
    parser.add_argument(
        "--mps-as",
        choices=("time-slicing", "claims"),
        help="what MPS sharing becomes: shares that take turns, or one claim with strategy MPS for each workload "
        "(default: it needs a decision)",
    )
    parser.add_argument(
        "--workloads",
        choices=("keep", "claims"),
        default="keep",
        help="keep: change only those that have to be; claims: write claims for all (default: keep)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the folder; 1 where something is left open. Raises SettingError, ApiError."""
    from dra_driver.migrate.fleet import fleet
    from dra_driver.migrate.legacy import Legacy, MpsAs, Outcome
    from dra_driver.migrate.plan import BEFORE, WORKLOADS, plan, report
    from dra_driver.migrate.reader import finish
    from dra_driver.migrate.workloads import moved

    if bool(options.files) == options.from_cluster:
        raise SettingError(f"give files, or --from-cluster{', not both' if options.files else ''}")
    legacy = Legacy(default_config=options.default_config)
    version = options.kubernetes_version
    if version is not None:
        _minor(version)
    if options.from_cluster:
        found = _read_cluster(options, legacy)
        minor = _minor(version or found)
    else:
        minor = _minor(version or _USUAL_VERSION)
        _read_files(options.files, legacy)
    finish(legacy)
    made = fleet(legacy, minor, mps_as=MpsAs(options.mps_as) if options.mps_as else None)
    texts = {"values.yaml": _yaml([made.values])}
    if made.classes:
        texts["deviceclasses.yaml"] = _yaml(made.classes)
    for workload, objects in moved(legacy, made, minor, claims=options.workloads == "claims"):
        name = f"{workload.namespace}-{workload.kind.lower()}-{workload.name}.yaml"
        texts[f"{WORKLOADS}{name}"] = _yaml(objects)
        texts[f"{BEFORE}{name}"] = _yaml([workload.content])
    names = [*texts, "report.md", "plan.md"]
    texts["report.md"] = report(legacy, names)
    texts["plan.md"] = plan(legacy, made, minor, names)
    _write_folder(Path(options.output), texts)
    open_ones = [f for f in legacy.findings if f.outcome in (Outcome.DECIDE, Outcome.WRONG)]
    for finding in open_ones:
        write(f"{finding.outcome.value}: {finding.where}: {finding.what}: {finding.becomes}")
    write(
        f"{plural(len(texts), 'file')} in {options.output}, {plural(len(legacy.findings), 'finding')} in its report.md"
    )
    return UNDECIDED if open_ones else 0


def _minor(text: str) -> int:
    major, _, minor = text.removeprefix("v").partition(".")
    number = minor.partition(".")[0]
    if major != "1" or not number.isdecimal() or not _LEAST_MINOR <= int(number) <= _NEWEST_MINOR:
        raise SettingError(
            f"Kubernetes {text}: must be 1.{_LEAST_MINOR} to 1.{_NEWEST_MINOR}; "
            "--kubernetes-version says for which one to write"
        )
    return int(number)


def _read_files(names: list[str], legacy: Any) -> None:
    from dra_driver.migrate.reader import read_text
    from dra_driver.validation.documents import Unreadable, read_documents

    for name in names:
        shown = files.shown(name)
        try:
            text = files.read_text(name)
            read_text(text, shown, (document.data for document in read_documents(text)), legacy)
        except Unreadable as error:
            raise SettingError(f"{shown}:{error.line}: {error}") from error
        except (OSError, ValueError) as error:
            raise SettingError(f"{shown} cannot be read: {files.reason(error)}") from error


def _read_cluster(options: argparse.Namespace, legacy: Any) -> str:
    """Read what may be listed; the version of the cluster. Raises ApiError."""
    from dra_driver.cluster.connection import connect
    from dra_driver.commands.kubeconfig import usual
    from dra_driver.explain.sources import list_all
    from dra_driver.migrate.legacy import Outcome
    from dra_driver.migrate.reader import read_object

    connection = connect(usual(options.kubeconfig), f"dra-driver-migrate/{__version__}")
    for path, kind in _READ:
        version = path.rpartition("/")[0].removeprefix("/apis/").removeprefix("/api/")
        try:
            found = list(list_all(connection, path))
        except ApiError as error:
            if error.status not in _ABSENT:
                raise
            if error.status == _ABSENT[0]:
                said = f"these were not read, as you may not list them: {error}"
                legacy.say(Outcome.DECIDE, "cluster", path.rpartition("/")[2], said)
            continue
        for item in found:
            owners = item["metadata"].get("ownerReferences") or []
            if not any(owner.get("controller") for owner in owners):
                where = f"ClusterPolicy {item['metadata']['name']}" if kind == "ClusterPolicy" else "cluster"
                read_object({"apiVersion": version, "kind": kind, **item}, where, legacy)
    return str(connection.request("GET", "/version").get("gitVersion"))


def _yaml(documents: list[Any]) -> str:
    import yaml

    return yaml.safe_dump_all(documents, sort_keys=False, width=120)


def _write_folder(folder: Path, texts: dict[str, str]) -> None:
    """All of it or nothing. Raises SettingError for a folder that holds something, or cannot be made."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(f"--output {folder} exists and is not an empty folder: give a new one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, text in texts.items():
                (work / name).parent.mkdir(exist_ok=True)
                (work / name).write_text(text, encoding="utf-8")
            work.chmod(0o755)
            work.replace(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise SettingError(f"--output {folder} cannot be written: {error.strerror or error}") from error
