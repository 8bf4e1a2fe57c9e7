"""Where the API server is and how requests to it are signed: from a kubeconfig, or from the pod's service account."""

import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.cluster import lean
from dra_driver.model.errors import SettingError

if TYPE_CHECKING:
    from dra_driver.cluster.kubeconfig import Kubeconfig

logger = logging.getLogger(__name__)

_TOKEN_AGE_S = 60.0
"""The kubelet rotates bound tokens when 80 % of their life is over; a minute is what client-go keeps one."""


class Access:
    """An official client configuration with the way to get the ``Authorization`` header."""

    def __init__(self, configuration: Any, authorization: Callable[[], str | None]) -> None:
        self.configuration = configuration
        self.authorization = authorization

    def keep_until_gone(self, directory: str) -> None:
        """Remove a directory with credentials when this object, or the process, ends."""
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)


def find_access(kubeconfig: str | None) -> Access:
    """From the kubeconfig when one is set, else from the service account of the pod. Raises SettingError."""
    client = lean.load()
    if not kubeconfig:
        return _in_cluster(client)
    # Pods have no kubeconfig, and need not pay for a YAML parser.
    from dra_driver.cluster.kubeconfig import read_kubeconfig

    found = read_kubeconfig(kubeconfig)
    return _fetched(client, found) if found.fetched else _from_kubeconfig(client, found)


def _in_cluster(client: lean.Client) -> Access:
    configuration = client.Configuration()
    try:
        client.load_incluster_config(configuration)
    except (client.ConfigException, OSError) as error:
        why = str(error).rstrip(".")
        raise SettingError(
            f"kubeconfig: none is set and this is no pod of a cluster ({why}): give --kubeconfig FILE"
        ) from error
    return Access(configuration, _official_key(configuration))


def _fetched(client: lean.Client, found: "Kubeconfig") -> Access:
    """Credentials that a program or a login fetches: the official loader knows how."""
    configuration = client.Configuration()
    try:
        lean.load_whole().load_kube_config(config_file=found.source, client_configuration=configuration)
    except Exception as error:
        # What may come out depends on the credential plugin.
        raise SettingError(f"kubeconfig {found.source}: {error}") from error
    return Access(configuration, _official_key(configuration))


def _official_key(configuration: Any) -> Callable[[], str | None]:
    """The official loaders keep ``bearer TOKEN`` in the configuration and refresh it on demand."""

    def key() -> str | None:
        try:
            value = configuration.get_api_key_with_prefix("BearerToken")
        except Exception as error:  # noqa: BLE001 - a credential plugin may raise anything
            # A token that cannot be read anew just now may still be accepted.
            logger.warning("API server token cannot be refreshed: %s", error)
            value = configuration.api_key.get("BearerToken")
        if value:
            return str(value).strip()
        return configuration.get_basic_auth_token() if configuration.username else None

    return key


def _from_kubeconfig(client: lean.Client, found: "Kubeconfig") -> Access:
    configuration = client.Configuration()
    configuration.host = found.server
    configuration.verify_ssl = not found.insecure
    if not found.insecure:
        configuration.ca_cert_data = found.ca_data
        configuration.ssl_ca_cert = None if found.ca_data else found.ca_file
    configuration.tls_server_name = found.tls_server_name
    if found.tls_server_name:
        configuration.assert_hostname = found.tls_server_name
    if found.proxy_url:
        configuration.proxy = found.proxy_url
    access = Access(configuration, _token(found))
    configuration.cert_file, configuration.key_file = _certificate(found, access)
    return access


def _certificate(found: "Kubeconfig", access: Access) -> tuple[str | None, str | None]:
    """Files of the client certificate and its key. OpenSSL reads these from files only."""
    if not found.certificate_data and not found.key_data:
        return found.certificate_file, found.key_file
    directory = tempfile.mkdtemp(prefix="dra-driver-")
    access.keep_until_gone(directory)
    paths = {"tls.crt": found.certificate_file, "tls.key": found.key_file}
    for name, data in (("tls.crt", found.certificate_data), ("tls.key", found.key_data)):
        if data:
            path = Path(directory, name)
            path.touch(mode=0o600)
            path.write_text(data, encoding="ascii")
            paths[name] = str(path)
    return paths["tls.crt"], paths["tls.key"]


def _token(found: "Kubeconfig") -> Callable[[], str | None]:
    if found.token:
        fixed = f"Bearer {found.token.strip()}"
        return lambda: fixed
    if found.token_file:
        return TokenFile(Path(found.token_file))
    return lambda: None


class TokenFile:
    """``Authorization`` from a file that is written anew from time to time."""

    def __init__(self, path: Path, age_s: float = _TOKEN_AGE_S) -> None:
        self._path = path
        self._age = age_s
        self._lock = threading.Lock()
        self._header: str | None = None
        self._read_at = 0.0

    def __call__(self) -> str | None:
        """The header; the last known one while the file cannot be read."""
        with self._lock:
            if self._header is None or time.monotonic() - self._read_at >= self._age:
                self._read()
            return self._header

    def _read(self) -> None:
        try:
            token = self._path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("API server token %s cannot be read: %s", self._path, error)
            return
        if token:
            self._header = f"Bearer {token}"
            self._read_at = time.monotonic()
