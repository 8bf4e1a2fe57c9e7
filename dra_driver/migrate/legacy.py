"""What was found of the old ways: groups of nodes that share alike, workloads, and what has to be said about it all."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

Json = dict[str, Any]

GPU: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"
SHARED_SUFFIX: Final = ".shared"
_PROFILE: Final = re.compile(r"[1-9]\d*g\.[1-9]\d*gb([+-][a-z0-9]+(\.[a-z0-9]+)*)*")
CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
MAX_CLIENTS: Final = 48


def mapping(value: Any) -> Json:
    """What people wrote, where it is a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


class Outcome(Enum):
    """What becomes of something that was set. DECIDE: a person has to choose, and nothing was assumed in silence."""

    MAPPED = "mapped"
    LOST = "lost"
    DECIDE = "needs a decision"
    WRONG = "was wrong before"

    def counted(self, number: int) -> str:
        """In words, with a number."""
        verb = {Outcome.DECIDE: "need a decision", Outcome.WRONG: "were wrong before"}
        return f"{number} {self.value if number == 1 else verb.get(self, self.value)}"


def is_gpu(resource: str) -> bool:
    """Whether it is a resource of NVIDIA's device plugin."""
    return resource in (GPU, GPU + SHARED_SUFFIX) or resource.startswith(MIG_PREFIX)


def profile_of(resource: str) -> str | None:
    """Of ``nvidia.com/mig-1g.10gb``: ``1g.10gb``; None where it names no MIG profile."""
    profile = resource.removeprefix(MIG_PREFIX).removesuffix(SHARED_SUFFIX).replace(".me", "+me")
    return profile if resource.startswith(MIG_PREFIX) and _PROFILE.fullmatch(profile) else None


def containers(spec: Json) -> Iterator[Json]:
    """All containers of a pod spec."""
    yield from (
        c for c in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])] if isinstance(c, dict)
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was set. where: file and place; what: the setting; becomes: what it is now, or why nothing."""

    outcome: Outcome
    where: str
    what: str
    becomes: str


class Strategy(Enum):
    """How clients take turns on a GPU."""

    TIME_SLICING = "time-slicing"
    MPS = "MPS"


class MpsAs(Enum):
    """What MPS sharing becomes: shares that take turns, or one claim a workload that MPS serves."""

    TIME_SLICING = "time-slicing"
    CLAIMS = "claims"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One resource that was handed out several times. only_one: a request for more than one was refused."""

    resource: str
    replicas: int
    strategy: Strategy
    rename: bool
    only_one: bool

    @property
    def mig_profile(self) -> str | None:
        """Of ``nvidia.com/mig-1g.10gb``: ``1g.10gb``."""
        if not self.resource.startswith(MIG_PREFIX):
            return None
        return profile_of(self.resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that share alike. name: of the config; labels: what selects them, none for all that no other group has.

    partitions: MIG devices a card by profile, where that is known. mig_strategy: none, single or mixed.
    """

    name: str
    where: str
    labels: Mapping[str, str] = field(default_factory=dict)
    mig_strategy: str = "none"
    shares: tuple[Share, ...] = ()
    partitions: Mapping[str, int] = field(default_factory=dict)
    default: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """An object with pods that ask for GPUs. path: of its pod spec inside the object."""

    where: str
    content: Json
    path: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Of the object."""
        return str(self.content["kind"])

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.content["metadata"].get("name") or "unnamed")

    @property
    def namespace(self) -> str:
        """Of the object; files may leave it out."""
        return str(self.content["metadata"].get("namespace") or "default")

    @property
    def pod_spec(self) -> Json:
        """The pod spec as it is."""
        found: Any = self.content
        for part in self.path:
            found = found[part]
        return found  # type: ignore[no-any-return]

    @property
    def asked(self) -> dict[str, int]:
        """NVIDIA's resources of all its containers, summed up by name."""
        found: dict[str, int] = {}
        for container in containers(self.pod_spec):
            resources = container.get("resources") or {}
            for name, amount in {**(resources.get("requests") or {}), **(resources.get("limits") or {})}.items():
                if is_gpu(name) and str(amount).isdecimal() and int(amount):
                    found[name] = found.get(name, 0) + int(amount)
        return found


@dataclass(slots=True)
class Legacy:
    """Everything that was read. config_maps: to be read once the default config is known, each with where it was."""

    groups: list[Group] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    nodes: list[Json] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    config_maps: list[tuple[Json, str]] = field(default_factory=list)
    default_config: str | None = None

    def say(self, outcome: Outcome, where: str, what: str, becomes: str) -> None:
        """Add a finding; the same one is said once."""
        finding = Finding(outcome, where, what, becomes)
        if finding not in self.findings:
            self.findings.append(finding)
