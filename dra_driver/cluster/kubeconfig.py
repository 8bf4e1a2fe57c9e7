"""Kubeconfig files: who the current context talks to, and as whom. Reads files; opens no connection.

Covers what certificates, tokens and CA bundles need. Users whose credentials a program or a cloud login must fetch
are told apart, for the official loader. Form: client-go ``clientcmd/api/v1``.
"""

import base64
import binascii
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from dra_driver.model.errors import SettingError

_FETCHED = ("exec", "auth-provider", "username", "password")
"""Fields of a user that only the official loader knows what to do with."""

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """The current context, resolved. Paths are absolute; ``*_data`` is PEM text and wins over the path.

    fetched: the user's credentials must be fetched; then only ``source`` says anything about the user.
    """

    source: str
    server: str
    ca_file: str | None = None
    ca_data: str | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    certificate_file: str | None = None
    certificate_data: str | None = None
    key_file: str | None = None
    key_data: str | None = None
    token: str | None = None
    token_file: str | None = None
    fetched: bool = False


def read_kubeconfig(setting: str) -> Kubeconfig:
    """Read a file, or several separated as in ``PATH``, of which the first that says something counts.

    Raises SettingError naming the file, what is wrong in it and what there is instead.
    """
    documents = [_document(Path(path).expanduser()) for path in setting.split(os.pathsep) if path]
    current = next((str(doc["current-context"]) for doc in documents if doc.get("current-context")), "")
    if not current:
        raise _wrong(setting, f"current-context is not set; contexts: {_names(documents, 'contexts')}")
    context = _named(setting, documents, "context", current)
    cluster = _named(setting, documents, "cluster", context.get("cluster"))
    user = _named(setting, documents, "user", context.get("user")) if context.get("user") else {}
    found = Kubeconfig(
        source=setting,
        server=_server(setting, cluster.get("server")),
        ca_file=cluster.get("certificate-authority"),
        ca_data=_pem(setting, cluster, "certificate-authority-data"),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        tls_server_name=cluster.get("tls-server-name"),
        proxy_url=cluster.get("proxy-url"),
        certificate_file=user.get("client-certificate"),
        certificate_data=_pem(setting, user, "client-certificate-data"),
        key_file=user.get("client-key"),
        key_data=_pem(setting, user, "client-key-data"),
        token=user.get("token"),
        token_file=user.get("tokenFile"),
        fetched=any(user.get(field) for field in _FETCHED),
    )
    _check_files(setting, found)
    return found


def _document(path: Path) -> dict[str, Any]:
    """One file as a mapping, with the paths in it made absolute."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
        raise _wrong(str(path), f"{why}; give a readable file, or none inside a pod") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _wrong(str(path), f"not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(document, dict):
        raise _wrong(str(path), f"not a kubeconfig: a mapping is wanted, found {type(document).__name__}")
    for kind in ("cluster", "user"):
        for entry in _entries(document, f"{kind}s"):
            values = entry.get(kind)
            if isinstance(values, dict):
                values |= {name: str(path.parent.absolute() / values[name]) for name in _FILES if values.get(name)}
    return document


def _entries(document: dict[str, Any], section: str) -> list[dict[str, Any]]:
    entries = document.get(section)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _named(setting: str, documents: Iterable[dict[str, Any]], kind: str, name: object) -> dict[str, Any]:
    """The entry of ``contexts``, ``clusters`` or ``users`` with this name."""
    documents = list(documents)
    for document in documents:
        for entry in _entries(document, f"{kind}s"):
            if entry.get("name") == name and isinstance(entry.get(kind), dict):
                return dict(entry[kind])
    raise _wrong(setting, f"no {kind} named {name!r}; {kind}s: {_names(documents, f'{kind}s')}")


def _names(documents: Iterable[dict[str, Any]], section: str) -> str:
    names = [str(entry.get("name")) for document in documents for entry in _entries(document, section)]
    return ", ".join(names) or "none"


def _server(setting: str, server: object) -> str:
    try:
        parts = urlsplit(str(server or ""))
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise _wrong(setting, f"server {server!r} is not a URL such as https://host:6443")
    return str(server).rstrip("/")


def _pem(setting: str, values: dict[str, Any], field: str) -> str | None:
    """A ``-data`` field, base64 of PEM text."""
    data = values.get(field)
    if not data:
        return None
    try:
        text = base64.b64decode(str(data), validate=True).decode("ascii")
    except (binascii.Error, ValueError) as error:
        raise _wrong(setting, f"{field} is not base64 of PEM text") from error
    if "-----BEGIN " not in text:
        raise _wrong(setting, f"{field} holds no PEM text")
    return text


def _check_files(setting: str, found: Kubeconfig) -> None:
    """Files must be there now, so that the error comes at the start and not with the first request."""
    unused_ca = found.ca_data or found.insecure
    wanted = {
        "certificate-authority": None if unused_ca else found.ca_file,
        "client-certificate": None if found.certificate_data else found.certificate_file,
        "client-key": None if found.key_data else found.key_file,
        "tokenFile": None if found.token else found.token_file,
    }
    for field, path in wanted.items():
        if path is not None and not os.access(path, os.R_OK):
            raise _wrong(setting, f"{field} {path} cannot be read")


def _wrong(setting: str, why: str) -> SettingError:
    return SettingError(f"kubeconfig {setting}: {why}")
