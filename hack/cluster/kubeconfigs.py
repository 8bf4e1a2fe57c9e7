"""Kubeconfig files, with everything in them: who uses one needs no other file."""

import base64
import json
from pathlib import Path
from typing import Any

from hack.cluster.certificates import Pair


def with_certificate(server: str, authority: str, user: str, pair: Pair) -> dict[str, Any]:
    """For a user with a client certificate. authority: PEM of the API server's CA."""
    return _document(
        server,
        authority,
        user,
        {
            "client-certificate-data": _data(pair.certificate),
            "client-key-data": _data(pair.key),
        },
    )


def with_token(server: str, authority: str, user: str, token: str) -> dict[str, Any]:
    """For a service account."""
    return _document(server, authority, user, {"token": token})


def keep(path: Path, document: dict[str, Any]) -> Path:
    """Write a kubeconfig, readable for its owner alone. JSON is YAML too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")
    return path


def _document(server: str, authority: str, user: str, credentials: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "cluster",
        "clusters": [
            {
                "name": "cluster",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": _data(authority),
                },
            }
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": user}}],
    }


def _data(pem: str) -> str:
    return base64.b64encode(pem.encode("ascii")).decode("ascii")
