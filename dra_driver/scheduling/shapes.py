"""The form of the Kubernetes objects that are read here, as far as they are read; people's files may hold anything."""

from functools import cache
from typing import Annotated, Any, Final, NotRequired

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

# pydantic wants this one before Python 3.12.
from typing_extensions import TypedDict

from dra_driver.scheduling import quantities


def _quantity(value: str | int | float) -> str | int | float:
    if quantities.parse(value) is None:
        raise ValueError(f"{value!r:.60} is no quantity")
    return value


Quantity = Annotated[str | int | float, AfterValidator(_quantity)]
Labels = dict[str, str]


class _Expression(TypedDict):
    expression: str


class _Selector(TypedDict):
    cel: NotRequired[_Expression]


class _Toleration(TypedDict):
    key: NotRequired[str | None]
    operator: NotRequired[str | None]
    value: NotRequired[str | None]
    effect: NotRequired[str | None]


class _Taint(TypedDict):
    key: str
    effect: str
    value: NotRequired[str | None]


class _Requests(TypedDict):
    requests: NotRequired[dict[str, Quantity] | None]


class _Exactly(TypedDict):
    deviceClassName: str
    selectors: NotRequired[list[_Selector] | None]
    allocationMode: NotRequired[str | None]
    count: NotRequired[int]
    adminAccess: NotRequired[bool | None]
    tolerations: NotRequired[list[_Toleration] | None]
    capacity: NotRequired[_Requests | None]


class _Alternative(_Exactly):
    name: str


class _Request(TypedDict):
    name: str
    exactly: NotRequired[_Exactly]
    firstAvailable: NotRequired[list[_Alternative] | None]


class _Constraint(TypedDict):
    requests: NotRequired[list[str] | None]
    matchAttribute: NotRequired[str | None]
    distinctAttribute: NotRequired[str | None]


class _Config(TypedDict):
    requests: NotRequired[list[str] | None]


class _ClaimDevices(TypedDict):
    requests: NotRequired[list[_Request] | None]
    constraints: NotRequired[list[_Constraint] | None]
    config: NotRequired[list[_Config] | None]


class _ClaimSpec(TypedDict):
    devices: NotRequired[_ClaimDevices]


class _Result(TypedDict):
    request: str
    driver: str
    pool: str
    device: str
    shareID: NotRequired[str | None]
    consumedCapacity: NotRequired[dict[str, Quantity] | None]
    adminAccess: NotRequired[bool | None]


class _Results(TypedDict):
    results: NotRequired[list[_Result] | None]


class _Allocation(TypedDict):
    devices: NotRequired[_Results | None]


class _Consumer(TypedDict):
    name: str


class _ClaimStatus(TypedDict):
    allocation: NotRequired[_Allocation | None]
    reservedFor: NotRequired[list[_Consumer] | None]


class _Named(TypedDict):
    name: str
    namespace: NotRequired[str]
    labels: NotRequired[Labels | None]


class _MaybeNamed(TypedDict):
    name: NotRequired[str]
    generateName: NotRequired[str]
    namespace: NotRequired[str]


class _Claim(TypedDict):
    metadata: _Named
    spec: _ClaimSpec
    status: NotRequired[_ClaimStatus | None]


class _TemplateSpec(TypedDict):
    spec: _ClaimSpec


class _Template(TypedDict):
    metadata: _Named
    spec: _TemplateSpec


class _ClassSpec(TypedDict):
    selectors: NotRequired[list[_Selector] | None]
    config: NotRequired[list[_Config] | None]
    extendedResourceName: NotRequired[str | None]


class _Class(TypedDict):
    metadata: _Named
    spec: _ClassSpec


class _Counter(TypedDict):
    value: Quantity


class _Consumes(TypedDict):
    counterSet: str
    counters: dict[str, _Counter]


class _CounterSet(TypedDict):
    name: str
    counters: dict[str, _Counter]


class _Range(TypedDict):
    min: Quantity
    max: NotRequired[Quantity]
    step: NotRequired[Quantity]


class _Policy(TypedDict):
    default: NotRequired[Quantity]
    validRange: NotRequired[_Range | None]
    validValues: NotRequired[list[Quantity] | None]


class _Capacity(TypedDict):
    value: Quantity
    requestPolicy: NotRequired[_Policy | None]


_Attribute = Annotated[dict[str, Any], Field(min_length=1, max_length=1)]


class _Terms(TypedDict):
    nodeSelectorTerms: NotRequired[list["_Term"] | None]


class _Requirement(TypedDict):
    key: str
    operator: str
    values: NotRequired[list[str] | None]


class _Term(TypedDict):
    matchExpressions: NotRequired[list[_Requirement] | None]
    matchFields: NotRequired[list[_Requirement] | None]


class _Device(TypedDict):
    name: str
    attributes: NotRequired[dict[str, _Attribute] | None]
    capacity: NotRequired[dict[str, _Capacity] | None]
    taints: NotRequired[list[_Taint] | None]
    consumesCounters: NotRequired[list[_Consumes] | None]
    nodeName: NotRequired[str | None]
    nodeSelector: NotRequired[_Terms | None]


class _PoolRef(TypedDict):
    name: str
    resourceSliceCount: int
    generation: NotRequired[int]


class _SliceSpec(TypedDict):
    driver: str
    pool: _PoolRef
    nodeName: NotRequired[str | None]
    nodeSelector: NotRequired[_Terms | None]
    devices: NotRequired[list[_Device] | None]
    sharedCounters: NotRequired[list[_CounterSet] | None]


class _Slice(TypedDict):
    metadata: _Named
    spec: _SliceSpec


class _NodeSpec(TypedDict):
    taints: NotRequired[list[_Taint] | None]


class _NodeStatus(TypedDict):
    allocatable: NotRequired[dict[str, Quantity] | None]


class _Node(TypedDict):
    metadata: _Named
    spec: NotRequired[_NodeSpec | None]
    status: NotRequired[_NodeStatus | None]


class _RuleSelector(TypedDict):
    driver: NotRequired[str | None]
    pool: NotRequired[str | None]
    device: NotRequired[str | None]


class _RuleSpec(TypedDict):
    taint: _Taint
    deviceSelector: NotRequired[_RuleSelector | None]


class _Rule(TypedDict):
    metadata: _Named
    spec: _RuleSpec


class _Resources(TypedDict):
    limits: NotRequired[dict[str, Quantity] | None]
    requests: NotRequired[dict[str, Quantity] | None]
    claims: NotRequired[list[dict[str, Any]]]


class _Variable(TypedDict):
    name: str


class _Container(TypedDict):
    resources: NotRequired[_Resources | None]
    env: NotRequired[list[_Variable] | None]


class _ClaimRef(TypedDict):
    name: str
    resourceClaimName: NotRequired[str | None]
    resourceClaimTemplateName: NotRequired[str | None]


class _NodeAffinity(TypedDict):
    requiredDuringSchedulingIgnoredDuringExecution: NotRequired[_Terms | None]


class _Affinity(TypedDict):
    nodeAffinity: NotRequired[_NodeAffinity | None]


class PodSpec(TypedDict):
    """What of a pod is read."""

    nodeName: NotRequired[str | None]
    nodeSelector: NotRequired[Labels | None]
    affinity: NotRequired[_Affinity | None]
    tolerations: NotRequired[list[_Toleration] | None]
    initContainers: NotRequired[list[_Container] | None]
    containers: NotRequired[list[_Container] | None]
    resourceClaims: NotRequired[list[_ClaimRef] | None]


class _MadeClaim(TypedDict):
    name: str
    resourceClaimName: NotRequired[str | None]


class _Extended(TypedDict):
    resourceClaimName: NotRequired[str | None]


class _PodStatus(TypedDict):
    resourceClaimStatuses: NotRequired[list[_MadeClaim] | None]
    extendedResourceClaimStatus: NotRequired[_Extended | None]


class _Pod(TypedDict):
    metadata: _Named
    spec: PodSpec
    status: NotRequired[_PodStatus | None]


class _Any(TypedDict):
    metadata: _MaybeNamed
    spec: NotRequired[dict[str, Any] | None]


class _ConfigMap(TypedDict):
    metadata: _MaybeNamed
    data: NotRequired[dict[str, str] | None]


_SHAPES: Final[dict[str, Any]] = {
    "ConfigMap": _ConfigMap,
    "DeviceClass": _Class,
    "DeviceTaintRule": _Rule,
    "Node": _Node,
    "Pod": _Pod,
    "PodSpec": PodSpec,
    "ResourceClaim": _Claim,
    "ResourceClaimTemplate": _Template,
    "ResourceSlice": _Slice,
}


def misshapen(kind: str, content: Any) -> str:
    """What is wrong in the form of an object of a kind, with its path; '' where it can be read.

    Kinds that are not known here need metadata, and no more.
    """
    try:
        _adapter(kind if kind in _SHAPES else "").validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
        return f"{path or 'object'}: {first['msg']}"
    return ""


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_SHAPES.get(kind, _Any))
