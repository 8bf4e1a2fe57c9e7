"""Feature gates: which there are, and what a ``--feature-gates`` text switches on. Pure; nothing here acts on
a gate.

Names, defaults, stages and the rules between gates are those of NVIDIA's driver, so that one text serves
both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dra_driver.model.errors import SettingError

TIME_SLICING_SETTINGS: Final = "TimeSlicingSettings"
MPS_SUPPORT: Final = "MPSSupport"
PASSTHROUGH_SUPPORT: Final = "PassthroughSupport"
DYNAMIC_MIG: Final = "DynamicMIG"
NVML_DEVICE_HEALTH_CHECK: Final = "NVMLDeviceHealthCheck"
DEVICE_METADATA: Final = "DeviceMetadata"
DRA_LIST_TYPE_ATTRIBUTES: Final = "DRAListTypeAttributes"
FABRIC_MANAGER_PARTITIONING: Final = "FabricManagerPartitioning"
CONSUMABLE_SHARES: Final = "ConsumableShares"
IMEX_DAEMONS_WITH_DNS_NAMES: Final = "IMEXDaemonsWithDNSNames"
COMPUTE_DOMAIN_CLIQUES: Final = "ComputeDomainCliques"


class Stage(Enum):
    """How settled a gate is; ``AllAlpha`` and ``AllBeta`` switch whole stages."""

    ALPHA = "Alpha"
    BETA = "Beta"


class Scope(Enum):
    """What this driver makes of a gate.

    BUILT: acts on it. PLANNED: known, accepted, does nothing in this version. FOREIGN: concerns compute
    domains or the logging of other programs, accepted so that one setting can serve several of them.
    """

    BUILT = "built"
    PLANNED = "planned"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Gate:
    """One feature gate: its name, default and stage."""

    name: str
    default: bool
    stage: Stage
    scope: Scope
    summary: str


GATES: Final = (
    Gate(TIME_SLICING_SETTINGS, False, Stage.ALPHA, Scope.BUILT, "claims may ask for strategy TimeSlicing"),
    Gate(MPS_SUPPORT, False, Stage.ALPHA, Scope.BUILT, "claims may ask for strategy MPS"),
    Gate(PASSTHROUGH_SUPPORT, False, Stage.ALPHA, Scope.PLANNED, "GPUs are also offered as VFIO devices"),
    Gate(DYNAMIC_MIG, False, Stage.ALPHA, Scope.PLANNED, "MIG devices are made when a claim needs them"),
    Gate(NVML_DEVICE_HEALTH_CHECK, False, Stage.ALPHA, Scope.PLANNED, "XID errors become device taints"),
    Gate(DEVICE_METADATA, False, Stage.ALPHA, Scope.PLANNED, "device metadata files in containers"),
    Gate(DRA_LIST_TYPE_ATTRIBUTES, False, Stage.ALPHA, Scope.PLANNED, "numaNode is published as a list"),
    Gate(FABRIC_MANAGER_PARTITIONING, False, Stage.ALPHA, Scope.PLANNED, "NVSwitch partitions are published"),
    Gate(CONSUMABLE_SHARES, False, Stage.ALPHA, Scope.BUILT, "several claims may share one GPU"),
    Gate(IMEX_DAEMONS_WITH_DNS_NAMES, True, Stage.BETA, Scope.FOREIGN, "compute domains"),
    Gate(COMPUTE_DOMAIN_CLIQUES, True, Stage.BETA, Scope.FOREIGN, "compute domains"),
    Gate("CrashOnNVLinkFabricErrors", True, Stage.BETA, Scope.FOREIGN, "compute domains"),
    Gate("HostManagedIMEXDaemon", False, Stage.ALPHA, Scope.FOREIGN, "compute domains"),
    Gate("ContextualLogging", True, Stage.BETA, Scope.FOREIGN, "logging"),
    Gate("LoggingAlphaOptions", False, Stage.ALPHA, Scope.FOREIGN, "logging"),
    Gate("LoggingBetaOptions", True, Stage.BETA, Scope.FOREIGN, "logging"),
)
"""Every gate that is known, those of this driver first."""

EXCLUSIONS: Final = (
    (DYNAMIC_MIG, PASSTHROUGH_SUPPORT),
    (DYNAMIC_MIG, NVML_DEVICE_HEALTH_CHECK),
    (DYNAMIC_MIG, MPS_SUPPORT),
    (PASSTHROUGH_SUPPORT, NVML_DEVICE_HEALTH_CHECK),
)
"""Pairs of gates that cannot both be on."""

REQUIREMENTS: Final = (
    (DEVICE_METADATA, PASSTHROUGH_SUPPORT),
    (COMPUTE_DOMAIN_CLIQUES, IMEX_DAEMONS_WITH_DNS_NAMES),
)
"""(gate, what must be on with it). The second pair is of compute domains, and NVIDIA's rule all the same."""

_BY_NAME: Final = {gate.name: gate for gate in GATES}
_STAGES: Final = {"AllAlpha": Stage.ALPHA, "AllBeta": Stage.BETA}
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that are on. ``"TimeSlicingSettings" in gates`` asks for one.

    not_implemented: gates that are on and that this version knows but does not act on, sorted.
    """

    enabled: frozenset[str]

    def __contains__(self, name: str) -> bool:
        if name not in _BY_NAME:
            raise KeyError(name)
        return name in self.enabled

    @property
    def not_implemented(self) -> tuple[str, ...]:
        """What to warn about at start."""
        return tuple(sorted(name for name in self.enabled if _BY_NAME[name].scope is Scope.PLANNED))

    def __str__(self) -> str:
        """All gates as ``A=true,B=false``, the form that ``parse_gates`` reads."""
        return ",".join(f"{gate.name}={str(gate.name in self.enabled).lower()}" for gate in GATES)


def parse_gates(text: str) -> Gates:
    """Read ``A=true,B=false,`` (blanks and empty entries are skipped, the last of two entries for a gate
    wins).

    ``AllAlpha`` and ``AllBeta`` set the gates of their stage that the text does not name. Raises SettingError
    for an entry that is not ``NAME=BOOL``, an unknown gate, and gates that cannot be on (or off) together.
    """
    named: dict[str, bool] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, value = _parse_entry(entry)
        named[name] = value
    stages = {_STAGES[name]: value for name, value in named.items() if name in _STAGES}
    enabled = frozenset(g.name for g in GATES if named.get(g.name, stages.get(g.stage, g.default)))
    _check_together(enabled, unnamed=enabled.difference(named))
    return Gates(enabled)


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely meant, None when none is near. Case is ignored."""
    import difflib  # only ever needed on the way to an error

    folded = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def _parse_entry(entry: str) -> tuple[str, bool]:
    name, equals, value = (part.strip() for part in entry.partition("="))
    if name not in _BY_NAME and name not in _STAGES:
        known = (*_BY_NAME, *_STAGES)
        near = closest(name, known)
        hint = f", did you mean {near}?" if near else ","
        raise SettingError(f"unknown feature gate {name}{hint} known feature gates: {', '.join(known)}")
    if not equals:
        raise SettingError(f"feature gate {name} has no value, write {name}=true or {name}=false")
    if value not in _TRUE | _FALSE:
        raise SettingError(f'feature gate {name} has value "{value}", must be true or false')
    return name, value in _TRUE


def _check_together(enabled: frozenset[str], unnamed: frozenset[str]) -> None:
    """unnamed: gates that are on without having been named, through their default or their stage."""
    for first, second in EXCLUSIONS:
        if first in enabled and second in enabled:
            origin = " (on through AllAlpha)" if unnamed.intersection((first, second)) else ""
            raise SettingError(
                f"feature gate validation failed: feature gate {first} is currently mutually exclusive "
                f"with {second}{origin}, set {first}=false or {second}=false"
            )
    for gate, needed in REQUIREMENTS:
        if gate in enabled and needed not in enabled:
            raise SettingError(
                f"feature gate validation failed: feature gate {gate} requires {needed} to also be enabled, "
                f"set {needed}=true or {gate}=false"
            )
