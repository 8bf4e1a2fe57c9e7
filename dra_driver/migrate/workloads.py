"""Objects with pods: what they ask for, and how they ask for it with claims where their resources do not do it."""

import copy
import re
from collections.abc import Iterator
from typing import Any, Final

from dra_driver.migrate.fleet import SHARE_CLASS, SHARES_SINCE, Fleet
from dra_driver.migrate.legacy import (
    GPU,
    SHARED_SUFFIX,
    Json,
    Legacy,
    Outcome,
    Strategy,
    Workload,
    containers,
    is_gpu,
)
from dra_driver.migrate.mps import say_of_workload
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
_FIXED: Final = ("Pod", "Job")
"""Kinds whose pods cannot be changed by kubectl apply."""


_PREFIX: Final = "nvidia.com/"
_SEVERAL: Final = (
    "these are shares of as many devices of one node now; before they were replicas, maybe of one GPU. "
    'For several shares of one GPU write a claim with capacity.requests {shares: "N"}'
)
_SEVERAL_OF_A_CLAIM: Final = (
    "all its pods share one device now; before these were replicas, maybe of several GPUs. "
    "For several give the claim's request a count"
)
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
        asked = each.asked
        if not asked:
            continue
        what = f"{each.kind} {each.namespace}/{each.name}"
        _say_ambiguous(each, legacy, fleet, minor, what)
        changed = copy.deepcopy(each.content)
        dropped = _without_selectors(_spec_of(changed, each), each, legacy, what)
        keeps = minor >= SHARES_SINCE and not claims and not fleet.through_mps(each)
        if each.kind in _FIXED and (dropped or not keeps):
            said = f"a {each.kind} cannot be changed: delete it, then apply what is written"
            legacy.say(Outcome.DECIDE, each.where, what, said)
        if keeps:
            names = ", ".join(f"{name}: {count}" for name, count in asked.items() if name in fleet.served)
            if names:
                said = "unchanged: DeviceClasses serve these names"
                legacy.say(Outcome.MAPPED, each.where, f"{what} asks for {names}", said)
            if dropped:
                yield each, [changed]
            continue
        objects, said = _with_claims(each, changed, asked, fleet, minor)
        legacy.say(Outcome.MAPPED, each.where, f"{what} asks by resources", said)
        yield each, [*objects, changed]


def _say_ambiguous(each: Workload, legacy: Legacy, fleet: Fleet, minor: int, what: str) -> None:
    named = _strategy_of_named_claim(each, fleet, minor)
    for name, count in each.asked.items():
        if name not in fleet.served:
            said = f"no DeviceClass serves that name: ask for one of {', '.join(sorted(fleet.served))}"
            legacy.say(Outcome.DECIDE, each.where, f"{what} asks for {name}", said)
        elif count > 1 and (named or name in fleet.shared):
            said = _SEVERAL_OF_A_CLAIM if named else _SEVERAL
            legacy.say(Outcome.DECIDE, each.where, f"{what} asks for {count} of {name}", said)
    if named is Strategy.TIME_SLICING and fleet.partly and each.kind != "Pod":
        said = (
            "its pods share one device now. Some nodes were not shared: if its pods had whole GPUs there, make its "
            "claim a ResourceClaimTemplate without config"
        )
        legacy.say(Outcome.DECIDE, each.where, what, said)
    say_of_workload(each, fleet.through_mps(each), fleet.may_have_mps(each), legacy, what)
    if named and each.kind == "DaemonSet":
        said = "its pods are on several nodes, and a named claim has a device of one: make a claim for each node"
        legacy.say(Outcome.DECIDE, each.where, what, said)
    for container in containers(each.pod_spec):
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
    named = _strategy_of_named_claim(each, fleet, minor)
    shares = minor >= SHARES_SINCE and named is not Strategy.MPS
    requests: list[Json] = []
    spec = _spec_of(changed, each)
    for index, container in enumerate(containers(spec)):
        resources = container.get("resources") or {}
        taken = _take(resources)
        for number, (name, count) in enumerate(taken.items()):
            request = f"container-{index}-{number}" if not named else _request_name(name)
            exactly: Json = {"deviceClassName": _class_name(name, fleet, shares)}
            if count > 1 and not named:
                exactly["count"] = count
            if named is Strategy.MPS and fleet.shared and minor >= SHARES_SINCE:
                # MPS needs a GPU for one claim alone, and a driver refuses it for a share.
                exactly["selectors"] = [{"cel": {"expression": "!device.allowMultipleAllocations"}}]
            if all(known["name"] != request for known in requests):
                requests.append({"name": request, "exactly": exactly})
            resources.setdefault("claims", []).append({"name": _CLAIM, "request": request})
    devices: Json = {"requests": requests}
    metadata = {"name": f"{each.name}-gpu", "namespace": each.namespace}
    if named:
        names = [str(request["name"]) for request in requests]
        if _request_name(GPU) in names:
            # A GpuConfig for a MIG device is refused: it has no time slice.
            devices["config"] = [_sharing(_request_name(GPU), named)]
        reference = {"resourceClaimName": metadata["name"]}
        claim = {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}
        what = "one GPU" if names == [_request_name(GPU)] else f"its devices ({', '.join(names)})"
        said = f"ResourceClaim {metadata['name']}: all its pods share {what}, which other workloads do not"
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
        for name in [name for name in amounts if is_gpu(name)]:
            found[name] = int(amounts.pop(name))
        if part in resources and not amounts:
            del resources[part]
    return {name: count for name, count in found.items() if count}


def _strategy_of_named_claim(each: Workload, fleet: Fleet, minor: int) -> Strategy | None:
    """How its pods share one named claim, where they shared a device and cannot have shares; None for no such claim."""
    if fleet.through_mps(each):
        return Strategy.MPS
    shared = minor < SHARES_SINCE and any(name in fleet.shared for name in each.asked)
    return Strategy.TIME_SLICING if shared else None


def _request_name(resource: str) -> str:
    """Of ``nvidia.com/mig-1g.10gb``: ``mig-1g-10gb``."""
    return resource.removeprefix(_PREFIX).removesuffix(SHARED_SUFFIX).replace(".", "-")


def _sharing(request: str, strategy: Strategy) -> Json:
    """With MPS no limits: the device plugin's were made from the number of replicas, and starve a lone client."""
    sharing: Json = {"strategy": "MPS"}
    if strategy is Strategy.TIME_SLICING:
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return {"requests": [request], "opaque": {"driver": DRIVER_NAME, "parameters": parameters}}


def _class_name(resource: str, fleet: Fleet, shares: bool) -> str:
    """The chart's names, and that of the class that ``fleet`` adds. shares: whether classes of shares are wanted."""
    if shares and resource == GPU + SHARED_SUFFIX and not fleet.renamed:
        return SHARE_CLASS
    known = resource if shares else resource.removesuffix(SHARED_SUFFIX)
    return f"{known.removeprefix(_PREFIX)}.nvidia.com"
