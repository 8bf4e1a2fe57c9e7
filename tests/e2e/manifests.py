"""Kubernetes objects that end-to-end tests make. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from dra_driver_api.names import DRIVER_NAME
from hack.image import gpu_report

Json = dict[str, Any]

RESOURCE: Final = "resource.k8s.io/v1"
CLASS: Final = "gpu.nvidia.com"

_RBAC: Final = "rbac.authorization.k8s.io"
KUBELET_RIGHTS: Final[tuple[Json, ...]] = (
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "kubelets-read-at-once"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        ],
    },
    {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubelets-read-at-once"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "kubelets-read-at-once"},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": "system:nodes"}],
    },
)
"""Kubernetes' node authorizer learns of a pod's claim by a watch. On a busy machine the kubelet is told first: its GET
is refused ("no relationship found between node and this object"), and it tries again only after a minute and a half."""


def pod(name: str, **claims: Json) -> Json:
    """A pod with one container, which reports its GPUs and stays; claims: name in the pod -> how it is referred to."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": pod_spec([container("main", *({"name": claim} for claim in claims))], claims),
    }


def pod_spec(containers: Sequence[Json], claims: Mapping[str, Json]) -> Json:
    """Spec with these containers and claims."""
    return {
        "terminationGracePeriodSeconds": 5,
        # Nothing here asks the API server, and a token less is a mount less.
        "automountServiceAccountToken": False,
        "containers": list(containers),
        "resourceClaims": [{"name": name, **reference} for name, reference in claims.items()],
    }


def container(name: str, *claims: Json) -> Json:
    """A container that reports its GPUs and stays; claims: entries of ``resources.claims``."""
    return {
        "name": name,
        "image": gpu_report.NAME,
        "imagePullPolicy": "Never",
        "args": ["hold"],
        "resources": {"claims": list(claims)},
    }


def named(claim: str) -> Json:
    """Reference to a ResourceClaim, which all pods that name it share."""
    return {"resourceClaimName": claim}


def from_template(template: str) -> Json:
    """Reference to a ResourceClaimTemplate, which makes a claim for each pod."""
    return {"resourceClaimTemplateName": template}


def asking(name: str, resource: str = "nvidia.com/gpu") -> Json:
    """A pod as ``pod`` makes it that asks for one of a resource, without a claim."""
    found = pod(name)
    found["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    return found


def deployment(name: str, replicas: int, **claims: Json) -> Json:
    """A Deployment of such pods."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod(name, **claims)["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def claim(name: str, *requests: Json, config: Iterable[Json] = (), constraints: Iterable[Json] = ()) -> Json:
    """A ResourceClaim; one GPU when no request is given."""
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices(*requests, config=config, constraints=constraints)},
    }


def template(name: str, *requests: Json, config: Iterable[Json] = ()) -> Json:
    """A ResourceClaimTemplate; one GPU when no request is given."""
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices(*requests, config=config)}},
    }


def devices(*requests: Json, config: Iterable[Json] = (), constraints: Iterable[Json] = ()) -> Json:
    """``spec.devices``."""
    found: Json = {"requests": list(requests) or [request("gpu")]}
    return found | {name: list(part) for name, part in (("config", config), ("constraints", constraints)) if part}


def request(name: str, *expressions: str, **other: Any) -> Json:
    """A request for GPUs, by CEL expressions; other: fields of ``exactly``, such as ``count``."""
    return {"name": name, "exactly": {"deviceClassName": CLASS, **selectors(expressions), **other}}


def selectors(expressions: Sequence[str]) -> Json:
    """The field ``selectors``, left out when there is none."""
    return {"selectors": [{"cel": {"expression": text}} for text in expressions]} if expressions else {}


def time_slicing(interval: str) -> Json:
    """Config of a claim that asks for a time slice."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    }
    return {"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}


def mps(**settings: Any) -> Json:
    """Config of a claim that asks for MPS; settings: fields of ``mpsConfig``."""
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": settings},
    }
    return {"opaque": {"driver": DRIVER_NAME, "parameters": parameters}}


def runnable_here(text: str) -> list[Json]:
    """Objects of a shipped example, its containers with the image that is on the nodes."""
    objects = [document for document in yaml.safe_load_all(text) if document]
    for found in objects:
        of_pod = found["spec"]["template"]["spec"] if found["kind"] == "Deployment" else found["spec"]
        for each in of_pod.get("containers", ()):
            each |= {"image": gpu_report.NAME, "imagePullPolicy": "Never", "args": ["hold"]}
            each.pop("command", None)
    return objects
