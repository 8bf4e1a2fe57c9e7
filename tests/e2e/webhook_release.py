"""The chart's admission webhook as a release of the cluster: its certificates, its pods, and its outages."""

import base64
import itertools
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hack.cluster.certificates import Authority
from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from tests.e2e.manifests import Json
from tests.e2e.waiting import until

_CHART: Final = ROOT / "manifests/helm/dra-driver-gpu"
_RELEASE: Final = "gpus"
NAMESPACE: Final = "webhook-chart"
NAME: Final = "gpus-dra-driver-gpu-webhook"
SECRET: Final = "webhook-tls"
_CONFIGURATION: Final = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"
_DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"

_numbers: Final = itertools.count(1)


@dataclass(slots=True)
class Webhook:
    """The release, its authorities and what is asked of the cluster."""

    cluster: Cluster
    folder: Path
    authorities: list[Authority] = field(default_factory=lambda: [Authority("first")])

    @property
    def bundle(self) -> str:
        """All authorities, as a caBundle."""
        return base64.b64encode("".join(each.pair.certificate for each in self.authorities).encode()).decode()

    def certify(self) -> bytes:
        """Put a certificate of the latest authority into the Secret; in DER."""
        pair = self.authorities[-1].server(NAME, [f"{NAME}.{NAMESPACE}.svc"], [])
        files = {"tls.crt": pair.certificate, "tls.key": pair.key}
        self.cluster.api.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": {"name": SECRET, "namespace": NAMESPACE},
                "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
            }
        )
        return ssl.PEM_cert_to_DER_cert(pair.certificate)

    def install(self, **webhook: object) -> None:
        """Install or upgrade, and wait until all pods serve. webhook: values below ``webhook``."""
        tls = {"mode": "secret", "secret": {"name": SECRET, "caBundle": self.bundle}}
        values = {
            "gpuResourcesEnabledOverride": True,
            # No node has it: the DaemonSet is not what is looked at here.
            "kubeletPlugin": {"nodeSelector": {"none": "such"}},
            "featureGates": {"TimeSlicingSettings": True},
            "webhook": {"enabled": True, "replicas": 2, "tls": tls, **webhook},
        }
        file = self.folder / "values.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        self.cluster.helm("upgrade", "--install", _RELEASE, str(_CHART), f"--namespace={NAMESPACE}", f"--values={file}")
        self.wait_rolled_out()

    def wait_rolled_out(self) -> None:
        """Until the pods are those of the Deployment as it is now, and no others are left."""
        self.cluster.kubectl(
            "rollout", "status", f"deployment/{NAME}", f"--namespace={NAMESPACE}", "--timeout=180s", seconds=200.0
        )
        until(lambda: len(self.pods()) == self.deployment()["spec"]["replicas"], "old pods to go")

    def deployment(self) -> Json:
        """As it is now."""
        return self.cluster.api.get(_DEPLOYMENT)

    def pods(self) -> list[Json]:
        """The pods of the webhook."""
        found: list[Json] = self.cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return found

    @contextmanager
    def down(self) -> Iterator[None]:
        """No pod of it is there."""
        self._scale(0)
        try:
            yield
        finally:
            self._scale(2)
            self.wait_rolled_out()

    def _scale(self, replicas: int) -> None:
        self.cluster.kubectl("scale", f"deployment/{NAME}", f"--replicas={replicas}", f"--namespace={NAMESPACE}")
        until(lambda: len(self.pods()) == replicas, f"{replicas} pods of the webhook")
        if not replicas:
            path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
            until(lambda: not any(each.get("endpoints") for each in self.cluster.api.get(path)["items"]), "no endpoint")

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Calls come to an address where they are taken and never answered."""
        host = self.cluster.addresses.host
        before = self.cluster.api.get(_CONFIGURATION)["webhooks"]
        with socket.create_server((host, 0)) as listener:
            url = f"https://{host}:{listener.getsockname()[1]}/"
            self._configure([{**before[0], "clientConfig": {"url": url, "caBundle": self.bundle}}])
            try:
                until(lambda: url in json.dumps(self.cluster.api.get(_CONFIGURATION)), "the other address")
                yield
            finally:
                self._configure(before)

    def _configure(self, webhooks: list[Json]) -> None:
        found = self.cluster.api.get(_CONFIGURATION)
        self.cluster.api.request("PUT", _CONFIGURATION, {**found, "webhooks": webhooks})

    # Objects.

    def create(self, document: Json) -> Json:
        """Create an object, under a name of its own. Raises ApiRefused."""
        document = {**document, "metadata": {**document["metadata"], "name": f"made-{next(_numbers)}"}}
        return self.cluster.api.request("POST", self.cluster.api.path(document), document)

    def apply(self, document: Json) -> subprocess.CompletedProcess[str]:
        """``kubectl apply``, as a person sees it."""
        document = {**document, "metadata": {**document["metadata"], "name": f"made-{next(_numbers)}"}}
        command = [
            self.cluster.programs / "kubectl",
            f"--kubeconfig={self.cluster.files.kubeconfig}",
            "apply",
            "-f",
            "-",
        ]
        return subprocess.run(
            command, input=json.dumps(document), capture_output=True, text=True, timeout=60, check=False
        )


def served(address: str) -> bytes:
    """The certificate that a pod shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address, 443), timeout=10) as raw, context.wrap_socket(raw) as wrapped:
        return wrapped.getpeercert(binary_form=True) or b""
