"""Kubernetes objects of the scenes. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver_api import names
from hack.hardware.pod_images import BARE

Json = dict[str, Any]

NAMESPACE: Final = "default"
SHARED_BY_TURNS: Final = "Default"
"""The interval that a card has when nobody has set one."""


def claim(name: str, *requests: str, interval: str = "") -> Json:
    """A ResourceClaim of one GPU for each request, ``gpu`` when none is named; interval: a time slice to ask for."""
    devices: Json = {
        "requests": [{"name": each, "exactly": {"deviceClassName": names.DRIVER_NAME}} for each in requests or ("gpu",)]
    }
    if interval:
        parameters = {
            "apiVersion": names.CONFIG_API_VERSION,
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
        }
        devices["config"] = [{"opaque": {"driver": names.DRIVER_NAME, "parameters": parameters}}]
    return {
        "apiVersion": names.RESOURCE_API_VERSION,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": devices},
    }


def container(
    name: str, word: str, *claims: Mapping[str, str], image: str = BARE.image, env: Mapping[str, str] | None = None
) -> Json:
    """A container that runs the program with a word. claims: entries of ``resources.claims``."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "args": [word],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"claims": list(claims)},
    }


def pod(name: str, containers: Sequence[Json], claim: str = "") -> Json:
    """A pod that runs once. claim: the ResourceClaim that its containers call ``gpu``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "containers": list(containers),
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}] if claim else [],
        },
    }
