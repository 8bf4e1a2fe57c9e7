"""What others publish as Go modules and tests hold manifests against: CRDs, schemas. Fetched when asked for, never kept
in the checkout."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster.commands import run
from hack.cluster.errors import ClusterError

_DOWNLOAD_S: Final = 600.0
NEWER_GO: Final = {"GOTOOLCHAIN": "auto"}
"""Environment of the go command for modules that want a newer Go than is here: it fetches that, too. Without it even
a mere download of such a module fails."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module at a version. sum: its hash, as go.sum has it."""

    path: str
    version: str
    sum: str

    def folder(self) -> Path:
        """Where its files are, read-only; downloaded at the first call. Raises ClusterError."""
        name = f"{self.path}@{self.version}"
        # Not from our folder, whose go.mod would count.
        told = json.loads(
            run(["go", "mod", "download", "-json", name], _DOWNLOAD_S, env=NEWER_GO, cwd=Path(tempfile.gettempdir()))
        )
        if told["Sum"] != self.sum:
            raise ClusterError(f"module {name}: found {told['Sum']}, want {self.sum}: it is not what was looked at")
        return Path(told["Dir"])


KARPENTER: Final = Module("sigs.k8s.io/karpenter", "v1.15.0", "h1:5SEptlAvsOZbNg4qg8OSdF1qi6BEZHZLA020nXY7jGw=")
KARPENTER_AWS: Final = Module(
    "github.com/aws/karpenter-provider-aws", "v1.15.2", "h1:RGw64PB2ROUHZIUhBqjO78l3zJ9YctnWeullrr4cxYI="
)
CERT_MANAGER: Final = Module(
    "github.com/cert-manager/cert-manager", "v1.21.2", "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68="
)
EKSCTL: Final = Module("github.com/weaveworks/eksctl", "v0.215.0", "h1:oCPoubT3UsW4Y2J43Y4dNRvXHEIsgg03Y3e6wv6bKG4=")


def karpenter_crds() -> list[Path]:
    """The CRDs of Karpenter on AWS, and that of the classes of nodes without machines. Raises ClusterError."""
    folders = (KARPENTER_AWS.folder() / "pkg/apis/crds", KARPENTER.folder() / "kwok/apis/crds")
    return [file for folder in folders for file in sorted(folder.glob("*.yaml"))]


def cert_manager_crds() -> list[Path]:
    """The CRDs of cert-manager. Raises ClusterError."""
    return sorted((CERT_MANAGER.folder() / "deploy/crds").glob("*.yaml"))


def eksctl_schema() -> Path:
    """JSON Schema of a ClusterConfig. Raises ClusterError."""
    return EKSCTL.folder() / "pkg/apis/eksctl.io/v1alpha5/assets/schema.json"
