"""cert-manager in a test cluster: its CRDs, and the parts of it that serve a webhook's certificate, as one process."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest
import yaml

from hack.cluster import build, published
from hack.cluster.api import condition
from hack.cluster.cluster import Cluster
from tests.e2e.manifests import Json
from tests.e2e.waiting import until

_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_STOP_S: Final = 30.0


class CertManager:
    """Its CRDs are served, and it works, as long as the block takes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._log = folder / "cert-manager.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "CertManager":
        found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in published.cert_manager_crds()]
        self._cluster.api.apply_all(found)
        for name in (each["metadata"]["name"] for each in found):
            until(
                lambda name=name: (
                    condition(self._cluster.api.get(f"{_CRDS}/{name}"), "Established").get("status") == "True"
                ),
                f"CRD {name}",
            )
        environment = {**os.environ, "KUBECONFIG": str(self._cluster.files.kubeconfig)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([_program()], env=environment, stdout=log, stderr=log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_STOP_S)

    def certificate(self, namespace: str, name: str) -> Json:
        """A Certificate, once it is Ready."""
        path = f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates/{name}"

        def ready() -> Json | None:
            found = self._cluster.api.find(path)
            return found if found and condition(found, "Ready").get("status") == "True" else None

        return until(ready, self._said(f"Certificate {name} to be Ready"))

    def renew(self, namespace: str, name: str) -> None:
        """Have a Certificate issued anew, as cert-manager's own command line does."""
        path = f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates/{name}"
        found = self._cluster.api.get(path)
        wanted = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "renewed by hand"}
        found["status"]["conditions"] = [
            each for each in found["status"].get("conditions") or [] if each["type"] != "Issuing"
        ] + [wanted]
        self._cluster.api.request("PUT", f"{path}/status", found)

    def _said(self, what: str) -> Any:
        return lambda: f"{what}; cert-manager said\n{self._log.read_text(encoding='utf-8', errors='replace')[-4000:]}"


def _program() -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in published.NEWER_GO.items():
            patch.setenv(name, value)
        return build.have(build.program_product("cert-manager"), print) / "cert-manager"
