"""Objects with pods: what they ask for, and how they ask for it with claims where their resources do not do it."""

import copy
import re
from collections.abc import Iterator
from typing import Any, Final

from dra_driver.migrate.fleet import SHARES_SINCE, Fleet
from dra_driver.migrate.legacy import GPU, MIG_PREFIX, SHARED_SUFFIX, Json, Legacy, Outcome, Workload
from dra_driver_api.names import DRIVER_NAME, RESOURCE_API_VERSION

_POD: Final = ("spec",)
_TEMPLATE: Final = ("spec", "template", "spec")
_PATHS: Final = {
    "Pod": _POD,
    "Deployment": _TEMPLATE,
    "StatefulSet": _TEMPLATE,
    "DaemonSet": _TEMPLATE,
    "ReplicaSet": _TEMPLATE,
    "ReplicationController": _TEMPLATE,
    "Job": _TEMPLATE,
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
_CLAIM: Final = "gpu"
_GKE: Final = ("cloud.google.com/gke-gpu-sharing-strategy", "cloud.google.com/gke-max-shared-clients-per-gpu",
               "cloud.google.com/gke-gpu-partition-size")  # fmt: skip
_GFD: Final = re.compile(r"nvidia\.com/(gpu\.(product|memory|count|replicas|family|sharing-strategy)|mig|cuda|mps)")
_CLASSES: Final = {GPU: "gpu.nvidia.com", GPU + SHARED_SUFFIX: "gpu.shared.nvidia.com"}


_ANNOTATIONS: Final = ("kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision")
_SERVERS: Final = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


def workload(content: Json, where: str) -> Workload | None:
    """The object as a workload, without what the API server added; None for one without pods."""
    path = _PATHS.get(str(content.get("kind")))
    found: Any = content
    for part in path or ():
        found = found.get(part) if isinstance(found, dict) else None
    return Workload(where, _bare(content), path) if path and isinstance(found, dict) else None


def _bare(content: Json) -> Json:
    metadata = {key: value for key, value in content["metadata"].items() if key not in _SERVERS}
    notes = {key: value for key, value in (metadata.pop("annotations", None) or {}).items() if key not in _ANNOTATIONS}
    if notes:
        metadata["annotations"] = notes
    return {key: value for key, value in {**content, "metadata": metadata}.items() if key != "status"}


def moved(legacy: Legacy, fleet: Fleet, minor: int, *, claims: bool) -> Iterator[tuple[Workload, list[Json]]]:
    """Workloads that have to be changed, each with the objects to apply. claims: also those that need not be.

    Findings go to ``legacy``.
    """
    for each in legacy.workloads:
        asked = dict(_asked(each.pod_spec))
        if not asked:
            continue
        what = f"{each.kind} {each.namespace}/{each.name}"
        _say_ambiguous(each, asked, legacy, fleet, what)
        changed = copy.deepcopy(each.content)
        dropped = _without_selectors(_spec_of(changed, each), each, legacy, what)
        if minor >= SHARES_SINCE and not claims:
            names = ", ".join(f"{name}: {count}" for name, count in asked.items())
            legacy.say(
                Outcome.MAPPED, each.where, f"{what} asks for {names}", "unchanged: DeviceClasses serve these names"
            )
            if dropped:
                yield each, [changed]
            continue
        if each.kind == "Pod":
            legacy.say(
                Outcome.DECIDE, each.where, what, "a pod cannot be changed: delete it, then apply what is written"
            )
        objects, said = _with_claims(each, changed, asked, fleet, minor)
        legacy.say(Outcome.MAPPED, each.where, f"{what} asks by resources", said)
        yield each, [*objects, changed]


def _asked(spec: Json) -> Iterator[tuple[str, int]]:
    """(resource, number) of NVIDIA's resources of all containers, summed up."""
    found: dict[str, int] = {}
    for container in _containers(spec):
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
            if _is_gpu(name) and str(amount).isdecimal() and int(amount):
                found[name] = found.get(name, 0) + int(amount)
    yield from found.items()


def _is_gpu(name: str) -> bool:
    return name in (GPU, GPU + SHARED_SUFFIX) or name.startswith(MIG_PREFIX)


def _containers(spec: Json) -> Iterator[Json]:
    yield from (
        c for c in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])] if isinstance(c, dict)
    )


def _say_ambiguous(each: Workload, asked: dict[str, int], legacy: Legacy, fleet: Fleet, what: str) -> None:
    for name, count in asked.items():
        if count > 1 and fleet.shared:
            said = (
                "these are shares of as many GPUs of one node now; before they were replicas, maybe of one GPU. "
                'For several shares of one GPU write a claim with capacity.requests {shares: "N"}'
            )
            legacy.say(Outcome.DECIDE, each.where, f"{what} asks for {count} of {name}", said)
    for container in _containers(each.pod_spec):
        for variable in container.get("env") or []:
            if variable.get("name") == "NVIDIA_VISIBLE_DEVICES":
                said = "remove it: it is void under CDI, and 'all' would show every GPU where the runtime obeys it"
                legacy.say(Outcome.DECIDE, each.where, f"{what}: env NVIDIA_VISIBLE_DEVICES", said)


def _without_selectors(spec: Json, each: Workload, legacy: Legacy, what: str) -> bool:
    """Drop what GKE's sharing was selected by; say what else selects nodes by labels that may go away."""
    selector = spec.get("nodeSelector") or {}
    gone = [key for key in _GKE if key in selector]
    for key in gone:
        legacy.say(
            Outcome.MAPPED, each.where, f"{what}: nodeSelector {key}", "dropped: sharing is said by the sharing profile"
        )
        del selector[key]
    if gone and not selector:
        del spec["nodeSelector"]
    text = str(spec.get("nodeSelector")) + str(spec.get("affinity"))
    for key in sorted({found[0] for found in _GFD.finditer(text)}):
        said = "a label of GPU Feature Discovery: keep that running, or select devices in a claim by productName"
        legacy.say(Outcome.DECIDE, each.where, f"{what} selects nodes by {key}", said)
    return bool(gone)


def _spec_of(content: Json, each: Workload) -> Json:
    found: Any = content
    for part in each.path:
        found = found[part]
    return found  # type: ignore[no-any-return]


def _with_claims(
    each: Workload, changed: Json, asked: dict[str, int], fleet: Fleet, minor: int
) -> tuple[list[Json], str]:
    """Replace resources by a claim in ``changed``; the objects it needs beside."""
    named = minor < SHARES_SINCE and fleet.shared
    requests: list[Json] = []
    spec = _spec_of(changed, each)
    for index, container in enumerate(_containers(spec)):
        resources = container.get("resources") or {}
        taken = _take(resources)
        for number, (name, count) in enumerate(taken.items()):
            request = f"container-{index}-{number}" if not named else "gpu"
            exactly: Json = {"deviceClassName": _class_name(name, fleet)}
            if count > 1 and not named:
                exactly["count"] = count
            if all(known["name"] != request for known in requests):
                requests.append({"name": request, "exactly": exactly})
            resources.setdefault("claims", []).append({"name": _CLAIM, "request": request})
    devices: Json = {"requests": requests}
    metadata = {"name": f"{each.name}-gpu", "namespace": each.namespace}
    if named:
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}
        parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}]
        reference = {"resourceClaimName": metadata["name"]}
        claim = {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}
        said = f"ResourceClaim {metadata['name']}: all its pods share one GPU, which other workloads do not"
    else:
        reference = {"resourceClaimTemplateName": metadata["name"]}
        claim = {"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": {"devices": devices}}}
        said = f"ResourceClaimTemplate {metadata['name']}: a claim for each pod"
    spec.setdefault("resourceClaims", []).append({"name": _CLAIM, **reference})
    return [{"apiVersion": RESOURCE_API_VERSION, **claim}], said


def _take(resources: Json) -> dict[str, int]:
    """Remove NVIDIA's resources from a container; what they were."""
    found: dict[str, int] = {}
    for part in ("requests", "limits"):
        amounts = resources.get(part) or {}
        for name in [name for name in amounts if _is_gpu(name)]:
            found[name] = int(amounts.pop(name))
        if part in resources and not amounts:
            del resources[part]
    return {name: count for name, count in found.items() if count}


def _class_name(resource: str, fleet: Fleet) -> str:
    if resource in _CLASSES:
        return _CLASSES[resource] if fleet.renamed or resource == GPU else "gpu-share.nvidia.com"
    return f"{resource.removeprefix('nvidia.com/')}.nvidia.com"
