"""API objects for the simulator's tests."""

from typing import Any

Json = dict[str, Any]

NODE = "node-a"


def uuid_of(minor: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{minor:012d}"


def gpu_device(minor: int, **attributes: Any) -> Json:
    given = {"type": {"string": "gpu"}, "uuid": {"string": uuid_of(minor)}} | attributes
    return {"name": f"gpu-{minor}", "attributes": given, "capacity": {"memory": {"value": "140Gi"}}}


def gpu_slice(gpus: int = 2, name: str = "00000-node-a", **pool: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1} | pool,
            "devices": [gpu_device(minor) for minor in range(gpus)],
        },
    }


def device_class(name: str = "gpu.nvidia.com", *configs: Json) -> Json:
    expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    if configs:
        spec["config"] = list(configs)
    return {"metadata": {"name": name}, "spec": spec}


def request(name: str = "gpu", **more: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu.nvidia.com"} | more}


def claim(name: str = "claim", *requests: Json, **devices: Any) -> Json:
    listed = list(requests) or [request()]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": listed} | devices}}


def opaque(interval: str, *requests: str) -> Json:
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    config: Json = {"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    return config | {"requests": list(requests)} if requests else config


def pod(name: str, *, claim_name: str = "", template: str = "", containers: tuple[str, ...] = ("main",)) -> Json:
    source = {"resourceClaimName": claim_name} if claim_name else {"resourceClaimTemplateName": template}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": c, "resources": {"claims": [{"name": "gpu"}]}} for c in containers],
            "resourceClaims": [{"name": "gpu", **source}],
        },
    }
