"""The API types that the simulated API server knows, and where they live in its URL space. Pure values."""

from dataclasses import dataclass, field

from dra_driver_api.names import RESOURCE_API_GROUP

_COMMON_FIELDS = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource type.

    status: whether it has a status subresource. counted: whether ``metadata.generation`` follows ``spec``.
    fields: what a fieldSelector may name besides name and namespace.
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = False
    status: bool = False
    counted: bool = False
    fields: tuple[str, ...] = field(default=())

    @property
    def api_version(self) -> str:
        """As written in objects: ``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As written in error messages: ``pods`` or ``resourceslices.resource.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def selectable(self) -> tuple[str, ...]:
        """All field labels that a fieldSelector may use."""
        return _COMMON_FIELDS + self.fields


NAMESPACES = Kind(plural="namespaces", kind="Namespace", status=True)
NODES = Kind(plural="nodes", kind="Node", status=True, fields=("spec.unschedulable",))
PODS = Kind(
    plural="pods",
    kind="Pod",
    namespaced=True,
    status=True,
    counted=True,
    fields=("spec.nodeName", "spec.schedulerName", "spec.restartPolicy", "status.phase", "status.podIP"),
)
EVENTS = Kind(
    plural="events",
    kind="Event",
    namespaced=True,
    fields=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "type",
    ),
)
RESOURCE_CLAIMS = Kind(
    plural="resourceclaims", kind="ResourceClaim", group=RESOURCE_API_GROUP, namespaced=True, status=True
)
CLAIM_TEMPLATES = Kind(
    plural="resourceclaimtemplates", kind="ResourceClaimTemplate", group=RESOURCE_API_GROUP, namespaced=True
)
DEVICE_CLASSES = Kind(plural="deviceclasses", kind="DeviceClass", group=RESOURCE_API_GROUP, counted=True)
RESOURCE_SLICES = Kind(
    plural="resourceslices",
    kind="ResourceSlice",
    group=RESOURCE_API_GROUP,
    counted=True,
    fields=("spec.driver", "spec.nodeName"),
)

KINDS = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    RESOURCE_CLAIMS,
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    RESOURCE_SLICES,
)


def kind_of(api_version: str, kind: str) -> Kind | None:
    """The type of an object by its ``apiVersion`` and ``kind``."""
    return next((k for k in KINDS if k.kind == kind and k.api_version == api_version), None)


def kind_at(group: str, version: str, plural: str) -> Kind | None:
    """The type behind a URL path."""
    wanted = (group, version, plural)
    return next((k for k in KINDS if (k.group, k.version, k.plural) == wanted), None)
