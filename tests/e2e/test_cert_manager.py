"""The webhook's certificate from cert-manager, as docs/webhook.md says: issued, trusted, and renewed under calls."""

import base64
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import pytest

from hack.cluster.errors import ApiRefused
from hack.image import driver as driver_image
from hack.image import oci, platforms
from tests.e2e import clusters
from tests.e2e.cert_manager import CertManager
from tests.e2e.test_webhook import GOOD, WRONG, made, refused
from tests.e2e.waiting import until
from tests.e2e.webhook_release import NAME, NAMESPACE, Webhook, served

pytestmark = [pytest.mark.cert_manager, pytest.mark.timeout(1800)]

_CONFIGURATION: Final = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"
_SYNC_S: Final = 180.0
"""A kubelet looks at Secrets again each minute or so."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Webhook, CertManager]]:
    """The chart with its own defaults for the webhook, in a cluster that has cert-manager."""
    folder = tmp_path_factory.mktemp("cert-manager")
    archive = folder / "driver.tar"
    image, _ = driver_image.image(driver_image.NAME, platforms.RELEASES["debian"], platforms.native())
    oci.write(image, archive)
    directory = clusters.DIRECTORY.with_name(f"{clusters.DIRECTORY.name}-cert-manager")
    with clusters.running(directory, 1, archive) as cluster, CertManager(cluster, folder) as manager:
        cluster.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        webhook = Webhook(cluster, folder)
        webhook.install(tls={"mode": "cert-manager"})
        yield webhook, manager


def test_certificate_is_issued_trusted_and_renewed_while_claims_are_judged(
    found: tuple[Webhook, CertManager],
) -> None:
    webhook, manager = found
    first = manager.certificate(NAMESPACE, NAME)
    bundle = until(
        lambda: webhook.cluster.api.get(_CONFIGURATION)["webhooks"][0]["clientConfig"].get("caBundle"),
        "the authority in the webhook's configuration",
    )
    until(lambda: _is_taken(webhook), "the API server to trust the webhook")
    assert "unknown time-slice interval: Forever" in refused(lambda: webhook.create(made(WRONG)))

    addresses = [pod["status"]["podIP"] for pod in webhook.pods()]
    pods = {pod["metadata"]["uid"] for pod in webhook.pods()}
    before = {address: served(address) for address in addresses}
    manager.renew(NAMESPACE, NAME)

    def renewed() -> bool:
        # Claims are judged all the while, by the one certificate or the other.
        assert _is_taken(webhook)
        assert "Forever" in refused(lambda: webhook.create(made(WRONG)))
        return all(served(address) != before[address] for address in addresses)

    until(renewed, "the new certificate in all pods", _SYNC_S)
    # Calls may go on over connections that stand: whether the API server would trust a new one is asked here.
    assert all(_trusted(address, bundle) for address in addresses)
    assert {pod["metadata"]["uid"] for pod in webhook.pods()} == pods
    assert manager.certificate(NAMESPACE, NAME)["status"]["revision"] == first["status"]["revision"] + 1
    assert webhook.cluster.api.get(_CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"] == bundle


def _trusted(address: str, bundle: str) -> bool:
    """Whether what a pod shows now is for the name that the API server calls, and signed by who it trusts."""
    context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    with (
        socket.create_connection((address, 443), timeout=10) as raw,
        context.wrap_socket(raw, server_hostname=f"{NAME}.{NAMESPACE}.svc") as wrapped,
    ):
        return bool(wrapped.getpeercert())


def _is_taken(webhook: Webhook) -> bool:
    try:
        webhook.create(made(GOOD))
    except ApiRefused:
        return False
    return True
