"""A small client of the API server, for the cluster's own needs and for tests: JSON documents in and out."""

import base64
import http.client
import json
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from hack.cluster.errors import ApiRefused, ClusterError, NotReady

Json = dict[str, Any]

MANAGER: Final = "hack-cluster"
_TIMEOUT_S: Final = 15.0
_NOT_FOUND: Final = 404
_LOOK_S: Final = 0.1


class Api:
    """Requests as the user of a kubeconfig. Safe for many threads: each request has its own connection."""

    def __init__(self, kubeconfig: Path) -> None:
        """Raises ClusterError when the file cannot be read."""
        try:
            document = json.loads(kubeconfig.read_text(encoding="ascii"))
        except (OSError, ValueError) as error:
            raise ClusterError(f"kubeconfig {kubeconfig}: {error}; is the cluster up?") from error
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        parts = urlsplit(cluster["server"])
        self.server: str = cluster["server"]
        self._host, self._port = str(parts.hostname), parts.port or 443
        self._context = ssl.create_default_context(cadata=_text(cluster["certificate-authority-data"]))
        self._headers = {"Accept": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        else:
            _load(self._context, _text(user["client-certificate-data"]) + _text(user["client-key-data"]))
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def raw(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """Send and return the body of the answer. Raises ApiRefused, ClusterError when nobody answers."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._context)
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = kind
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"{method} {path}: {self.server}: {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            shown = content.decode(errors="replace")[:1000]
            raise ApiRefused(f"{method} {path}: HTTP {response.status}: {shown}", response.status)
        return content

    def request(self, method: str, path: str, body: Json | None = None, query: Mapping[str, str] | None = None) -> Json:
        """Send a document, get one. Raises ApiRefused or ClusterError."""
        whole = f"{path}?{urlencode(query)}" if query else path
        content = self.raw(method, whole, None if body is None else json.dumps(body).encode())
        answer: Json = json.loads(content)
        return answer

    def get(self, path: str, **query: str) -> Json:
        """GET."""
        return self.request("GET", path, None, query)

    def find(self, path: str) -> Json | None:
        """GET, None when there is no such object."""
        try:
            return self.get(path)
        except ApiRefused as refused:
            if refused.status == _NOT_FOUND:
                return None
            raise

    def delete(self, path: str, body: Json | None = None) -> None:
        """DELETE; that it is gone already is fine."""
        try:
            self.request("DELETE", path, body)
        except ApiRefused as refused:
            if refused.status != _NOT_FOUND:
                raise

    def apply(self, document: Json) -> Json:
        """Server-side apply, also of what is there already; the namespace is ``default`` when none is set."""
        metadata = document["metadata"]
        path = f"{self.path(document)}/{metadata['name']}?{urlencode({'fieldManager': MANAGER, 'force': 'true'})}"
        content = self.raw("PATCH", path, json.dumps(document).encode(), "application/apply-patch+yaml")
        answer: Json = json.loads(content)
        return answer

    def apply_all(self, documents: Iterable[Json]) -> None:
        """Apply one after the other."""
        for document in documents:
            self.apply(document)

    def path(self, document: Json) -> str:
        """Path of the collection that an object belongs to."""
        version = document["apiVersion"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        plural, namespaced = self._plural(base, document["kind"])
        if not namespaced:
            return f"{base}/{plural}"
        return f"{base}/namespaces/{document['metadata'].get('namespace', 'default')}/{plural}"

    def wait_ready(self, seconds: float) -> None:
        """Wait until /readyz says so. Raises NotReady."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.raw("GET", "/readyz")
                return
            except ClusterError as error:
                if time.monotonic() > deadline:
                    raise NotReady(f"the API server was not ready within {seconds:g} s: {error}") from error
            time.sleep(_LOOK_S)

    def _plural(self, base: str, kind: str) -> tuple[str, bool]:
        if (base, kind) not in self._plurals:
            for found in self.get(base)["resources"]:
                if "/" not in found["name"]:
                    self._plurals[base, found["kind"]] = (found["name"], found["namespaced"])
        try:
            return self._plurals[base, kind]
        except KeyError:
            raise ClusterError(f"the API server knows no kind {kind} in {base}") from None


def condition(document: Json, kind: str) -> Mapping[str, str]:
    """A condition of an object's status, empty when it has none of this type."""
    conditions = document.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind), {})


def _text(data: str) -> str:
    return base64.b64decode(data).decode("ascii")


def _load(context: ssl.SSLContext, chain: str) -> None:
    # The ssl module reads client certificates from files only.
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
        file.write(chain)
        file.flush()
        context.load_cert_chain(file.name)
