"""What is asked about: the claims of a pod, of a template, or a claim itself, whether they exist yet or not."""

from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.explain.state import Json, State, full_name, namespace_of
from dra_driver.model.errors import DriverError
from dra_driver.scheduling import consumption

EXTENDED_CLAIM = "extended resources"
_SEVERAL = 2


class NotThere(DriverError):
    """What is asked about, or something it needs, does not exist."""


@dataclass(frozen=True, slots=True)
class Question:
    """One claim to explain. title: what a person calls it; pod: whose it is, for where it may run."""

    title: str
    claim: Json
    pod: Json | None = None


def questions(state: State, kind: str, name: str, namespace: str) -> list[Question]:
    """The claims that a pod, claim or template comes down to. Raises NotThere."""
    found = state.find(kind, name, namespace)
    if found is None:
        known = sorted(each["metadata"].get("name", "") for each in state.all(kind) if namespace_of(each) == namespace)
        raise NotThere(f"there is no {kind} {name} in namespace {namespace}{_those(known)}")
    if kind == "Pod":
        return _with_all_together(list(_of_pod(state, found)))
    if kind == "ResourceClaimTemplate":
        return [_of_template(found)]
    return [Question(f"ResourceClaim {full_name(found)}", found)]


def unserved(state: State, kind: str, name: str, namespace: str) -> list[str]:
    """Resources with a domain that a pod asks for and no DeviceClass stands for."""
    found = state.find(kind, name, namespace)
    if found is None or kind != "Pod":
        return []
    served = _by_resource(state)
    limits = ((each.get("resources") or {}).get("limits") or {} for each in found["spec"].get("containers") or [])
    names = dict.fromkeys(name for each in limits for name in each)
    return [name for name in names if "/" in name and name not in served]


def all_questions(state: State) -> list[Question]:
    """About everything in the files that asks for devices: pods, and what no pod there uses."""
    pods = [question for pod in state.all("Pod") for question in _with_all_together(list(_of_pod(state, pod)))]
    used = {full_name(question.claim) for question in pods} | {
        f"{namespace_of(pod)}/{entry['resourceClaimTemplateName']}"
        for pod in state.all("Pod")
        for entry in pod["spec"].get("resourceClaims") or []
        if "resourceClaimTemplateName" in entry
    }
    claims = [each for each in state.all("ResourceClaim") if full_name(each) not in used]
    templates = [each for each in state.all("ResourceClaimTemplate") if full_name(each) not in used]
    return [
        *pods,
        *(Question(f"ResourceClaim {full_name(each)}", each) for each in claims),
        *(_of_template(each) for each in templates),
    ]


def _of_pod(state: State, pod: Json) -> Iterator[Question]:
    namespace, status = namespace_of(pod), pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or []}
    for entry in pod["spec"].get("resourceClaims") or []:
        title = f"claim {entry['name']} of pod {full_name(pod)}"
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name:
            claim = state.find("ResourceClaim", name, namespace)
            if claim is None:
                raise NotThere(f"{title}: there is no ResourceClaim {name} in namespace {namespace}: create it")
            yield Question(f"{title} (ResourceClaim {name})", claim, pod)
        elif template_name := entry.get("resourceClaimTemplateName"):
            template = state.find("ResourceClaimTemplate", template_name, namespace)
            if template is None:
                raise NotThere(
                    f"{title}: there is no ResourceClaimTemplate {template_name} in namespace {namespace}: create it"
                )
            yield Question(f"{title} (from ResourceClaimTemplate {template_name})", _of_template(template).claim, pod)
    extended = _extended(state, pod)
    if extended is not None:
        yield Question(f"{EXTENDED_CLAIM} of pod {full_name(pod)}", extended, pod)


def _with_all_together(asked: list[Question]) -> list[Question]:
    """A pod needs all its claims on one node: a question more where several are still to be served."""
    waiting = [each for each in asked if not consumption.results(each.claim)]
    if len(waiting) < _SEVERAL:
        return asked
    requests: list[Json] = []
    constraints: list[Json] = []
    for number, question in enumerate(waiting):
        devices = question.claim["spec"].get("devices") or {}
        own = [{**each, "name": f"{number}-{each['name']}"} for each in devices.get("requests") or []]
        requests += own
        for constraint in devices.get("constraints") or []:
            names = [f"{number}-{name}" for name in constraint.get("requests") or ()]
            constraints.append({**constraint, "requests": names or [each["name"] for each in own]})
    pod = waiting[0].pod or {}
    metadata = {"name": f"{pod['metadata'].get('name')}-together", "namespace": namespace_of(pod)}
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    claim = {"kind": "ResourceClaim", "metadata": metadata, "spec": spec}
    return [*asked, Question(f"all {len(waiting)} claims of pod {full_name(pod)} together", claim, pod)]


def _of_template(template: Json) -> Question:
    claim = {"kind": "ResourceClaim", "metadata": template["metadata"], "spec": template["spec"]["spec"]}
    return Question(f"ResourceClaimTemplate {full_name(template)}", claim)


def _extended(state: State, pod: Json) -> Json | None:
    """The claim that the scheduler makes of resources like ``nvidia.com/gpu: 1`` that a DeviceClass stands for."""
    made = ((pod.get("status") or {}).get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    if made and (claim := state.find("ResourceClaim", made, namespace_of(pod))):
        return claim
    names = _by_resource(state)
    requests = [
        {"name": f"container-{index}-request-{number}", "exactly": {"deviceClassName": name, "count": count}}
        for index, container in enumerate(pod["spec"].get("containers") or [])
        for number, (name, count) in enumerate(_demands(container, names))
    ]
    if not requests:
        return None
    metadata = {"name": f"{pod['metadata'].get('name')}-extended-resources", "namespace": namespace_of(pod)}
    return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": requests}}}


def _by_resource(state: State) -> dict[str, str]:
    """DeviceClasses by the resource that each stands for."""
    return {
        each["spec"].get("extendedResourceName") or f"deviceclass.resource.kubernetes.io/{name}": name
        for name, each in state.classes.items()
    }


def _demands(container: Json, names: dict[str, str]) -> list[tuple[str, int]]:
    """(DeviceClass, number of devices) that a container asks for by resources."""
    asked = container.get("resources") or {}
    amounts = {**(asked.get("limits") or {}), **(asked.get("requests") or {})}
    return [
        (names[resource], int(amount))
        for resource, amount in amounts.items()
        if resource in names and str(amount).isdecimal() and int(amount)
    ]


def _those(names: list[str]) -> str:
    return f"; there are: {', '.join(names[:10])}" if names else ""
