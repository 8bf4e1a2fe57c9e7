"""Keeps what is needed to understand a failed end-to-end test: logs of all components, of pods, and the objects."""

import shutil
from pathlib import Path
from typing import Final

from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from hack.cluster.errors import ClusterError

FOLDER: Final = ROOT / "build/e2e"

_OBJECTS: Final = {
    "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
    "pods.yaml": ("get", "pods", "--all-namespaces", "-o=yaml"),
    "claims.yaml": ("get", "resourceclaims", "--all-namespaces", "-o=yaml"),
    "slices.yaml": ("get", "resourceslices", "-o=yaml"),
    "nodes.yaml": ("get", "nodes", "-o=yaml"),
}


def keep(cluster: Cluster, test: str) -> Path:
    """Copy all there is now into a folder of this test and cluster, and return it."""
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in test)
    folder = FOLDER / cluster.plan.kubernetes / name / cluster.directory.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _copy(cluster.logs, folder)
    for machine in cluster.directory.glob("node-*"):
        _copy(machine / "var/log/pods", folder / f"{machine.name}-pods")
    for name, arguments in _OBJECTS.items():
        try:
            text = cluster.kubectl(*arguments, seconds=20.0)
        except (ClusterError, KeyError) as error:
            # Of a cluster that did not get so far, or whose API server is down.
            text = f"{error}\n"
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        # Links, and files that a kubelet removes meanwhile, are no loss.
        shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True, dirs_exist_ok=True)
