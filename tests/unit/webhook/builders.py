"""AdmissionReviews as the API server sends them, for claims and templates in the forms of its versions."""

import json
from typing import Any

Json = dict[str, Any]

TIME_SLICING: Json = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}


def parameters(sharing: Json | None = TIME_SLICING, kind: str = "GpuConfig", **other: Any) -> Json:
    """Opaque parameters of this driver."""
    found: Json = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **other}
    return found if sharing is None else found | {"sharing": sharing}


def config(given: Any, driver: str = "gpu.nvidia.com", **other: Any) -> Json:
    """An entry of ``config``."""
    return {"opaque": {"driver": driver, "parameters": given}, **other}


def request(name: str, version: str = "v1", **body: Any) -> Json:
    """A request for a GPU."""
    body = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1, **body}
    return {"name": name, **(body if version == "v1beta1" else {"exactly": body})}


def spec(*configs: Json, version: str = "v1", requests: list[Json] | None = None) -> Json:
    """Spec of a claim."""
    return {"devices": {"requests": requests or [request("gpu", version)], "config": list(configs)}}


def review(
    *configs: Json,
    version: str = "v1",
    resource: str = "resourceclaims",
    operation: str = "CREATE",
    requests: list[Json] | None = None,
    **other: Any,
) -> Json:
    """An AdmissionReview for a claim or a template with these configs. other: fields of ``request``."""
    made = spec(*configs, version=version, requests=requests)
    template = resource == "resourceclaimtemplates"
    found = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {"spec": made} if template else made,
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "operation": operation,
            "resource": {"group": "resource.k8s.io", "version": version, "resource": resource},
            "namespace": "ns",
            "name": "c",
            "object": found,
            "oldObject": None,
            **other,
        },
    }


def encoded(document: Any) -> bytes:
    """As it is sent."""
    return json.dumps(document).encode()
