import base64
import datetime
import ipaddress
import json
import os
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dra_driver.cluster.access import TokenFile
from dra_driver.cluster.connection import connect
from dra_driver.model.errors import ApiUnreachable, SettingError
from tests.unit.cluster.server import Server


@dataclass(frozen=True)
class Certificate:
    """A self-signed certificate for 127.0.0.1 and its key, as PEM and as files."""

    pem: bytes
    key: bytes
    path: Path
    key_path: Path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("kube")]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    pem = made.public_bytes(serialization.Encoding.PEM)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "tls.crt").write_bytes(pem)
    (folder / "tls.key").write_bytes(key_pem)
    return Certificate(pem, key_pem, folder / "tls.crt", folder / "tls.key")


@pytest.fixture
def tls_server(certificate: Certificate) -> Iterator[Server]:
    """An HTTPS server that takes only clients with the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.path, certificate.key_path)
    context.load_verify_locations(certificate.path)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(context)
    yield server
    server.close()


def kubeconfig(tmp_path: Path, server: str, cluster: dict[str, Any], user: dict[str, Any]) -> str:
    path = tmp_path / "kubeconfig"
    document = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return str(path)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def get(setting: str) -> dict[str, Any]:
    """One request through a connection of its own."""
    connection = connect(setting, "dra-driver/test")
    try:
        return connection.request("GET", "/version")
    finally:
        connection.close()


def test_certificates_in_the_kubeconfig_are_used(tls_server: Server, certificate: Certificate, tmp_path: Path) -> None:
    user = {"client-certificate-data": encoded(certificate.pem), "client-key-data": encoded(certificate.key)}
    cluster = {"certificate-authority-data": encoded(certificate.pem)}
    assert get(kubeconfig(tmp_path, tls_server.url, cluster, user)) == {}


def test_certificate_files_are_used(tls_server: Server, certificate: Certificate, tmp_path: Path) -> None:
    user = {"client-certificate": str(certificate.path), "client-key": str(certificate.key_path)}
    cluster = {"certificate-authority": str(certificate.path), "tls-server-name": "kube"}
    assert get(kubeconfig(tmp_path, tls_server.url, cluster, user)) == {}


def test_server_with_another_ca_is_refused(tls_server: Server, tmp_path: Path) -> None:
    with pytest.raises(ApiUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        get(kubeconfig(tmp_path, tls_server.url, {}, {}))


def test_server_of_another_name_is_refused(tls_server: Server, certificate: Certificate, tmp_path: Path) -> None:
    cluster = {"certificate-authority": str(certificate.path), "tls-server-name": "other"}
    with pytest.raises(ApiUnreachable, match=r"doesn't match|not valid for 'other'"):
        get(kubeconfig(tmp_path, tls_server.url, cluster, {}))


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_any_server_is_taken_when_told_to(certificate: Certificate, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.path, certificate.key_path)
    server = Server(context)
    try:
        assert get(kubeconfig(tmp_path, server.url, {"insecure-skip-tls-verify": True}, {})) == {}
    finally:
        server.close()


def test_private_key_is_for_our_eyes_only_and_goes_with_the_connection(
    certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    user = {"client-certificate-data": encoded(certificate.pem), "client-key-data": encoded(certificate.key)}
    connection = connect(kubeconfig(tmp_path, "https://127.0.0.1:1", {}, user), "dra-driver/test")
    (key,) = tmp_path.glob("dra-driver-*/tls.key")
    assert key.stat().st_mode & 0o077 == 0
    assert key.parent.stat().st_mode & 0o077 == 0
    connection.close()
    del connection
    assert not key.parent.exists()


def test_token_is_sent(server: Server, tmp_path: Path) -> None:
    get(kubeconfig(tmp_path, server.url, {}, {"token": "secret"}))
    assert server.requests[0].headers["Authorization"] == "Bearer secret"


def test_anonymous_user_sends_no_authorization(server: Server, tmp_path: Path) -> None:
    get(kubeconfig(tmp_path, server.url, {}, {}))
    assert "Authorization" not in server.requests[0].headers


def test_credentials_of_a_program_are_fetched_by_the_official_loader(server: Server, tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": "fetched"},
    }
    program = tmp_path / "login"
    program.write_text(f"#!{sys.executable}\nprint({json.dumps(json.dumps(credential))})\n")
    program.chmod(0o755)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": str(program)}
    get(kubeconfig(tmp_path, server.url, {}, {"exec": plugin}))
    assert server.requests[0].headers["Authorization"].lower() == "bearer fetched"


def test_rotated_token_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    header = TokenFile(path, age_s=0.0)
    assert header() == "Bearer one"
    path.write_text("two\n")
    assert header() == "Bearer two"


def test_token_file_is_not_read_for_each_request(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    header = TokenFile(path)
    header()
    path.write_text("two")
    assert header() == "Bearer one"


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_last_token_is_kept_while_its_file_says_nothing(tmp_path: Path, state: str) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    header = TokenFile(path, age_s=0.0)
    header()
    path.write_text("")
    if state == "missing":
        path.unlink()
    assert header() == "Bearer one"


@pytest.fixture
def pod(tls_server: Server, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment and files of a pod's service account; the token's path."""
    import kubernetes.config.incluster_config as loader

    token = tmp_path / "token"
    token.write_text("pod-token\n")
    host, port = tls_server.url.removeprefix("https://").split(":")
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(loader, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(loader, "SERVICE_CERT_FILENAME", str(certificate.path))
    return token


def test_service_account_of_the_pod_is_used_without_kubeconfig(pod: Path, server: Server) -> None:
    connection = connect(None, "dra-driver/test")
    assert connection.server.startswith("https://127.0.0.1:")
    assert connection._access.authorization() == "bearer pod-token"
    connection.close()


def test_outside_a_pod_a_kubeconfig_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.environ, "KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingError, match=r"kubeconfig: none is set .* give --kubeconfig FILE"):
        connect(None, "dra-driver/test")
