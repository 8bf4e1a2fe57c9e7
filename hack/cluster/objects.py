"""API objects that the cluster starts with, and those that a driver running as host process needs. Pure."""

from typing import Any, Final

Json = dict[str, Any]

DRIVER: Final = "gpu.nvidia.com"
DRIVER_NAMESPACE: Final = "dra-driver-gpu"
DRIVER_ACCOUNT: Final = "dra-driver-gpu"

_RBAC: Final = "rbac.authorization.k8s.io"
_READ: Final = ["get", "list", "watch"]

DRIVER_RIGHTS: Final = (
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": _READ},
    {
        "apiGroups": ["resource.k8s.io"],
        "resources": ["resourceslices"],
        "verbs": [*_READ, "create", "update", "delete"],
    },
    {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
)
"""Exactly what the driver does; a call that is not here is refused, so that tests find it."""


def base() -> list[Json]:
    """What makes ``kubectl logs`` and ``exec`` work: the API server may ask the kubelets."""
    subject = {"apiGroup": _RBAC, "kind": "User", "name": "kube-apiserver-kubelet-client"}
    return [_binding("apiserver-kubelet-client", "system:kubelet-api-admin", subject)]


def driver() -> list[Json]:
    """Namespace, service account and rights of a driver that runs as host process."""
    account = {"kind": "ServiceAccount", "name": DRIVER_ACCOUNT, "namespace": DRIVER_NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DRIVER_NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": DRIVER_ACCOUNT, "namespace": DRIVER_NAMESPACE},
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": DRIVER_ACCOUNT},
            "rules": list(DRIVER_RIGHTS),
        },
        _binding(DRIVER_ACCOUNT, DRIVER_ACCOUNT, account),
    ]


def token_request(seconds: int, node: str) -> Json:
    """Body for the ``token`` subresource of a service account. The token names the node, as those of pods do."""
    spec = {"expirationSeconds": seconds, "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def _binding(name: str, role: str, subject: Json) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }
