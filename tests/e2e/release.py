"""The chart as a release of the cluster: its driver's image, what it was given, and the pods that came of it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dra_driver.cdi.tools import HOOK
from hack.cluster.api import Api
from hack.cluster.cluster import Cluster
from hack.cluster.driver import ROOT
from hack.cluster.kubeconfigs import keep, with_token
from hack.image import driver as driver_image
from hack.image import oci, platforms
from tests.e2e.host_driver import DEVICE_CLASSES
from tests.e2e.manifests import Json
from tests.e2e.waiting import until

CHART: Final = ROOT / "manifests/helm/dra-driver-gpu"
NAMESPACE: Final = "dra-driver-gpu-chart"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
_SELECTOR: Final = "dra-driver-gpu-component=kubelet-plugin"
"""In the same namespace are pods of MPS control daemons."""

_NAME: Final = "gpus"
_INSTALL_S: Final = 240.0


class Release:
    """The chart in a cluster without another driver. folder: for the values and the image."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder

    def import_image(self) -> None:
        """Let the nodes run the driver's image. Raises ImageError, ClusterError."""
        archive = self._folder / "driver.tar"
        image, _ = driver_image.image(
            driver_image.NAME, platforms.RELEASES["debian"], platforms.native(), hook=self.cluster.programs / HOOK
        )
        oci.write(image, archive)
        self.cluster.import_images(archive)

    def install(self, values: Mapping[str, Any], *more: str) -> None:
        """Install or upgrade, and return at once. Raises ClusterError with what Helm said."""
        file = self._folder / "values.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        namespace = (f"--namespace={NAMESPACE}", "--create-namespace")
        self.cluster.helm("upgrade", "--install", _NAME, str(CHART), *namespace, f"--values={file}", *more)

    def uninstall(self) -> None:
        """Remove it, and wait until it is gone. Raises ClusterError."""
        wait = ("--wait", f"--timeout={_INSTALL_S:g}s")
        self.cluster.helm("uninstall", _NAME, f"--namespace={NAMESPACE}", *wait, seconds=_INSTALL_S)

    def pods(self) -> list[Json]:
        """The pods of the DaemonSet."""
        found: list[Json] = self.cluster.api.get(PODS, labelSelector=_SELECTOR)["items"]
        return found

    def ready_pod(self) -> Json:
        """The one pod of the DaemonSet, once it is ready and alone."""

        def look() -> Json | None:
            found = self.pods()
            ready = [each for each in found if conditions(each).get("Ready") == "True"]
            return found[0] if len(found) == len(ready) == 1 else None

        def described() -> str:
            return f"the driver's pod to be ready\n{self.cluster.kubectl('describe', 'pods', '-n', NAMESPACE)}"

        return until(look, described)

    def log(self) -> str:
        """Output of the driver's container."""
        return self.cluster.kubectl("logs", self.pods()[0]["metadata"]["name"], f"--namespace={NAMESPACE}")

    def published(self) -> list[Json]:
        """The ResourceSlices of the driver."""
        found: list[Json] = self.cluster.api.get(SLICES, fieldSelector="spec.driver=gpu.nvidia.com")["items"]
        return found


@contextmanager
def installed(cluster: Cluster, folder: Path, values: Mapping[str, Any]) -> Iterator[Release]:
    """The release with these values and a driver pod that is Ready, as long as the block takes.

    No other driver may run; the classes that tests have without the chart are there again afterwards.
    """
    for name in ("gpu", "mig", "vfio.gpu"):
        cluster.kubectl("delete", "deviceclass", f"{name}.nvidia.com", "--ignore-not-found")
    release = Release(cluster, folder)
    release.import_image()
    try:
        release.install(values)
        release.ready_pod()
        yield release
    finally:
        # Also of one that did not come up: the tests that follow need the node.
        release.uninstall()
        cluster.apply(DEVICE_CLASSES)


def as_driver(release: Release, folder: Path, *bound: str) -> Api:
    """The API server, with a token of the driver's service account."""
    cluster, account = release.cluster, release.ready_pod()["spec"]["serviceAccountName"]
    token = cluster.kubectl("create", "token", account, f"--namespace={NAMESPACE}", *bound).strip()
    authority = (cluster.files.pki / "ca.crt").read_text(encoding="ascii")
    return Api(keep(folder / "kubeconfig", with_token(cluster.api.server, authority, account, token)))


def bound_to(found: Json) -> tuple[str, ...]:
    """Flags of ``kubectl create token`` that bind it to a pod, as the one is that the pod itself is given."""
    return ("--bound-object-kind=Pod", f"--bound-object-name={found['metadata']['name']}")


def conditions(found: Json) -> dict[str, str]:
    """Type -> status of a pod's conditions."""
    return {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}


def restart_count(found: Json) -> int:
    """How often the containers of a pod were started again."""
    return sum(each["restartCount"] for each in found["status"]["containerStatuses"])
